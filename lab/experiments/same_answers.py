"""What every command answers, kept to be compared.

`python -m lab.experiments.same_answers record|compare ...`:

`record OUT.json` runs each command on small inputs in a checkout (`--checkout DIR`, this one when
left out) and keeps its exit code and its JSON, the bytes of one training (seed 0) and of the leaf
columns of an extraction. `compare BEFORE.json AFTER.json` lists what differs and ends with code 1
where anything does. Times, places and versions are not answers and are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.paths import ROOT

#: Keys whose values are of the moment or of the place.
_PASSING = re.compile(
    r"(^|_)(seconds|elapsed|wall|started|finished|measured_at|created|date|time_s|duration_s|cpu_s"
    r"|commit|versions?|command|machine|path|file|folder|places?|out|run|cache|dataset|pid|host"
    r"|python|load|(programs|steps|records|predictions|samples)_per_s|peak_memory_mb|training_s"
    r"|predict_s)(_|$)"
)
_DEVICES = ("epyc-avx2-1c", "xeon-avx2-1c")
_TASK_FILES = 12
_QUICK = ("--set", "transformer.loop.epochs=2", "--set", "transformer.network.hidden=32")

_PROGRAM = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def scaled(a: T.Buffer((64, 128), "float32"), b: T.Buffer((64, 128), "float32")):
    for i in T.parallel(64):
        for j in T.vectorized(128):
            with T.sblock("b"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] * T.float32(2)
"""
_NETWORK = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
"""
_EXPORT = """
import torch, net
program = torch.export.export(net.net().eval(), (torch.zeros(1, 3, 32, 32),))
torch.export.save(program, "net.pt2")
"""


@dataclass(frozen=True)
class Case:
    """One command; `{work}` in its words is a folder that all cases share."""

    name: str
    words: tuple[str, ...]
    is_json: bool = True


def cases() -> Iterator[Case]:
    """Yields the commands in the order they are run: later ones use what earlier ones wrote."""

    def case(text: str, name: str = "") -> Case:
        is_json = "--json" in text
        return Case(name or text.replace("{work}/", ""), tuple(text.split()), is_json)

    yield Case("help", ("--help",), False)
    data, out = "--dataset {work}/data", "{work}/extracted"
    yield case(f"dataset stats {data} --json")
    yield case(f"dataset audit {data} --json")
    yield case(f"dataset extract {data} --out {out} --jobs 1 --json")
    yield case(f"dataset stats {out} --json")
    yield case(f"dataset audit {out} --json")
    yield case(f"dataset export {out} --out {{work}}/files --json")
    yield case(f"dataset merge {out} data/metaschedule-cpu-found --out {{work}}/merged --json")
    small = f"--dataset {out} --cache {{work}}/cache --jobs 1 -q"
    train = f"train {small} --seed 0 --out {{work}}/model --json " + " ".join(_QUICK)
    yield case(train, "train transformer")
    for kind in ("gbdt", "constant", "roofline"):
        yield case(f"train {small} --model {kind} --out {{work}}/{kind} --json", f"train {kind}")
    model = "--model {work}/model"
    yield case(f"evaluate {model} {small} --json")
    yield case(f"evaluate --model pretrained {small} --json", "evaluate pretrained")
    records = "{work}/records.json.gz"
    yield case(
        f"predict {model} --records {records} --device epyc-avx2-1c --json", "predict records"
    )
    yield case(
        f"predict --records {records} --json --model pretrained", "predict records, pretrained"
    )
    yield case(f"predict --records {records} --model pretrained", "predict records as text")
    program = "predict --model pretrained --program {work}/program.py --device epyc-avx512-1c"
    yield case(f"{program} --device t4 --json", "predict program")
    yield case(f"{program}", "predict program as text")
    network = "--network {work}/net.pt2 --device epyc-avx512-1c"
    yield case(f"predict --model pretrained {network} --json", "predict network")
    yield case("predict --torch {work}/net.py:net --input 3x32x32 --batch 1,4 --json")
    yield case("predict --torch {work}/net.py:net --input 3x32x32 --batch 1,4")
    yield case(f"finetune --from {{work}}/model --device xeon-avx2-1c --budget 1tasks {small} "
               "--out {work}/tuned --json", "finetune")  # fmt: skip
    yield case(f"benchmark {small} --seeds 0,1 --model constant --out {{work}}/bench --json")
    yield case(f"autotune {small} --out {{work}}/study --model gbdt --trials 2 --sampler random "
               "--no-train --json", "autotune")  # fmt: skip
    yield case("autotune report --out {work}/study --json")
    yield case("device list --json")
    yield case("device list")
    for label in ("t4", "epyc-avx512-2c", "a100-40gb"):
        yield case(f"device show {label} --json")
    yield case("device occupancy --threads 256 --registers 64 --device t4 --json")
    yield case("roofline --op softmax --shape rows=65536,cols=512 --device a100-40gb --json")
    layer = "--layer 1,64,56,64,3 --model cdmpp/pretrained/conv --device t4"
    yield case(f"analytic conv predict {layer} --json")
    yield case(f"analytic conv pick {layer} --json")
    lookup = "--batch 2048 --rows 1000000 --tables 8 --lookups 100 --width 64 --zipf 1.05"
    yield case(f"analytic embedding predict {lookup} --json")
    yield case(f"analytic embedding predict {lookup} --device a100-40 --json")
    yield case("analytic embedding predict --preset configs/embedding/dlrm-default.yaml --json")
    yield case("analytic embedding fit --data data/embedding-cpu --out {work}/cpu.json --json")
    yield case("analytic embedding evaluate --data data/embedding-cpu --json")
    yield case("analytic embedding report --data data/embedding-cpu --out {work}/pages --json")
    linear = "--op linear --shape batch=1,m=4096,n=1024,k=1024 --device t4,h100"
    yield case(f"analytic operator predict {linear} --json")
    replays = (
        ("graph", "{work}/trace.json"),
        ("trace on another device", "{work}/trace.json --device v100"),
        ("network", "{work}/net.pt2 --device epyc-avx512-1c --no-machine-code"),
        ("network, machine code", "{work}/net.pt2 --device epyc-avx512-1c"),
        ("trace, overheads", "{work}/trace.json --walk head --save-overheads {work}/host.json"),
        ("tenset", "{work}/((dcgan,[(1,3,64,64)]),llvm).task.pkl.gz --device xeon-avx2-1c "
                   "--schedule draws:5 --dataset data/tenset-cpu"),
    )  # fmt: skip
    for name, words in replays:
        yield case(f"replay {words} --json", f"replay {name}")
        yield case(f"replay {words}", f"replay {name}, as text")
    yield case("networks statistics data/networks-cpu --json")
    drawn = "--config configs/networks/cpu-small.yaml --architectures 3"
    yield case(f"networks generate {drawn} --out {{work}}/drawn --json")
    yield case("networks train --dataset data/networks-cpu --out {work}/net-trees --model trees "
               "--json -q", "networks train")  # fmt: skip
    yield case("networks evaluate {work}/net-trees --dataset data/networks-cpu --json")
    yield case("networks evaluate pretrained --dataset data/networks-cpu --json")
    yield case("profile {work}/trace.json --json")
    yield case("profile {work}/trace.json --device v100 --by-shape --top 0")
    yield case("profile {work}/trace.json --compare {work}/trace.json --json")
    yield case("predict --model nowhere --program {work}/program.py", "error: no model")
    yield case("train --dataset {work}/nowhere", "error: no dataset")
    yield case("device show nonsense", "error: no device")


def prepare(work: Path, checkout: Path) -> None:
    """Writes the inputs of the cases: a small dataset, records, a program, a network, a trace."""
    source = checkout / "data" / "tenset-cpu"
    for device in _DEVICES:
        folder = work / "data" / "measure_records" / device
        folder.mkdir(parents=True)
        for path in sorted((source / "measure_records" / device).iterdir())[:_TASK_FILES]:
            shutil.copy(path, folder)
    shutil.copytree(source / "network_info", work / "data" / "network_info")
    first = min((work / "data" / "measure_records" / _DEVICES[0]).iterdir())
    shutil.copy(first, work / "records.json.gz")
    shutil.copy(source / "network_info" / "((dcgan,[(1,3,64,64)]),llvm).task.pkl.gz", work)
    (work / "program.py").write_text(_PROGRAM)
    (work / "net.py").write_text(_NETWORK)
    (work / "export.py").write_text("import torch; torch.manual_seed(0)\n" + _EXPORT)
    subprocess.run([sys.executable, "export.py"], cwd=work, check=True, capture_output=True)
    (work / "trace.json").write_text(json.dumps({"traceEvents": list(_trace_events())}))


def _trace_events() -> Iterator[dict[str, Any]]:
    """Yields the events of a run of three operators and their GPU kernels, as torch writes them."""
    start = 1000.0
    for number, (operator, kernel, dims) in enumerate((
        ("aten::mm", "ampere_sgemm_128x64_tn", [[1024, 512], [512, 256]]),
        ("aten::relu", "vectorized_elementwise_kernel", [[1024, 256]]),
        ("aten::_softmax", "softmax_warp_forward", [[1024, 256], [], []]),
    )):  # fmt: skip
        at, link = start + 100 * number, number + 1
        sizes = {"Input Dims": dims, "Input type": ["float"] * len(dims), "External id": link}
        yield {"ph": "X", "cat": "cpu_op", "name": operator, "pid": 1, "tid": 1, "ts": at,
               "dur": 30.0, "args": sizes}  # fmt: skip
        yield {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
               "ts": at + 10, "dur": 5.0,
               "args": {"correlation": link, "External id": link}}  # fmt: skip
        yield {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 20,
               "dur": 40.0 + number,
               "args": {"device": 0, "stream": 7, "correlation": link, "External id": link,
                        "grid": [64, 1, 1], "block": [128, 1, 1]}}  # fmt: skip


def record(checkout: Path, only: str | None) -> dict[str, Any]:
    """Returns what every command answers in a checkout."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work, checkout)
        for case in cases():
            if only and not re.search(only, case.name):
                continue
            words = [word.replace("{work}", str(work)) for word in case.words]
            done = subprocess.run(
                [sys.executable, "-m", "cdmpp.cli.main", *words], cwd=checkout, text=True,
                capture_output=True, check=False,
                env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1",
                                  "COLUMNS": "100"},
            )  # fmt: skip
            places = (str(work), "WORK"), (str(checkout), "CHECKOUT")
            answers[case.name] = _answer(done, case, places)
            print(f"{done.returncode} {case.name}", file=sys.stderr, flush=True)
        answers["bytes of a training"] = _digest(work / "model" / "model.safetensors")
        answers["columns of an extraction"] = _columns(work / "extracted")
    return answers


def _answer(
    done: subprocess.CompletedProcess[str], case: Case, places: tuple[tuple[str, str], ...]
) -> dict[str, Any]:
    value: Any = done.stdout
    if case.is_json and done.returncode == 0:
        value = json.loads(done.stdout)
    text = json.dumps(value)
    error = done.stderr if done.returncode else ""
    for place, word in places:
        text, error = text.replace(place, word), error.replace(place, word)
    return {"exit": done.returncode, "answer": _lasting(json.loads(text)), "error": error[-600:]}


def _lasting(value: Any) -> Any:
    """Returns a value without what is of the moment or of the place."""
    if isinstance(value, dict):
        return {key: _lasting(v) for key, v in value.items() if not _PASSING.search(key)}
    if isinstance(value, list):
        return [_lasting(v) for v in value]
    if isinstance(value, str):
        return re.sub(r"\b\d+(\.\d+)? ?(m?s|min|MB)\b", "TIME", value) if "\n" in value else value
    return value


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _columns(extracted: Path) -> dict[str, str]:
    import pyarrow.parquet as pq

    found = {}
    for path in sorted(extracted.glob("p*.parquet")):
        table = pq.read_table(path)
        for name in table.column_names:
            text = repr(table.column(name).combine_chunks().to_pylist()).encode()
            found[f"{path.name} {name}"] = hashlib.sha256(text).hexdigest()
    return found


def differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    """Yields where two answers differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            if key not in before or key not in after:
                yield f"{place}/{key}: only {'after' if key in after else 'before'}"
            else:
                yield from differences(before[key], after[key], f"{place}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif before != after:
        yield f"{place}: {str(before)[:300]!r} is now {str(after)[:300]!r}"


def main() -> int:
    """Records or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--checkout", type=Path, default=ROOT)
    recording.add_argument("--only", metavar="PATTERN")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.command == "record":
        found = record(args.checkout.resolve(), args.only)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    before, after = (json.loads(path.read_text()) for path in (args.before, args.after))
    found = list(differences(before, after))
    print("\n".join(found) or f"the same {len(before)} answers")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
