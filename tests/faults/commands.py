"""The commands that faults befall, at their smallest, and what must be the same afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cdmpp.autotune.storage import existing_study
from cdmpp.datasets.fetched import FETCHED_FILE
from cdmpp.files.journal import read_lines
from tests.datasets.fetch.conftest import log_lines, tar_of
from tests.datasets.fetch.server import Served, serving
from tests.datasets.tiny import write_tiny_dataset
from tests.serve.serving import write_model
from tests.tvm_helper.device_add.child import make_setting

_MAIN = "cdmpp.cli.main"
_SMALL = "tests.faults.small"
_TASK = "matmul:m=32,n=32,k=32"
_CPU = ("--device", "epyc-avx2-2c", "--force", "--set", "timing.max_repeats=3")
_SOURCE = "tlcbench"
_COMMIT = "dbce130947bfd403b62b8f896362ffb4a3b5723c"


@dataclass(frozen=True)
class Command:
    """A command and what its result is.

    Attributes:
        module: that runs it.
        words: of it; `{out}` is a folder that is there for it alone, the others are of `places`.
        compared: what must be the same after a fault and the same command once more, as text.
        result: the output folder -> what is compared.
        kept: a file of JSON lines in the output folder, of which no line may ever be lost.
    """

    module: str
    words: Sequence[str]
    compared: str
    result: Callable[[Path], Any]
    kept: str | None = None


def _bytes_of(*patterns: str, but: Sequence[str] = ()) -> Callable[[Path], dict[str, str]]:
    """Returns what digests the files of some patterns."""

    def digests(out: Path) -> dict[str, str]:
        return {
            str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for pattern in patterns
            for path in sorted(out.glob(pattern))
            if path.is_file() and path.name not in but
        }

    return digests


def _measured(journal: Path) -> list[tuple[str, int]]:
    return [
        (one["program_id"], one["error_code"])
        for one in read_lines(journal)
        if one["kind"] == "measured"
    ]


def _campaign(out: Path) -> dict[str, Any]:
    tables = _bytes_of("m/programs-*.parquet")(out)
    return {"measured": sorted(_measured(out / "m/journal.jsonl")), **tables}


def _search(out: Path) -> dict[str, Any]:
    folder = out / "s"
    found = [one for one in read_lines(folder / "journal.jsonl") if one["kind"] == "measured"]
    database = (folder / "database_tuning_record.json").read_text("utf-8").splitlines()
    records = sorted(json.dumps(one["record"], sort_keys=True) for one in found)
    return {
        "trials": len(found),
        "programs": len({one["program_id"] for one in found}),
        "database": sorted(json.dumps(json.loads(line), sort_keys=True) for line in database)
        == records,
        "module": (folder / "module.so").is_file(),
        "best": json.loads((folder / "summary.json").read_text("utf-8"))["tasks"][0]["tuned_s"],
    }


def _study(out: Path) -> dict[str, Any]:
    study = existing_study(str(out / "a" / "journal.log"), None)
    done = [one for one in study.get_trials() if one.state.name == "COMPLETE"]
    trials = sorted((one.user_attrs["slot"], sorted(one.params.items()), one.values)
                    for one in done)  # fmt: skip
    best = yaml.safe_load((out / "a" / "best.yaml").read_text("utf-8"))
    return {"trials": trials, "best": best}


def _device(out: Path) -> dict[str, Any]:
    measured = sorted(_measured(out / "d/measurements/journal.jsonl"))
    return {"measured": measured, **_bytes_of("d/predictions.parquet")(out)}


COMMANDS = {
    "dataset extract": Command(
        _MAIN, ("dataset", "extract", "--dataset", "{data}", "--out", "{out}/x", "--jobs", "1"),
        "the tables, to the byte", _bytes_of("x/*.parquet"),
    ),
    "dataset extract, two processes": Command(
        _MAIN, ("dataset", "extract", "--dataset", "{data}", "--out", "{out}/x", "--jobs", "2"),
        "the tables, to the byte", _bytes_of("x/*.parquet"),
    ),
    "dataset fetch": Command(
        _MAIN, ("dataset", "fetch", _SOURCE, "--from", "{mirror}", "--cache", "{out}/c"),
        "all fetched records, to the byte",
        _bytes_of(f"c/fetched/{_SOURCE}/**/*", but=(FETCHED_FILE,)),
    ),
    "train": Command(
        _MAIN,
        ("train", "--dataset", "{data}", "--cache", "{out}/c", "--model", "gbdt", "--out",
         "{out}/run", "--jobs", "1", "--set", "baselines=[roofline]", "--set", "gbdt.trees=20"),
        "the trees and the predictions, to the byte",
        _bytes_of("run/trees*", "run/predictions.parquet"),
    ),
    "autotune": Command(
        _MAIN,
        ("autotune", "--dataset", "{data}", "--cache", "{out}/c", "--model", "gbdt", "--trials",
         "3", "--no-train", "--set", "train.gbdt.trees=5", "--set", "lease_s=1", "--jobs", "1",
         "--out", "{out}/a"),
        "the best settings; every trial once, with its settings and its error", _study,
    ),
    "autotune, two processes": Command(
        _MAIN,
        ("autotune", "--dataset", "{data}", "--cache", "{cache}", "--model", "gbdt", "--trials",
         "3", "--workers", "2", "--sampler", "random", "--no-train", "--set", "train.gbdt.trees=5",
         "--set", "lease_s=1", "--jobs", "1", "--out", "{out}/a"),
        "the same", _study,
    ),
    "measure": Command(
        _SMALL,
        ("measure", "--task", _TASK, "--per-task", "4", "--set", "batch=2", *_CPU, "--out",
         "{out}/m"),
        "the table of programs, to the byte; every program measured once, no line of the journal "
        "lost", _campaign, "m/journal.jsonl",
    ),
    "search": Command(
        _SMALL,
        ("search", "--task", _TASK, "--cost-model", "random", "--trials", "6",
         "--trials-per-round", "3", "--set", "population=8", "--set", "search_threads=1", *_CPU,
         "--out", "{out}/s"),
        "as many trials, all of other programs, no line of the journal lost; TVM's database holds "
        "them and no other; the time of the best one", _search, "s/journal.jsonl",
    ),
    "device add": Command(
        _SMALL,
        ("device", "add", "my-box", "--minutes", "5", "--threads", "2", "--dataset",
         "{setting}/tenset", "--from", "{setting}/model", "--per-task", "1", "--target",
         '{{"kind": "llvm", "mcpu": "core-avx2"}}', "--cache", "{cache}", "--out", "{out}/d"),
        "every program measured once, no line of the journal lost; the predictions, to the byte",
        _device, "d/measurements/journal.jsonl",
    ),
    "serve": Command(
        _SMALL, ("serve", "--model", "{model}", "--port", "{port}", "--runs", "{out}"),
        "the answer, to the byte, at the same port", _bytes_of("answer.json"),
    ),
}  # fmt: skip


@contextlib.contextmanager
def places(folder: Path) -> Iterator[Mapping[str, str]]:
    """Makes what the commands read: data, models and a mirror on this machine."""
    write_tiny_dataset(folder / "data")
    (folder / "setting").mkdir()
    make_setting(folder / "setting")
    write_model(folder / "model")
    archive = tar_of({
        f"TLCBench-{_COMMIT}/saved_logs/2020_01_11/autotvm/t4/{name}.kernel.log": log_lines(2000)
        for name in "abc"
    }, commit=_COMMIT)  # fmt: skip
    served = Served(archive, pause_s=0.02, piece=1 << 12)
    with serving({f"TLCBench-{_COMMIT}.tar.gz": served}) as mirror, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        yield {
            "data": str(folder / "data"), "setting": str(folder / "setting"),
            "cache": str(folder / "cache"), "model": str(folder / "model"), "mirror": mirror.url,
            "port": str(port),
        }  # fmt: skip
