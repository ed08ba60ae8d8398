"""What every command, the Python API and the server answer, kept to be compared.

`python -m lab.experiments.same_answers record|compare|speed ...`:

`record OUT.json` asks a checkout (`--checkout DIR`, this one when left out) on small inputs and
keeps exit codes and JSON, the files that were written, the bytes of a training (seed 0), of the
shipped model's predictions and of feature columns. `compare BEFORE.json AFTER.json` lists what
differs and ends with code 1 where anything does; `--renamed FILE` (JSON or YAML, old name: new
name) names case names, keys and texts that were renamed on purpose. `speed BEFORE_DIR AFTER_DIR`
times extraction and scoring in both checkouts in turn and prints their ratio.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import yaml

from tests.paths import ROOT

#: JSON keys, alone or behind the key above, whose values are of the moment or of the machine.
_PASSING = frozenset((
    "loaded_at", "predictions_per_s", "request_id", "samples_per_s", "stamp/commit", "training_s",
    "uptime_s", "versions",
))  # fmt: skip
_CASES = Path(__file__).with_suffix(".txt")
_INSIDE = Path(__file__).with_name("same_answers_inside.py")
_DEVICES = ("epyc-avx2-1c", "xeon-avx2-1c")
_TASK_FILES = 12
#: Options whose value a case writes; a later case that names the value waits for the first.
_WRITING = ("--out", "--cache", "--save-overheads", "--run")
_SHARED = {
    "SMALL": "--dataset extracted --cache cache --jobs 1 -q",
    "TUNING": "--set finetune.steps=6 --set finetune.validate_every=3 --set finetune.folds=2",
    "ALONE": "--set baselines=[constant]",
    "LAYER": "--layer 1,64,56,64,3 --layer 32,64,56,128,3,1,1 --device t4",
    "NETWORK": "--network net.pt2 --device epyc-avx512-1c",
    "TORCH": "--torch net.py:net --input 3x32x32",
    "LLM": "layers=4,width=1024,heads=16,kv_heads=4,ffn=4096,vocab=32000",
}


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

if __name__ == "__main__":
    torch.manual_seed(0)
    program = torch.export.export(net().eval(), (torch.zeros(1, 3, 32, 32),))
    torch.export.save(program, "net.pt2")
"""
_BOARD = """
common: {kind: cpu}
devices:
  my-board:
    vendor: {value: Example, source: data sheet}
    core_count: {value: 4, source: data sheet}
    threads: {value: 1, source: how it is used}
    clock_hz: {value: 2.0e9, source: data sheet}
    simd_bits: {value: 128, source: data sheet}
    peak_fp32_flop_per_s: {value: 1.6e10, source: 2 x 4 lanes x clock}
    mem_bandwidth_bytes_per_s: {value: 1.2e10, source: data sheet}
"""
_PRICES = """
{provider: Mine, region: here, currency: USD, date: 2026-05-01, source: my contract,
 devices: {h100: {per_hour: 99}, l40s: {per_hour: 0.5}}}
"""
_TRACE_HEAD = (
    "Start,Duration,Grid X,Grid Y,Grid Z,Block X,Block Y,Block Z,Registers Per Thread,Static SMem,"
    "Dynamic SMem,Size,Throughput,Device,Context,Stream,Name,Correlation_ID"
)
_KERNEL = "maxwell_scudnn_128x64_relu_interior_nn"
_NVPROF = f"""==7== Profiling result:
{_TRACE_HEAD}
ms,us,,,,,,,,KB,B,MB,GB/s,,,,,
2.0,1000.0,784,2,1,256,1,1,80,8.0,0,,,TITAN Xp (0),1,7,{_KERNEL} [12],12
3.0,500.0,196,4,1,256,1,1,80,8.0,0,,,TITAN Xp (0),1,7,{_KERNEL} [19],19
"""
_METRICS = f"""==9== Profiling result:
Device,Context,Stream,Kernel,inst_fp_32,dram_read_transactions,dram_write_transactions,\
single_precision_fu_utilization,dram_utilization
TITAN Xp (0),1,7,{_KERNEL} [12],1000000,2000,3000,High (8),Low (2)
TITAN Xp (0),1,7,{_KERNEL} [19],4000000,5000,6000,Mid (5),High (9)
"""
_ERROR = {"mape": 0.4, "mape_low": 0.3, "mape_high": 0.5, "median_ape": 0.3, "median_ratio": 1.1,
          "spearman_by_task": 0.8, "mean_log_error": 0.3}  # fmt: skip
_CURVE = {
    "device": "mine", "minutes": 5.0, "knee": {"tasks": 3, "rule": "within 10 %"}, "compiled": None,
    "rows": [{"tasks": n, "pretrained": _ERROR, "one_factor": _ERROR, "scratch": None,
              "trees": None} for n in (0, 1, 3)],
    "measured": {"test": {"programs": 9, "tasks": 3}, "learn": {"programs": 9, "tasks": 3}},
    "oracle": {"mape": 0.5, "median_ape": 0.4}, "seconds": {"total": 100.0}, "doubts": [],
    "interval": {"coverage": 0.8, "nominal": 0.9}, "machine": {}, "versions": {}, "spec": {},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One command, run in a folder that all cases share."""

    name: str
    words: tuple[str, ...]
    is_json: bool


def cases() -> Iterator[Case]:
    """Yields the commands in the order in which they are begun."""
    kind = ""
    for line in _CASES.read_text().replace("\n  ", " ").splitlines():
        if line.startswith("["):
            kind = line[1 : line.index("]")]
        elif line and not line.startswith("#"):
            words = [part for word in line.split() for part in _SHARED.get(word, word).split()]
            words = [word.replace("LLM", _SHARED["LLM"]) for word in words]
            is_json = kind in ("json", "maintainers")
            yield Case(f"{kind}: {line}", (*words, *["--json"] * is_json), is_json)


def prepare(work: Path, checkout: Path) -> None:
    """Writes the inputs of the cases, the same whatever the checkout's code is."""
    for name in ("data", "configs", "examples"):
        (work / name).symlink_to(checkout / name)
    source = checkout / "data" / "tenset-cpu"
    for device in _DEVICES:
        folder = work / "small" / "measure_records" / device
        folder.mkdir(parents=True)
        for path in sorted((source / "measure_records" / device).iterdir())[:_TASK_FILES]:
            shutil.copy(path, folder)
    for path in source.glob("machine_code*"):
        shutil.copy(path, work / "small")
    shutil.copytree(source / "network_info", work / "small" / "network_info")
    _first_lines(min((work / "small" / "measure_records" / _DEVICES[0]).iterdir()), 8,
                 work / "records.json.gz")  # fmt: skip
    shutil.copy(source / "network_info" / "((dcgan,[(1,3,64,64)]),llvm).task.pkl.gz", work)
    for name, text in (
        ("program.py", _PROGRAM), ("net.py", _NETWORK), ("board.yaml", _BOARD),
        ("prices.yaml", _PRICES), ("nvprof.csv", _NVPROF), ("metrics.csv", _METRICS),
        ("trace.json", json.dumps({"traceEvents": list(_trace_events())})),
    ):  # fmt: skip
        (work / name).write_text(text)
    subprocess.run([sys.executable, "net.py"], cwd=work, check=True, capture_output=True)
    (work / "added").mkdir()
    (work / "bench").mkdir()
    (work / "added" / "curve.json").write_text(json.dumps(_CURVE))
    with tarfile.open(checkout / "data" / "zen5-kernels" / "campaign.tar.xz") as campaign:
        campaign.extractall(work / "campaign", filter="data")
    journal = work / "campaign" / "journal.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(True)[:300]))
    golden = ROOT.parent / "shared" / "data" / "golden" / "golden_llvm.jsonl.gz"
    if golden.is_file():
        _first_lines(golden, 40, work / "golden.jsonl.gz")
    _write_tables(work, checkout)
    _write_analytic(work)


def _first_lines(path: Path, count: int, out: Path) -> None:
    with gzip.open(path) as lines, gzip.open(out, "wb") as file:
        file.writelines(line for line, _ in zip(lines, range(count), strict=False))


def _write_tables(work: Path, checkout: Path) -> None:
    import pyarrow.parquet as pq

    (work / "kernels").mkdir()
    for path in sorted((checkout / "data" / "gpu-kernels").glob("*.parquet")):
        table = pq.read_table(path)
        pq.write_table(table.take(list(range(0, len(table), len(table) // 400))),
                       work / "kernels" / path.name)  # fmt: skip
    few, networks = work / "few-networks", checkout / "data" / "networks-cpu"
    few.mkdir()
    graphs = pq.read_table(networks / "graphs.parquet").slice(0, 80)
    chosen = set(graphs["graph_id"].to_pylist())
    labels = pq.read_table(networks / "labels.parquet")
    rows = [row for row, key in enumerate(labels["graph_id"].to_pylist()) if key in chosen]
    pq.write_table(graphs, few / "graphs.parquet")
    pq.write_table(labels.take(rows), few / "labels.parquet")
    manifest = json.loads((networks / "manifest.json").read_text())
    manifest["sha256"] = {name: _digest((few / name).read_bytes()) for name in manifest["sha256"]}
    (few / "manifest.json").write_text(json.dumps(manifest))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_csv(path: Path, head: str, rows: Iterator[tuple[Any, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(","), *rows])


def _write_analytic(work: Path) -> None:
    """Writes tables of operators, convolution layers and kernels with times that a formula made."""
    (work / "operators").mkdir()
    devices = {"Tesla T4": 1.0, "Tesla V100-PCIE-32GB": 2.0, "NVIDIA H100 80GB HBM3": 4.0}
    sizes = (32, 96, 256, 700, 2048, 4096)
    for op in ("bmm", "linear"):
        _write_csv(work / "operators" / f"{op}.csv", "device,op,batch,m,n,k,latency_ms", (
            (device, op, b, m, n, k, 0.01 + 2e-10 * b * m * n * k / fast * (1 + 30 / (m + n)))
            for device, fast in devices.items()
            for b, m, n, k in product((1, 4) if op == "bmm" else (1,), sizes, sizes, (64, 900))
        ))  # fmt: skip
    for table, ops in (("elementwise", ("add", "relu", "mul")), ("softmax", ("softmax",)),
                       ("ln", ("ln",))):  # fmt: skip
        _write_csv(work / "operators" / f"{table}.csv", "device,op,rows,cols,latency_ms", (
            (device, op, rows, cols, 0.01 + (2e-8 + 1e-9 * number) * rows * cols / fast)
            for device, fast in devices.items() for number, op in enumerate(ops)
            for rows, cols in product((64, 512, 3000, 16384, 65536), sizes)
        ))  # fmt: skip
    (work / "operators" / "peers").mkdir()
    head = "device,model,batch,seq,phase,repeat,op_class,op,shape,input_shapes,output_shape,"
    peers = "measured_ms,neusight_ms,roofline_ms,habitat_ms,li_ms"
    _write_csv(work / "operators" / "peers" / "op_instances.csv", head + peers, (
        (device, "bert", 1, 128, "inference", 2, "linear", "linear",
         f"batch=1;m={size};n=512;k=1024", f"1x{size}x1024", f"1x{size}x512",
         *(factor * (0.02 + 1e-4 * size) for factor in (1, 1.1, 0.5, 1.3, 0.9)))
        for device in devices for size in sizes
    ))  # fmt: skip
    layers = [
        (16, ci, w, co, w // s, k, s, k // 2)
        for ci, w, co, k, s in product((16, 64, 160, 512), (14, 28, 100), (24, 128, 400), (1, 3, 5),
                                       (1, 2))
    ]  # fmt: skip
    shape = "batch,in_channels,in_width,out_channels,out_width,kernel,stride,padding"
    _write_csv(work / "layers.csv", f"device,{shape},algorithm,time_ms", (
        (device, *layer, "winograd" if layer[5:7] == (3, 1) else "implicit_precomp_gemm",
         0.005 + _macs(layer) * 1e-10 / fast * (1 + 9 / layer[1]))
        for device, fast in (("t4", 1.0), ("v100", 2.0)) for layer in layers
    ))  # fmt: skip
    (work / "workbooks").mkdir()
    head = f"{shape},algo_cudnn,time_ms,fp32_instructions,dram_reads,dram_writes,resident,blocks,"
    for sheet, rows in (("train", layers[::2]), ("test", layers[1::2])):
        for name in ("algo0_64x128", "algo5"):
            _write_csv(work / "workbooks" / f"{name}.{sheet}.csv",
                       f"{head}waves,fp32_level,dram_level", (
                (*layer, int(name[4]), *_counters(layer, name == "algo5")) for layer in rows
            ))  # fmt: skip


def _counters(layer: tuple[int, ...], has_times_only: bool) -> tuple[Any, ...]:
    """Returns time, counters and levels of a layer on a made-up GPU that holds 60 blocks."""
    blocks = -(-layer[0] * layer[4] ** 2 // 64) * -(-layer[3] // 128)
    work = 900 * layer[1] * layer[5] ** 2
    time_ms = 0.01 + -(-blocks // 60) * (60e-8 * work + 0.002)
    if has_times_only:
        return (time_ms, *[""] * 8)
    compute = layer[1] > 100
    return (time_ms, work * blocks, 3 * work * blocks / 900, 100 * blocks, 60, blocks,
            -(-blocks // 60), *((9, 3) if compute else (4, 9)))  # fmt: skip


def _macs(layer: tuple[int, ...]) -> float:
    n, ci, _, co, width, kernel, _, _ = layer
    return n * ci * co * width**2 * kernel**2


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


class Recorder:
    """What a checkout answers.

    Args:
        work: folder of the inputs and of what the cases write.
        checkout: whose code runs.
    """

    def __init__(self, work: Path, checkout: Path) -> None:
        self._work, self._checkout = work, checkout
        self._runners: SimpleQueue[subprocess.Popen[str]] = SimpleQueue()

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Begins `python WORDS...` on the checkout's code."""
        environment = os.environ | {
            "PYTHONPATH": str(self._checkout), "OMP_NUM_THREADS": "1", "COLUMNS": "100",
            "PYTHONHASHSEED": "0",
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, *words], cwd=self._work, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr,
        )  # fmt: skip

    def lasting(self, value: Any) -> Any:
        """Returns a value without what is of the moment or the place."""
        places = {str(self._work): "WORK", str(self._checkout): "CHECKOUT"}
        return renamed(_lasting(value), places)

    def commands(self, chosen: list[Case], jobs: int) -> dict[str, Any]:
        """Returns what the commands answer; one begins when those have ended that write its input.

        Args:
            jobs: commands at a time.
        """
        runners = [self.begin(str(_INSIDE), "commands") for _ in range(jobs)]
        for runner in runners:
            self._runners.put(runner)
        begun: dict[str, Future[dict[str, Any]]] = {}
        writing: dict[str, Future[dict[str, Any]]] = {}
        with ThreadPoolExecutor(jobs) as pool:
            for case in chosen:
                awaited = [writing[word] for word in case.words if word in writing]
                begun[case.name] = pool.submit(self._ask, case, awaited)
                for option, value in zip(case.words, case.words[1:], strict=False):
                    if option in _WRITING:
                        writing.setdefault(value, begun[case.name])
        for runner in runners:
            runner.communicate()
        return {name: one.result() for name, one in begun.items()}

    def _ask(self, case: Case, awaited: list[Future[Any]]) -> dict[str, Any]:
        for one in awaited:
            one.result()
        runner, start = self._runners.get(), time.perf_counter()
        assert runner.stdin is not None is not runner.stdout
        print(json.dumps(case.words), file=runner.stdin, flush=True)
        code, answer, error = json.loads(runner.stdout.readline())
        self._runners.put(runner)
        print(f"{code} {time.perf_counter() - start:5.1f} s  {case.name}", file=sys.stderr)
        found = {"exit": code, "answer": answer}
        if code:
            found["error"] = error.strip().splitlines()[-1:]
        elif case.is_json:
            found["answer"] = json.loads(answer)
        return self.lasting(found)

    def inside(self) -> dict[str, Any]:
        """Returns what the Python API answers, and digests of predictions and columns."""
        return self.lasting(json.loads(self.begin(str(_INSIDE), "answers").communicate()[0]))

    def served(self) -> dict[str, Any]:
        """Returns status and answer of every route of a server of the shipped model."""
        server = self.begin("-m", "cdmpp.cli.main", "serve", "--port", "0", "--json", "-q",
                            "--runs", ".", "--results", "bench")  # fmt: skip
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            network = (self._work / "net.pt2").read_bytes()
            kept = _fetch(url, "/v1/networks", network)
            key = kept["answer"].get("network") if isinstance(kept["answer"], dict) else None
            found = {"0 /v1/networks": kept}
            for route, body in _routes(key):
                text = None if body is None else json.dumps(body).encode()
                found[f"{len(found)} {route}"] = _fetch(url, route, text)
            answers: dict[str, Any] = renamed(self.lasting(found), {str(key): "KEY"})
            return answers
        finally:
            server.terminate()
            server.communicate(timeout=600)


def _routes(network: str | None) -> Iterator[tuple[str, dict[str, Any] | None]]:
    program = {"tvmscript": _PROGRAM.partition("\n\n")[2]}
    serial = {"tvmscript": program["tvmscript"].replace("T.parallel", "T.serial")}
    devices = ["epyc-avx2-2c", "t4"]
    for path in ("/", "/healthz", "/v1/models", "/v1/devices", "/v1/results", "/v1/runs",
                 "/v1/runs/compared?run=model&run=gbdt", "/static/style.css", "/openapi.json",
                 "/nowhere"):  # fmt: skip
        yield path, None
    yield "/v1/predict", {"programs": [program], "devices": devices}
    yield "/v1/predict", {"programs": [program], "devices": ["v10O"]}
    yield "/v1/predict", {"programs": [{"tvmscript": "nonsense"}], "devices": devices}
    yield "/v1/predict", {"programms": []}
    yield "/v1/explain", {"programs": [program], "devices": devices}
    yield "/v1/rank", {"programs": [serial, program], "device": "epyc-avx2-2c"}
    yield "/v1/network", {"network": network, "devices": ["epyc-avx512-1c"]}
    yield "/v1/network", {"network": "0" * 64, "devices": ["epyc-avx512-1c"]}
    yield (
        "/v1/compare",
        {"transformers": [_SHARED["LLM"]], "prefill": [512], "devices": ["h100", "a100"]},
    )


def _fetch(url: str, route: str, body: bytes | None) -> dict[str, Any]:
    is_file = route == "/v1/networks"
    kind = "application/octet-stream" if is_file else "application/json"
    request = urllib.request.Request(url + route, body, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            status, content = reply.status, reply.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    try:
        answer = json.loads(content)
    except ValueError:
        answer = _digest(content)
    if route == "/openapi.json":  # without the texts
        schemas = answer["components"]["schemas"]
        answer = {"paths": {path: sorted(ways) for path, ways in answer["paths"].items()},
                  "schemas": {name: sorted(schema.get("properties", ()))
                              for name, schema in schemas.items()}}  # fmt: skip
    return {"status": status, "answer": answer}


def record(checkout: Path, only: str | None, jobs: int) -> dict[str, Any]:
    """Returns what a checkout answers."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        prepare(work, checkout)
        recorder = Recorder(work, checkout)
        chosen = [case for case in cases() if not only or re.search(only, case.name)]
        answers = recorder.commands(chosen, jobs) if chosen else {}
        for name, ask in (("api", recorder.inside), ("server", recorder.served)):
            if not only or re.search(only, name):
                answers[name] = ask()
        answers["files"] = sorted(
            str(path.relative_to(work)) for path in work.rglob("*")
            if path.is_file() and not {"__pycache__", "cache"} & set(path.parts)
        )  # fmt: skip
        answers["bytes of a training"] = {
            str(path.relative_to(work)): _digest(path.read_bytes())
            for path in sorted(work.glob("*/*.safetensors"))
        }
    return answers


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
    elif before != after or type(before) is not type(after):
        yield f"{place}: {str(before)[:300]!r} is now {str(after)[:300]!r}"


def _lasting(value: Any, above: str = "") -> Any:
    if isinstance(value, dict):
        return {
            key: "PASSING" if {key, f"{above}/{key}"} & _PASSING else _lasting(v, key)
            for key, v in value.items()
        }
    return [_lasting(v, above) for v in value] if isinstance(value, list) else value


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Returns an answer with new names for old ones, in keys and texts; of a key that is there
    under both names, the new one is kept.
    """
    if isinstance(value, dict):
        return {
            _text(key, names): renamed(v, names) for key, v in value.items()
            if names.get(key) not in value
        }  # fmt: skip
    if isinstance(value, list):
        return [renamed(v, names) for v in value]
    return _text(value, names) if isinstance(value, str) else value


def _text(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def speed(before: Path, after: Path, pairs: int) -> Iterator[str]:
    """Yields the median rates of two checkouts, timed in turn, and the median of their ratios."""
    rates: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        works = []
        for side, checkout in (("before", before), ("after", after)):
            work = Path(folder).resolve() / side
            work.mkdir()
            prepare(work, before)
            works.append(Recorder(work, checkout))
        for number in range(pairs + 1):
            found = []
            for one in works if number % 2 else works[::-1]:
                found.append(json.loads(one.begin(str(_INSIDE), "speed").communicate()[0]))
            if number:  # the first pair compiles and fills caches
                first, second = found if number % 2 else found[::-1]
                for name, rate in first.items():
                    rates.setdefault(name, []).append((rate, second[name]))
    for name, both in rates.items():
        old, new = (statistics.median(side) for side in zip(*both, strict=True))
        ratio = statistics.median(b / a for a, b in both)
        yield f"{name}: {old:.1f} before, {new:.1f} after, ratio {ratio:.3f} of {len(both)} pairs"


def main() -> int:
    """Records, compares or times."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--checkout", type=Path, default=ROOT)
    recording.add_argument("--only", metavar="PATTERN", help="of the cases' names")
    recording.add_argument("--jobs", type=int, default=1, metavar="N")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--renamed", type=Path, metavar="FILE")
    timing = commands.add_parser("speed")
    timing.add_argument("before", type=Path)
    timing.add_argument("after", type=Path)
    timing.add_argument("--pairs", type=int, default=5, metavar="N")
    args = parser.parse_args()
    if args.command == "record":
        found = record(args.checkout.resolve(), args.only, args.jobs)
        args.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    if args.command == "speed":
        print("\n".join(speed(args.before.resolve(), args.after.resolve(), args.pairs)))
        return 0
    names = {} if args.renamed is None else yaml.safe_load(args.renamed.read_text())
    before, after = (
        renamed(_lasting(json.loads(path.read_text())), names) for path in (args.before, args.after)
    )
    found = sorted(differences(before, after), key=lambda line: line.startswith("/maintainers"))
    print("\n".join(found) or f"the same {len(before)} answers")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
