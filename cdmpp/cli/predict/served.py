"""`cdmpp predict --server URL`: a server that has the model loaded answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdmpp.cli.predict.program import print_programs
from cdmpp.cli.predict.records import print_records
from cdmpp.cli.predict.text import ModelFacts
from cdmpp.serve.client import Client
from tvm_helper.predict.answers import check_predicted
from tvm_helper.predict.served import served_programs, served_records


def predict_served(
    client: Client,
    model: str | None,
    labels: Sequence[str],
    *,
    program: Path | None,
    records: Path | None,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints what a server says of the programs of a file.

    Args:
        model: one of the server's; None = its first.
        program: file of TVMScript; None = there are records.

    Raises:
        CdmppError: what the server says, or that it is gone.
    """

    def facts() -> ModelFacts:
        return ModelFacts.of_served(client, model)

    if program is not None:
        found = served_programs(client, program, labels, model=model)
        check_predicted(found, program)
        print_programs(found, facts, as_json=as_json, is_quiet=is_quiet)
    elif records is not None:
        answers = served_records(client, records, labels, model=model)
        answers.check(records)
        print_records(answers.programs, answers.notes(), facts, as_json=as_json, is_quiet=is_quiet)
