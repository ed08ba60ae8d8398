"""Extraction and training on growing numbers of synthetic records: seconds and memory of each step.

Records are those of one shipped CPU with different split factors, unrolling pragmas and times;
additional tasks are renamed shipped ones. Each command runs in its own process and logs its steps;
this process polls its memory. Extraction and training are also killed and resumed, and training is
also run in two processes.
"""

from __future__ import annotations

import functools
import gzip
import importlib
import inspect
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.format import open_memmap

from cdmpp.files.atomic import sha256_file, write_json
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNT, LEAF_FEATURE_COUNT
from cdmpp.text import markdown_table
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

SHIPPED = ROOT / "data" / "tenset-cpu"
DEVICE = "xeon-avx512-2c"
#: Number of records to which measurements are extrapolated linearly.
GOAL_RECORDS = 10_000_000

_SPLIT = re.compile(r'\["SP", (\d+), (\d+), (\d+), \[([\d, ]+)\]')
_PRAGMA = re.compile(r"auto_unroll_max_step\$\d+")
_HASH = re.compile(r'^\(\["?([0-9a-f]{32})')
_DRAWS = 64
_POLL_S = 0.01
#: Shorter times are too noisy for a growth exponent.
_CLEAR_S = 0.3

#: Steps of the commands: (`module:function`, name of the step).
STEPS = (
    ("cdmpp.datasets.cache:_build", "write the arrays"),
    ("cdmpp.datasets.cache:load_samples", "load the arrays"),
    ("cdmpp.training.run:split_samples", "split"),
    ("cdmpp.models.parts.leaf_batches:Statistics.fit", "column statistics"),
    ("cdmpp.models.parts.latency_trainee:LatencyTrainee.batches", "order of an epoch"),
    ("cdmpp.models.parts.latency_trainee:LatencyTrainee.centre", "centre the outputs"),
    ("cdmpp.models.parts.latency_trainee:LatencyTrainee.validate", "validate"),
    ("cdmpp.models.transformer:TransformerCostModel._fingerprint", "fingerprint"),
    ("cdmpp.models.transformer:train_loop", "train an epoch"),
    ("cdmpp.models.loop.loop:save_checkpoint", "checkpoints"),
    ("cdmpp.models.transformer:TransformerCostModel.predict", "predict all parts"),
    ("cdmpp.training.run_folder:calibrate", "calibrate intervals"),
    ("cdmpp.training.run_folder:fit_transfer", "transfer between devices"),
    ("cdmpp.calibration.ood:TrainingTasks.fit", "where training tasks lie"),
    ("cdmpp.training.run:write_predictions", "write predictions"),
    ("cdmpp.models.gbdt:GbdtCostModel.fit", "gbdt baseline"),
    ("cdmpp.models.roofline:RooflineCostModel.fit", "roofline baseline"),
    ("cdmpp.training.run:judge_lines", "judge"),
    ("cdmpp.training.run:oracle_task_median", "oracle"),
    ("cdmpp.predict.estimates:TrainedModel.estimate", "intervals of the test part"),
    ("cdmpp.report.run_report:write_run_report", "report"),
)
_OTHER = "start and the rest"


def make_records(out: Path, *, records: int, tasks: int, seed: int = 0) -> None:
    """Writes a folder in Tenset's layout with records of one device, equally many per task.

    Each copy of a task rotates the hash in the task's name by a few digits.
    """
    rng = np.random.default_rng(seed)
    sources = sorted((SHIPPED / "measure_records" / DEVICE).iterdir())
    copies = -(-tasks // len(sources))
    folder = out / "measure_records" / DEVICE
    folder.mkdir(parents=True)
    _copy_tasks(out / "network_info", copies)
    splits = _Splits(rng)
    for number in range(tasks):
        copy, path = divmod(number, len(sources))
        source = sources[path]
        count = records // tasks + (number < records % tasks)
        lines = gzip.decompress(source.read_bytes()).decode().splitlines()
        parts = [parts for line in lines if (parts := _parts(line)) is not None]
        found = _HASH.match(source.name)
        assert found, source.name
        name = source.name.removesuffix(".gz").replace(found[1], _turned(found[1], copy))
        factors = rng.lognormal(0.0, 0.3, (count, 3))
        with (folder / name).open("w", encoding="utf-8") as stream:
            for place in range(count):
                program, seconds = parts[place % len(parts)]
                program = program.replace(found[1], _turned(found[1], copy))
                if place >= len(parts):
                    program = splits.other(program)
                costs = ", ".join(f"{seconds * factor:.6g}" for factor in factors[place])
                stream.write(f'{program}"r": [[{costs}], 0, 0.2, 1795257302], "v": "v0.6"}}\n')


def _copy_tasks(folder: Path, copies: int) -> None:
    folder.mkdir()
    for path in sorted((SHIPPED / "network_info").glob("((*.pkl.gz")):
        content = gzip.decompress(path.read_bytes())
        for copy in range(copies):
            name = path.name.replace(",", f"-{copy},", 1) if copy else path.name
            turned = re.sub(
                rb'(?<=\[")[0-9a-f]{32}(?=")',
                lambda found: _turned(found[0].decode(), copy).encode(),  # noqa: B023
                content,
            )
            (folder / name).write_bytes(gzip.compress(turned, 1))


def _turned(digest: str, digits: int) -> str:
    return digest[digits:] + digest[:digits]


def _parts(line: str) -> tuple[str, float] | None:
    """Returns the program part of a record line and mean seconds; None for failed records."""
    program, _, result = line.partition('"r": ')
    costs, error, *_ = json.loads(result[: result.index(', "v"')])
    return None if error else (program, float(np.mean(costs)))


class _Splits:
    """Draws new split factors: each prime factor of an extent goes to one of its loops."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._known: dict[tuple[int, int], list[str]] = {}
        self._numbers: list[int] = []

    def other(self, program: str) -> str:
        """Returns the program with other factors and another unrolling pragma."""
        unroll = f"auto_unroll_max_step${self._number() & 1023}"
        return _PRAGMA.sub(unroll, _SPLIT.sub(self._redrawn, program))

    def _redrawn(self, found: re.Match[str]) -> str:
        stage, loop, extent, lengths = found.groups()
        drawn = self._lengths(int(extent), lengths.count(",") + 1)
        return f'["SP", {stage}, {loop}, {extent}, [{drawn}]'

    def _lengths(self, extent: int, count: int) -> str:
        key = (extent, count)
        if key not in self._known:
            self._known[key] = [self._drawn(extent, count) for _ in range(_DRAWS)]
        return self._known[key][self._number() % _DRAWS]

    def _drawn(self, extent: int, count: int) -> str:
        lengths = [1] * (count + 1)  # includes the outer loop
        for factor in _prime_factors(extent):
            lengths[self._number() % (count + 1)] *= factor
        return ", ".join(map(str, lengths[1:]))

    def _number(self) -> int:
        if not self._numbers:
            self._numbers = self._rng.integers(0, 1 << 30, 4096).tolist()
        return self._numbers.pop()


@functools.cache
def _prime_factors(value: int) -> tuple[int, ...]:
    least = next((n for n in range(2, math.isqrt(value) + 1) if value % n == 0), value)
    return () if value < 2 else (least, *_prime_factors(value // least))


def command_here(log: str, words: Sequence[str]) -> None:
    """Runs `cdmpp WORDS`; logs the start of every step to a file, in monotonic and CPU seconds."""
    from cdmpp.cli.main import main

    with Path(log).open("w", encoding="utf-8", buffering=1) as stream:
        stack = [_OTHER]

        def note() -> None:
            stream.write(f"{time.monotonic()}\t{time.process_time()}\t{stack[-1]}\n")

        for place, name in STEPS if words[0] in ("train", "walk") else ():
            _watch(place, name, stack, note)
        note()
        code = walk_here(words[1]) if words[0] == "walk" else main(list(words))
        stack[:] = ["end"]
        note()
    sys.exit(code)


def walk_here(folder: str) -> int:
    """Runs the steps of a training that need no network, on the arrays of a folder."""
    from cdmpp.datasets import cache
    from cdmpp.devices.vector import device_vector
    from cdmpp.models.options import TransformerOptions
    from cdmpp.models.parts.latency_trainee import LatencyTrainee
    from cdmpp.models.parts.leaf_batches import Statistics, samples_digest
    from cdmpp.models.parts.normalise import Normalisation
    from cdmpp.training import run
    from cdmpp.training.options import TrainOptions

    samples = cache.load_samples(Path(folder))
    parts = run.split_samples(TrainOptions(), samples)
    train, validation, test = map(samples.take, (parts.train, parts.validation, parts.test))
    samples_digest(train)
    vectors = np.stack([device_vector(spec) for spec in samples.devices])
    leaf = Normalisation.fit(samples.programs.leaf_features[:1])
    trainee = LatencyTrainee(
        train, validation, Statistics(leaf, Normalisation.fit(vectors)), TransformerOptions(), 0
    )
    trainee.batches(0)
    del trainee
    noise = np.random.default_rng(0).lognormal(0.0, 0.3, len(samples))
    predicted_s = samples.latency_s * noise
    _step("cdmpp.training.run_folder:calibrate")(validation, predicted_s[parts.validation])
    _step("cdmpp.training.run:write_predictions")(
        Path(folder) / "predictions.parquet",
        [("train", train, predicted_s[parts.train]), ("test", test, predicted_s[parts.test])],
    )
    _step("cdmpp.training.run:judge_lines")(test, {"transformer": predicted_s[parts.test]})
    return 0


def make_arrays(folder: Path, *, records: int, tasks: int) -> None:
    """Writes arrays as an extraction and its cache would, with random names, tasks and times. All
    leaf columns are 0 and take no space on disk.
    """
    from cdmpp.datasets import cache
    from cdmpp.datasets.extraction.schema import schema_versions

    rng, data_hash = np.random.default_rng(0), f"{records:064d}"
    place = folder / f"cache-v{cache._CACHE_VERSION}-{data_hash[:32]}"
    place.mkdir(parents=True)
    schema = schema_versions()
    manifest = {"schema": schema, "data_hash": data_hash, "shards": []}
    write_json(folder / "manifest.json", manifest)
    leaves, digits = rng.integers(3, 5, records), b"0123456789abcdef"
    ids = np.frombuffer(digits, np.uint8)[rng.integers(0, 16, (records, 64), np.uint8)]
    offset, none = np.concatenate([[0], np.cumsum(leaves)]), np.zeros(records + 1, np.int64)
    latency_s = rng.lognormal(-7.0, 1.0, records)
    arrays = {
        "program_id": ids.view("S64")[:, 0], "task_id": np.arange(records) * tasks // records,
        "operator": np.zeros(records, np.int64), "flop_count": np.ones(records),
        "leaf_offset": offset, "tree_offset": none, "schedule_offset": none,
        "tree": np.zeros(0, np.int32), "schedule": np.zeros(0, np.uint8),
        "leaf_position": np.zeros(offset[-1], np.int32), "sample_program": np.arange(records),
        "sample_device": np.zeros(records, np.int64), "latency_s": latency_s,
        "latency_std_s": 0.01 * latency_s,
    }  # fmt: skip
    for name, values in arrays.items():
        np.save(place / f"{name}.npy", values)
    for name, width in (("leaf_features", LEAF_FEATURE_COUNT), ("leaf_extra", LEAF_EXTRA_COUNT)):
        shape = (int(offset[-1]), width)
        open_memmap(place / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape).flush()
    write_json(place / "meta.json", {
        "tasks": [f"task-{task}|llvm" for task in range(tasks)], "operators": ["conv2d"],
        "networks": [[] for _ in range(tasks)], "data_hash": data_hash,
        "feature_schema": {"leaf": schema["leaf"], "leaf_extra": schema["leaf_extra"]},
        "devices": {DEVICE: "llvm"},
    })  # fmt: skip


def walked(size: int, folder: Path, *, tasks: int) -> dict[str, Any]:
    """Measures `walk_here` on `size` records."""
    shutil.rmtree(folder, ignore_errors=True)
    make_arrays(folder, records=size, tasks=tasks)
    steps = measured(["walk", folder], folder / "log")
    shutil.rmtree(folder)
    return {"records": size, "steps": steps}


def _watch(place: str, name: str, stack: list[str], note: Callable[[], None]) -> None:
    """Replaces a function with one that logs when it begins and ends."""
    owner, last = _owner(place)
    work = getattr(owner, last)

    @functools.wraps(work)
    def watched(*arguments: Any, **options: Any) -> Any:
        stack.append(name)
        note()
        try:
            return work(*arguments, **options)
        finally:
            stack.pop()
            note()

    setattr(owner, last, staticmethod(watched) if inspect.ismethod(work) else watched)


def _owner(place: str) -> tuple[Any, str]:
    """Returns the owner (module or class) of `module:name` or `module:class.name`, and the name."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    return owner, last


def _step(place: str) -> Callable[..., Any]:
    """Returns a function of `STEPS` in its watched version."""
    found: Callable[..., Any] = getattr(*_owner(place))
    return found


def measured(words: Sequence[object], log: Path, *, show: bool = True) -> dict[str, dict[str, Any]]:
    """Runs a command of cdmpp and returns step -> `wall_s`, `cpu_s`, `anonymous` and `resident`:
    peak bytes without and with mapped files. `whole` is the whole command.

    Raises:
        CalledProcessError: it fails.
    """
    process = start(words, log)
    memory: list[tuple[float, int, int]] = []
    thread = threading.Thread(target=_poll, args=(process.pid, memory))
    thread.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    thread.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(map(str, words)))
    steps = summed(log.read_text("utf-8").splitlines(), memory)
    steps["whole"]["cpu_s"] = usage.ru_utime + usage.ru_stime
    if show:
        print(json.dumps({"words": list(map(str, words)), **steps}), file=sys.stderr, flush=True)
    return steps


def start(words: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
    """Starts a command of cdmpp through `command_here`."""
    call = json.dumps([str(log), list(map(str, words))])
    place = f"{__name__}:command_here"
    return subprocess.Popen(
        [sys.executable, "-m", "lab.shell", place, call], cwd=ROOT, stdout=subprocess.DEVNULL
    )


def _poll(pid: int, found: list[tuple[float, int, int]]) -> None:
    """Logs (monotonic seconds, anonymous bytes, resident bytes) while a process lives."""
    page = resource.getpagesize()
    path = Path(f"/proc/{pid}/statm")
    while True:
        try:
            _, resident, shared, *_ = path.read_text().split()
        except (OSError, ValueError):
            return
        if not int(resident):  # the process has ended
            return
        mine = (int(resident) - int(shared)) * page
        found.append((time.monotonic(), mine, int(resident) * page))
        time.sleep(_POLL_S)


def summed(
    lines: Sequence[str], memory: Sequence[tuple[float, int, int]]
) -> dict[str, dict[str, Any]]:
    """Returns the result of `measured` from the logs of a command and of its memory."""
    notes = [line.split("\t") for line in lines]
    times = np.array([float(note[0]) for note in notes])
    found: dict[str, dict[str, Any]] = {}
    empty = {"wall_s": 0.0, "cpu_s": 0.0, "anonymous": 0, "resident": 0}
    for now, after in pairwise(notes):
        step = found.setdefault(now[2], dict(empty))
        step["wall_s"] += float(after[0]) - float(now[0])
        step["cpu_s"] += float(after[1]) - float(now[1])
    found["whole"] = {**empty, "wall_s": float(times[-1] - times[0])}
    at = np.searchsorted(times, [one[0] for one in memory], side="right") - 1
    for place, (_, mine, resident) in zip(at.tolist(), memory, strict=True):
        name = notes[place][2] if place >= 0 else _OTHER
        for step in (found["whole"], found.get(name, found["whole"])):
            step["anonymous"] = max(step["anonymous"], mine)
            step["resident"] = max(step["resident"], resident)
    return found


def killed(words: Sequence[object], log: Path, is_time: Callable[[], bool]) -> None:
    """Starts a command and kills it once `is_time` is true.

    Raises:
        CalledProcessError: it ended before.
    """
    process = start(words, log)
    while process.poll() is None:
        if is_time():
            process.send_signal(signal.SIGKILL)
            process.wait()
            return
        time.sleep(_POLL_S)
    raise subprocess.CalledProcessError(process.returncode, list(map(str, words)))


def extract_words(folder: Path, out: Path) -> list[object]:
    """Returns the arguments of an extraction in one process."""
    return ["dataset", "extract", "--dataset", folder, "--out", out, "--jobs", 1, "--quiet"]


def train_words(extracted: Path, out: Path, baselines: str) -> list[object]:
    """Returns the arguments of a training of one epoch."""
    return [
        "train", "--dataset", extracted, "--out", out, "--quiet", "--from-scratch",
        "--set", "transformer.loop.epochs=1", "--set", "transformer.loop.checkpoint_every=40",
        "--set", f"baselines=[{baselines}]",
    ]  # fmt: skip


def measure(size: int, folder: Path, *, tasks: int, baselines: str) -> dict[str, Any]:
    """Generates, extracts and trains; leaves the data in place."""
    records, extracted, run = (folder / name for name in ("records", "extracted", "run"))
    folder.mkdir(parents=True, exist_ok=True)

    def extract() -> dict[str, Any]:
        shutil.rmtree(records, ignore_errors=True)
        make_records(records, records=size, tasks=tasks)
        steps = measured(extract_words(records, extracted), folder / "log")
        manifest = json.loads((extracted / "manifest.json").read_text("utf-8"))
        return {"steps": steps, "data_hash": manifest["data_hash"]}

    def train() -> dict[str, Any]:
        steps = measured(train_words(extracted, run, baselines), folder / "log")
        return {"steps": steps, "weights": weights_hash(run)}

    found = {"records": size, "extract": kept(folder / "extract.json", extract)}
    return {**found, "train": kept(folder / "train.json", train)}


def kept(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the result of `work`, from its file if it exists."""
    if not path.is_file():
        write_json(path, work())
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def weights_hash(run: Path) -> str:
    """Returns the digest of the weights of a run."""
    return sha256_file(next(run.glob("*.safetensors")))


def resumed(folder: Path, whole: dict[str, Any], baselines: str) -> dict[str, Any]:
    """Kills an extraction and a training after half of their work, and resumes both."""
    again, run = folder / "again", folder / "run-again"
    words = extract_words(folder / "records", again)
    shards = len(list((folder / "extracted").glob("shard-*.json")))
    killed(words, folder / "log", lambda: len(list(again.glob("shard-*.json"))) >= shards // 2)
    kept = len(list(again.glob("shard-*.json")))
    rest = measured(words, folder / "log")
    data_hash = json.loads((again / "manifest.json").read_text("utf-8"))["data_hash"]
    found = {
        "extract": {
            "kept": kept, "of": shards, "cpu_s": rest["whole"]["cpu_s"],
            "whole_cpu_s": whole["extract"]["steps"]["whole"]["cpu_s"],
            "is_same": data_hash == whole["extract"]["data_hash"],
        }
    }  # fmt: skip
    shutil.rmtree(again)
    steps = _last_step(folder / "run")
    words = train_words(folder / "extracted", run, baselines)
    killed(words, folder / "log", lambda: _last_step(run) >= steps // 2)
    kept = _last_step(run)
    rest = measured(words, folder / "log")
    found["train"] = {
        "kept": kept, "of": steps, "cpu_s": rest["whole"]["cpu_s"],
        "whole_cpu_s": whole["train"]["steps"]["whole"]["cpu_s"],
        "is_same": weights_hash(run) == whole["train"]["weights"],
    }  # fmt: skip
    shutil.rmtree(run)
    return found


def _last_step(run: Path) -> int:
    names = [path.name for path in (run / "checkpoints").glob("step-????????")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def in_two(folder: Path, baselines: str) -> dict[str, Any]:
    """Trains in two processes under torchrun; returns their errors and those of one process."""
    run = folder / "run-two"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words = [str(word) for word in train_words(folder / "extracted", run, baselines)[1:]]
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [*launcher, "--nproc-per-node=2", "scripts/train.py", *words],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict[str, Any] = {
        "wall_s": time.monotonic() - began,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    for name, place in (("one", folder / "run"), ("two", run)):
        metrics = json.loads((place / "metrics.json").read_text("utf-8"))
        log = json.loads((place / "log.jsonl").read_text("utf-8").splitlines()[-1])
        found[name] = {
            "mape": metrics["test"]["transformer"]["mape"],
            "validation_loss": log["validation_loss"],
            "steps": log["step"],
        }
    shutil.rmtree(run)
    return found


def experiment(
    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000),
    walks: tuple[int, ...] = (100_000, 1_000_000, 10_000_000),
    tasks: int = 800,
    checked: int = 100_000,
    baselines: str = "roofline,constant",
    folder: str = "runs/scale",
) -> None:
    """Measures all sizes and writes the page.

    Args:
        sizes: numbers of records.
        walks: numbers of records with synthetic arrays, for the steps that need no network.
        tasks: number of tasks.
        checked: size at which commands are killed and two processes train.
        baselines: models trained beside the transformer.
        folder: for the data, 6 KB per record; removed at the end. Measured sizes are not rerun.
    """
    place = Path(folder).resolve()
    result: dict[str, Any] = {"tasks": tasks, "baselines": baselines, "sizes": [], "walks": []}
    for size in walks:
        found = kept(
            place / f"walk-{size}.json",
            lambda: walked(size, place / "arrays", tasks=tasks),  # noqa: B023
        )
        result["walks"].append(found)
    for size in sizes:
        own = place / str(size)
        found = measure(size, own, tasks=tasks, baselines=baselines)
        if size == checked:
            found["resumed"] = kept(own / "resumed.json", lambda: resumed(own, found, baselines))  # noqa: B023
            found["in_two"] = kept(own / "two.json", lambda: in_two(own, baselines))  # noqa: B023
        for name in ("records", "extracted", "run"):
            shutil.rmtree(own / name, ignore_errors=True)
        result["sizes"].append(found)
    found_stamp = stamp("python -m lab run scale", schemas=PROGRAMS)
    print(write_page("scale", report_text(result), result, found_stamp))
    shutil.rmtree(place)


def exponent(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Returns the exponent of growth between two (records, value) pairs; 1 is linear."""
    return math.log(large[1] / small[1]) / math.log(large[0] / small[0])


def report_text(result: dict[str, Any]) -> str:
    """Returns the Markdown page of a result."""
    sizes: list[dict[str, Any]] = result["sizes"]
    names = list(dict.fromkeys(name for one in sizes for name in one["train"]["steps"]))
    rows = [("extract", "extraction", "whole"), ("train", "training, all steps", "whole")]
    rows += [("train", name, name) for name in names if name != "whole"]
    runs = [
        (label, [(one["records"], one[command]["steps"]) for one in sizes], step)
        for command, label, step in rows
    ]
    walks = [(one["records"], one["steps"]) for one in result["walks"]]
    walked_names = dict.fromkeys(name for _, steps in walks for name in steps if name != _OTHER)
    found = {
        "steps": _table(runs),
        "made-up arrays": _table([(name, walks, name) for name in walked_names]),
        "checks": _checks(sizes),
    }
    return sections("scale", **{name: text for name, text in found.items() if text})


#: (records, step -> measurements) for each number of records.
_Runs: TypeAlias = Sequence[tuple[int, dict[str, Any]]]


def _table(rows: Sequence[tuple[str, _Runs, str]]) -> str:
    """Returns (label, runs, step) as a table; empty if nothing was measured."""
    if not rows or not rows[0][1]:
        return ""
    head = ["step"]
    for records, _ in rows[0][1]:
        head += [f"CPU s at {records:,}", f"MB at {records:,}"]
    head += ["growth of CPU", f"CPU h at {GOAL_RECORDS:,}"]
    return markdown_table(head, [[label, *_cells(runs, step)] for label, runs, step in rows])


def _cells(runs: _Runs, step: str) -> Iterator[str]:
    known = [(records, own[step]) for records, own in runs if step in own]
    by_size = dict(known)
    for records, _ in runs:
        value = by_size.get(records)
        yield "" if value is None else f"{value['cpu_s']:.1f}"
        yield "" if value is None else f"{value['anonymous'] / 1e6:,.0f}"
    (small, before), (large, after) = known[-2:] if len(known) > 1 else (known[0], known[0])
    if small == large:
        yield from ("", "")
        return
    is_clear = min(before["cpu_s"], after["cpu_s"]) > _CLEAR_S
    grown = exponent((small, before["cpu_s"]), (large, after["cpu_s"])) if is_clear else 0.0
    yield f"{grown:.2f}" if is_clear else ""
    slope = (after["cpu_s"] - before["cpu_s"]) / (large - small)
    yield f"{max(after['cpu_s'] + slope * (GOAL_RECORDS - large), 0.0) / 3600.0:.2f}"


def _checks(sizes: Sequence[dict[str, Any]]) -> str:
    rows = []
    for one in sizes:
        records = f"{one['records']:,}"
        for name, found in one.get("resumed", {}).items():
            same = "the same bytes" if found["is_same"] else "other bytes"
            rows.append([
                records, f"{name} killed with SIGKILL, continued",
                f"{found['kept']:,} of {found['of']:,}", f"{found['cpu_s']:.1f}",
                f"{found['whole_cpu_s']:.1f}", same,
            ])  # fmt: skip
        if two := one.get("in_two"):
            alone = one["train"]["steps"]["whole"]
            rows.append([
                records, "two processes under torchrun", "", f"{two['cpu_s']:.1f}",
                f"{alone['cpu_s']:.1f}",
                f"MAPE {two['two']['mape']:.4f} against {two['one']['mape']:.4f}",
            ])  # fmt: skip
    return markdown_table(
        ["records", "check", "kept", "CPU s", "undisturbed CPU s", "result"], rows
    )
