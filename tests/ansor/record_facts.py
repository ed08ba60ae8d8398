"""What the product makes of record lines; runs in the product's environment, without the plug-in.

Reads `{"dag", "device", "lines"}` from the standard input, writes one object a line of a record:
`digest` of all arrays of its compact AST, `latency_s` as the packaged model predicts it.
"""

from __future__ import annotations

import hashlib
import json
import sys

from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.requested_device import asked_device
from cdmpp.pretrained import find_pretrained
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import TensetTask


def main() -> None:
    request = json.load(sys.stdin)
    records = [parse_record(line) for line in request["lines"]]
    first = records[0]
    task = TensetTask(
        first.workload_key, first.target, first.target_kind, request["dag"], first.hardware_params
    )
    asts = featurise_records(task, records)
    trained = load_trained(find_pretrained())
    device = asked_device(request["device"], trained.card)
    found = [ast for ast in asts if isinstance(ast, CompactAst)]
    assert len(found) == len(records)
    asked = [
        AskedProgram(program_id=str(place), task="task", ast=ast, device=device)
        for place, ast in enumerate(found)
    ]
    seconds = trained.model.predict(assemble_samples(asked))
    digests = [
        hashlib.sha256(
            b"".join(
                array.tobytes()
                for array in (ast.leaf_features, ast.leaf_extra, ast.leaf_position, ast.tree)
            )
        ).hexdigest()
        for ast in found
    ]
    facts = [{"digest": digest, "latency_s": float(latency)}
             for digest, latency in zip(digests, seconds, strict=True)]  # fmt: skip
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
