"""What a checkout answers from inside: run by `same_answers` with old code or new on the path."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

import cdmpp

_LABELS = ("epyc-avx2-1c", "epyc-avx512-2c", "xeon-avx2-2c", "t4", "v100", "a100-40gb", "mi50")

_LAB = ("benchmark", "golden", "pretrain")
#: What most commands import, slowly.
_LARGE = (
    "tvm_helper.compat", "torch", "torch.export", "torch.onnx", "torch._dynamo", "torch._inductor",
    "pyarrow.parquet", "xgboost", "scipy.optimize", "sklearn.ensemble", "matplotlib.figure",
    "matplotlib.backends.backend_svg", "jinja2", "optuna", "cdmpp.cli.main",
)  # fmt: skip


def _named(name: str, *places: str) -> Any:
    """Returns what has a name in the first module that there is."""
    for place in places:
        try:
            return getattr(importlib.import_module(place), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise SystemExit(f"no {name} in {', '.join(places)}")


def _rows(found: Any) -> dict[str, Any]:
    return {
        "rows": [one.to_json() for one in found], "notes": list(found.notes),
        "texts": [str(one) for one in found],
    }  # fmt: skip


def _bits(found: Any) -> dict[str, Any]:
    """Returns the sha256 of the float64 of predictions, and the first ones to look at."""
    columns = {
        name: np.array([getattr(one, name) for one in found], float)
        for name in ("latency_s", "low_s", "high_s", "out_of_distribution")
    }
    return {
        "count": len(found), "first": columns["latency_s"][:3].tolist(),
        **{name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in columns.items()},
    }  # fmt: skip


def _columns(value: Any) -> dict[str, str]:
    """Returns field -> sha256 of a dataclass of arrays."""
    found = {}
    for one in fields(value):
        column = getattr(value, one.name)
        if isinstance(column, np.ndarray):
            content = column.tobytes() if column.dtype != object else repr(column.tolist()).encode()
            found[one.name] = f"{column.dtype} {column.shape} {hashlib.sha256(content).hexdigest()}"
    return found


def answers() -> dict[str, Any]:
    """Returns rows of the public API, digests of predictions and of feature columns."""
    import pyarrow.parquet as pq

    model = cdmpp.load("pretrained")
    small = cdmpp.Dataset.read("small", cache_dir="api-cache", jobs=1)
    shipped = cdmpp.Dataset.read(device="epyc-avx2-1c", cache_dir="api-cache", jobs=1)
    program = Path("program.py").read_text().strip()
    found: dict[str, Any] = {
        "devices of the model": list(model.devices),
        "dataset": [len(small), list(small.devices), len(shipped)],
        "splits": {
            kind: [_columns(part) for part in small.split(kind, seed=1)]
            for kind in ("task", "network", "record")
        },
        "columns of samples": _columns(small.samples),
        "columns of programs": _columns(small.samples.programs),
        "columns of the shipped dataset": _columns(shipped.samples.programs),
        "devices": {
            spec.name: asdict(spec) for spec in (cdmpp.devices.get(label) for label in _LABELS)
        },
        "script": _rows(model.predict(program, device=["epyc-avx2-1c", "t4"])),
        "program, machine code": _rows(
            model.predict("program.py", device="epyc-avx512-1c", machine_code=True)
        ),
        "records": _rows(model.predict("records.json.gz")),
        "network": _rows(model.predict("net.pt2", device="epyc-avx512-1c")),
        "explained": model.explain(program, device="epyc-avx2-1c")[0].row,
        "bits": _bits(model.predict(small)),
        "bits of the shipped dataset": _bits(model.predict(shipped)),
        "bits on other devices": {
            label: _bits(model.predict(small, device=label)) for label in _LABELS
        },
        "bits with machine code": _bits(
            model.records("records.json.gz", device="epyc-avx2-1c", machine_code=True)
        ),
    }
    trained = cdmpp.train(
        small, model="gbdt", out="api-model", seed=1, settings={"gbdt": {"trees": 30}}
    )
    found["trained"] = _bits(trained.predict(small, device="epyc-avx2-1c"))
    found["columns of an extraction"] = {
        f"{path.name} {name}": hashlib.sha256(
            repr(table.column(name).combine_chunks().to_pylist()).encode()
        ).hexdigest()
        for path in sorted(small.folder.glob("p*.parquet"))
        for table in (pq.read_table(path),)
        for name in table.column_names
    }
    return found


def speed() -> dict[str, float]:
    """Returns records extracted and search candidates scored in a second of one processor."""
    main = _named("main", "cdmpp.cli.main")
    rates = {}
    sys.stdout = sys.stderr
    for name, place in (("warm", "small"), ("records/s", "data/tenset-cpu")):
        out = Path(f"{name.replace('/', '-')}-{time.time_ns()}")
        start = _cpu_s()
        assert main(["dataset", "extract", "--dataset", place, "--out", str(out), "--jobs", "1",
                     "-q"]) == 0  # fmt: skip
        rates[name] = len(cdmpp.Dataset.read(out)) / (_cpu_s() - start)
    sys.stdout = sys.__stdout__
    return {"extraction, records/s": rates["records/s"], "scoring, candidates/s": _scoring()}


def _cpu_s() -> float:
    return sum(os.times()[:4])  # of this process and those it has waited for


def _scoring() -> float:
    from tvm.s_tir import meta_schedule

    sampling = (
        "tests.tvm_helper.sampled",
        "tvm_helper.tasks.sampling",
        "tvm_helper.programs.sampling",
    )
    workload = _named("WORKLOADS", *sampling)["conv2d_bias_relu"]
    _named("stub_tensor_intrinsics", "tvm_helper.compat")()
    schedules = _named("sample_schedules", *sampling)(workload(), "llvm", 32)
    entry = meta_schedule.arg_info.ArgInfo.from_entry_func(schedules[0].mod, remove_preproc=True)
    asked = [meta_schedule.MeasureCandidate(schedule, entry) for schedule in schedules]
    context = meta_schedule.TuneContext(
        mod=workload(), target=_named("sample_target", *sampling)("llvm"), num_threads=1
    )
    model = _named("CdmppCostModel", "tvm_helper.cost_model.metaschedule")(
        cdmpp.load("pretrained").trained(), "epyc-avx2-2c", safety_net=False
    )
    model.predict(context, asked)
    rounds, start = 0, _cpu_s()
    while _cpu_s() - start < 2:
        model.predict(context, asked)
        rounds += 1
    return rounds * len(asked) / (_cpu_s() - start)


def commands() -> None:
    """Runs the commands of stdin, a JSON list of words a line, each in a fork of this process.

    The large libraries are loaded once; the answer is a line of JSON: exit code, output, errors.
    """
    for module in _LARGE:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        with TemporaryFile("w+") as out, TemporaryFile("w+") as error:
            child = os.fork()
            if not child:
                _run_command(
                    json.loads(line), (os.open(os.devnull, 0), out.fileno(), error.fileno())
                )
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            error.seek(0)
            print(json.dumps([code, out.read(), error.read()]), flush=True)


def _run_command(words: list[str], streams: tuple[int, ...]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.argv[1:] = words
    try:
        places = ("lab.__main__",) if words[0] in _LAB else ()  # where it moved to
        code = _named("main", *places, "cdmpp.cli.main")(words)
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the libraries' own end takes seconds


if __name__ == "__main__":
    sys.path[0] = os.getcwd()  # as with `python -m`
    if sys.argv[1] == "commands":
        commands()
    else:
        print(json.dumps({"answers": answers, "speed": speed}[sys.argv[1]](), default=str))
