"""Times steps of timm's networks on a GPU; one JSON line per finished configuration.

    python3 lab/gpu_session/timm_steps.py --out steps.jsonl --seconds 240 --part eager

Imports only torch, timm and the standard library, so that it needs no other package. Steps are
timed as in timm's benchmark: random images and weights, cuDNN autotuning on (float32 uses torch's
defaults), autocast entered in every step, a synchronisation after each. Warm-up is 2 to 10 steps in
at most 0.15 s after the first, then 3 to 40 steps in at most 0.4 s; the median is stored, and the
mean, which timm reports. A training step is forward, cross-entropy, backward and SGD with momentum.

Finished configurations are skipped, so a rerun continues.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

PARTS = ("eager", "train", "fp32", "compiled")
_BATCHES, _TRAIN_BATCHES = (1, 16, 64, 256), (16, 64, 256)
_COMPILED_BATCH = 64
#: Maximum 10^9 multiply-adds of a step's forward pass; larger batches are reduced.
_MOST_GMACS = {"infer": 6000.0, "train": 2000.0, "float32": 1500.0}
#: Maximum operators of a compiled network; larger ones take too long to compile.
_MOST_COMPILED_NODES = 550
_WARM_S, _TIMED_S = 0.15, 0.4
_WARM_STEPS, _TIMED_STEPS = (2, 10), (3, 40)
#: Seconds reserved for timing the compiled networks.
_TIMING_RESERVE_S = 15.0
_LEARNING_RATE = 1e-6

#: Architecture, image size, 10^9 multiply-adds, operators: one or two of each family in timm's
#: benchmarks, with sizes spread over the families by a fixed seed. The order is random, so that the
#: first ones are a fair sample.
NETWORKS = """
sequencer2d_m 224 6.55 271
hrnet_w18_ssld 224 4.32 1145
inception_next_tiny 224 4.19 194
crossvit_18_dagger_408 408 32.47 339
vit_base_patch16_siglip_gap_256 256 23.13 124
edgenext_small 320 1.97 193
rexnetr_300 288 5.59 247
legacy_xception 299 8.40 168
vitamin_small_224 224 5.92 237
volo_d1_224 224 6.94 253
cspdarknet53 256 6.57 232
densenet264d 224 13.57 941
pit_b_224 224 12.42 141
xcit_medium_24_p16_384 384 47.39 719
tf_efficientnet_b8 672 63.48 910
maxvit_pico_rw_256 256 1.83 400
dla46x_c 224 0.54 168
mobilevit_xxs 256 0.42 194
focalnet_tiny_srf 224 4.42 288
coat_tiny 224 4.35 725
ecaresnet50d_pruned 224 2.53 248
pvt_v2_b0 224 0.57 122
levit_256d 224 1.40 356
dm_nfnet_f1 224 17.87 580
repvit_m1_1 224 1.36 348
nf_resnet101 224 8.01 310
cait_s36_384 384 47.99 647
repghostnet_200 224 0.54 332
seresnet269d 288 33.65 1448
tresnet_m 224 5.75 317
visformer_small 224 4.88 169
tf_efficientnetv2_b0 192 0.54 276
vgg11_bn 224 7.62 36
hgnetv2_b6 224 16.88 498
nest_small 224 10.35 254
vit_small_patch16_18x2_224 224 13.71 473
inception_v3 299 5.73 313
efficientformer_l3 224 3.93 324
mvitv2_small 224 7.00 410
hiera_tiny_224 224 4.91 134
tnt_b_patch16_224 224 14.10 406
nextvit_small 224 5.81 275
tiny_vit_21m_512 512 27.02 173
coatnet_1_224 224 8.70 300
twins_svt_small 224 2.94 231
efficientvit_b1 288 0.87 220
regnetz_d8_evos 256 4.50 856
"""


class Network(NamedTuple):
    """One line of `NETWORKS`."""

    name: str
    size: int
    gmacs: float
    nodes: int


class Config(NamedTuple):
    """One configuration of a network."""

    network: str
    size: int
    batch: int
    mode: str = "infer"
    compiled: bool = False
    layout: str = "nchw"
    dtype: str = "amp-fp16"


def networks() -> list[Network]:
    """Returns the chosen networks in order."""
    rows = (line.split() for line in NETWORKS.strip().splitlines())
    return [Network(name, int(size), float(gmacs), int(nodes)) for name, size, gmacs, nodes in rows]


def configs_of(network: Network, place: int, parts: list[str], most_batch: int) -> list[Config]:
    """Returns the configurations of a network: float32 first, those that change its weights last.

    Args:
        place: index of the network, which selects its batches.
    """
    batches = _BATCHES[place % 4], _BATCHES[(place + 2) % 4]
    train = _TRAIN_BATCHES[place % 3], _TRAIN_BATCHES[(place + 1) % 3]

    def config(
        batch: int, mode: str = "infer", layout: str = "nchw", dtype: str = "amp-fp16"
    ) -> Config:
        most = _MOST_GMACS["float32" if dtype == "float32" else mode]
        if dtype == "float32" and mode == "train":
            most /= 3
        fitting = [one for one in _BATCHES if one <= batch and one * network.gmacs <= most]
        batch = min(max(fitting, default=1), most_batch)
        return Config(network.name, network.size, batch, mode, False, layout, dtype)

    found: list[Config] = []
    if "fp32" in parts:
        found += [config(one, dtype="float32") for one in batches]
        if place % 2:
            found.append(config(train[1], "train", dtype="float32"))
    if "eager" in parts:
        found += [config(one) for one in batches]
        found.append(config(batches[0], dtype="amp-bf16"))
    if "train" in parts:
        found.append(config(train[0], "train"))
    if "eager" in parts:
        found.append(config(batches[1], layout="nhwc"))
    if "train" in parts and place % 2 == 0:
        found.append(config(train[0], "train", layout="nhwc"))
    if "eager" in parts:
        found.append(config(batches[1], dtype="bfloat16"))
    return list(dict.fromkeys(found))


class Results:
    """The file of results, and the finished configurations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: set[Config] = set()
        if path.is_file():
            text = path.read_text("utf-8")
            if text and not text.endswith("\n"):  # cut off by a kill
                path.write_text(text + "\n", encoding="utf-8")
            for line in text.splitlines():
                with contextlib.suppress(ValueError, KeyError):  # truncated lines, facts
                    row = json.loads(line)
                    self.done.add(Config(*(row[name] for name in Config._fields)))

    def append(self, row: dict[str, Any]) -> None:
        """Writes one line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if "network" in row:
            self.done.add(Config(*(row[name] for name in Config._fields)))
            seconds = row.get("seconds")
            said = f"{1e3 * seconds:.3f} ms" if seconds else row["failed"]
            print(*(row[name] for name in Config._fields), said, flush=True)


def facts(device: str) -> dict[str, Any]:
    """Returns versions and hardware that the results depend on."""
    import timm  # type: ignore[import-not-found]

    found: dict[str, Any] = {
        "facts": True, "torch": torch.__version__, "timm": timm.__version__,
        "python": platform.python_version(), "cpu": platform.processor(), "cores": os.cpu_count(),
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }  # fmt: skip
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        found["cpu"] = next((line for line in lines if line.startswith("model name")), "")
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "memory_bytes": properties.total_memory}
        found |= clocks()
    return found


def clocks() -> dict[str, str]:
    """Returns the GPU's clocks and power from nvidia-smi; empty if it fails."""
    names = (
        "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,"
        "clocks_throttle_reasons.active"
    )  # fmt: skip
    command = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [one.strip() for one in text.split(",")]
    return (
        dict(zip(names.split(","), values, strict=True)) if values[-1] and len(values) == 8 else {}
    )


def make(network: str, size: int, device: str) -> torch.nn.Module:
    """Returns a network with random weights, created on the device, or moved there."""
    import timm

    def made() -> Any:
        try:
            return timm.create_model(network, pretrained=False, img_size=size)
        except TypeError:  # a network without a fixed size
            return timm.create_model(network, pretrained=False)

    try:
        with torch.device(device):
            found: torch.nn.Module = made()
    except Exception:  # some can only be created on CPUs
        found = made()
    return found.to(device)


def autocast(dtype: str, device: str) -> contextlib.AbstractContextManager[Any]:
    """Returns the context manager of a step's forward pass."""
    if not dtype.startswith("amp-"):
        return contextlib.nullcontext()
    return torch.autocast(device, torch.float16 if dtype == "amp-fp16" else torch.bfloat16)


def make_step(model: torch.nn.Module, config: Config, device: str) -> Callable[[], None]:
    """Returns a function that runs one step."""
    images = torch.randn(config.batch, 3, config.size, config.size, device=device)
    if config.layout == "nhwc":
        images = images.contiguous(memory_format=torch.channels_last)
    if config.dtype == "bfloat16":
        images = images.bfloat16()
    if config.mode == "infer":
        model.eval()

        def infer() -> None:
            with torch.no_grad(), autocast(config.dtype, device):
                model(images)

        return infer
    model.train()
    loss = torch.nn.CrossEntropyLoss()
    optimiser = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE, momentum=0.9)
    labels: list[torch.Tensor] = []

    def train() -> None:
        optimiser.zero_grad()
        with autocast(config.dtype, device):
            output = model(images)
        if isinstance(output, tuple):
            output = output[0]
        if not labels:
            labels.append(torch.randint(0, output.shape[-1], (config.batch,), device=device))
        loss(output, labels[0]).backward()
        optimiser.step()

    return train


def measure(step: Callable[[], None], device: str, *, is_warm: bool = False) -> dict[str, Any]:
    """Returns the seconds of a step, their spread, and the memory."""

    def timed() -> float:
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def repeated(most_s: float, counts: tuple[int, int]) -> list[float]:
        found: list[float] = []
        while len(found) < counts[0] or (len(found) < counts[1] and sum(found) < most_s):
            found.append(timed())
        return found

    if device == "cuda" and not is_warm:
        torch.cuda.reset_peak_memory_stats()
    first_s = 0.0 if is_warm else timed()
    repeated(_WARM_S, _WARM_STEPS)
    row: dict[str, Any] = {}
    if device == "cuda":
        row["warm_memory_bytes"] = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    times = sorted(repeated(_TIMED_S, _TIMED_STEPS))
    low, middle, high = statistics.quantiles(times, n=4)
    row = {
        "seconds": middle, "noise": (high - low) / 2 / middle, "mean_s": statistics.fmean(times),
        "fastest_s": times[0], "repeats": len(times), "first_s": first_s,
    } | row  # fmt: skip
    if device == "cuda":
        row["memory_bytes"] = torch.cuda.max_memory_allocated()
    return row


def run_config(model: torch.nn.Module, config: Config, device: str) -> dict[str, Any]:
    """Returns the result of a configuration; converts the model to its layout and type."""
    row: dict[str, Any] = config._asdict()
    row["cudnn_benchmark"] = torch.backends.cudnn.benchmark = config.dtype != "float32"
    try:
        if config.layout == "nhwc":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif config.dtype == "bfloat16":
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            model.bfloat16()
        row |= measure(make_step(model, config, device), device)
    except Exception as error:  # any error of torch is a result
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    model.zero_grad(set_to_none=True)
    if device == "cuda" and "CUDA error" not in row.get("failed", ""):
        gc.collect()
        torch.cuda.empty_cache()
    return row


def raise_clocks(device: str) -> None:
    """Keeps the GPU busy for half a second, to raise its clocks."""
    if device != "cuda":
        return
    one = torch.randn(4096, 4096, device=device, dtype=torch.float16)
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()


def run_eager(args: argparse.Namespace, results: Results, end: float) -> bool:
    """Runs the configurations without compilation; returns whether the GPU still works."""
    raise_clocks(args.device)
    for place, network in enumerate(networks()):
        if args.network and network.name not in args.network:
            continue
        wanted = configs_of(network, place, args.part, args.most_batch)
        wanted = [one for one in wanted if one not in results.done]
        if not wanted or time.monotonic() > end:
            continue
        try:
            model = make(network.name, network.size, args.device)
        except Exception as error:  # the error is the result
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            for config in wanted:
                results.append(config._asdict() | {"failed": reason})
            continue
        for config in wanted:
            if time.monotonic() > end:
                break
            row = run_config(model, config, args.device)
            results.append(row)
            if "CUDA error" in row.get("failed", ""):
                return False  # CUDA is unusable in this process
        del model
    return True


def compile_one(network: Network, batch: int, device: str, lock: Any, pipe: Any) -> None:
    """Worker: compiles a network, waits for its turn, and times it.

    GPU work before that holds the lock, so that autotuning is undisturbed.
    """
    from torch._inductor.compile_fx import compile_fx

    config = Config(network.name, network.size, batch, compiled=True)
    row: dict[str, Any] = config._asdict() | {"cudnn_benchmark": True}
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    is_first = True

    def backend(graph: Any, inputs: Any) -> Any:
        made = compile_fx(graph, inputs)

        def run(*values: Any) -> Any:
            if not is_first:
                return made(*values)
            with lock:
                found = made(*values)
                if device == "cuda":
                    torch.cuda.synchronize()
                return found

        return run

    try:
        model = make(network.name, network.size, device).eval()
        compiled: Any = torch.compile(model, backend=backend)
        step = make_step(compiled, config, device)
        step()
        is_first = False
        row["compile_s"] = time.perf_counter() - start
        with lock:
            step()
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        pipe.send("ready")
        pipe.recv()
        raise_clocks(device)
        row |= measure(step, device)
        pipe.send(row)
        del step
        pipe.recv()
        eager = run_config(model, config._replace(compiled=False), device)
        pipe.send(eager)
    except EOFError:
        return
    except Exception as error:  # the error is the result
        pipe.send(row | {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:300]})


class Worker:
    """A process that compiles one network."""

    def __init__(self, context: Any, network: Network, batch: int, device: str, lock: Any) -> None:
        self.network = network
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=compile_one, args=(network, batch, device, lock, other), daemon=False
        )
        self.process.start()
        other.close()
        self.state = "compiling"

    def poll(self, results: Results) -> None:
        """Reads the worker's message, if there is one."""
        if self.state != "compiling":
            return
        try:
            if self.pipe.poll():
                said = self.pipe.recv()
                self.state = "ready" if said == "ready" else "ended"
                if said != "ready":
                    results.append(said)
        except (EOFError, OSError):
            self.state = "ended"

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Requests the next measurement and returns its result; None if there is none."""
        with contextlib.suppress(EOFError, OSError):
            self.pipe.send("go")
            if self.pipe.poll(timeout_s):
                found: dict[str, Any] = self.pipe.recv()
                return found
        return None

    def close(self) -> None:
        """Ends the process."""
        self.pipe.close()
        self.process.join(2.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5.0)


@contextlib.contextmanager
def _cache_folder() -> Iterator[None]:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="inductor-")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    yield


def run_compiled(args: argparse.Namespace, results: Results, end: float) -> None:
    """Compiles networks in parallel waves, and times each one alone."""
    batch = min(_COMPILED_BATCH, args.most_batch)
    todo = [
        one for one in networks()
        if one.nodes <= _MOST_COMPILED_NODES
        and (not args.network or one.name in args.network)
        and one.gmacs * batch <= _MOST_GMACS["infer"]
        and Config(one.name, one.size, batch, compiled=True) not in results.done
    ]  # fmt: skip
    with _cache_folder():
        context = multiprocessing.get_context("spawn")
        reserve_s = _TIMING_RESERVE_S + 3.0 * args.workers
        while todo and time.monotonic() < end - reserve_s - args.least_wave:
            wave, todo = todo[: args.workers], todo[args.workers :]
            lock = context.Lock()
            workers = [Worker(context, one, batch, args.device, lock) for one in wave]
            start = time.monotonic()
            while any(one.state == "compiling" for one in workers):
                for one in workers:
                    one.poll(results)
                if time.monotonic() > end - reserve_s:
                    break
                time.sleep(0.1)
            states = [one.state for one in workers]
            print(f"{time.monotonic() - start:.0f} s of compiling:", *states, flush=True)
            for one in workers:
                if one.state != "ready":
                    one.process.kill()  # its work would disturb the timing
                    one.process.join(5.0)
            for one in (one for one in workers if one.state == "ready"):
                row = one.answer(30.0)
                if row is not None:
                    results.append(row)
                eager = Config(one.network.name, one.network.size, batch)
                if row is not None and eager not in results.done and time.monotonic() < end:
                    row = one.answer(30.0)
                    if row is not None:
                        results.append(row)
            for one in workers:
                one.close()


def main() -> int:
    """Runs the requested parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="file of results, appended to")
    parser.add_argument("--seconds", type=float, default=240.0, help="for everything")
    parser.add_argument(
        "--part", default="eager", type=lambda text: text.split(","),
        help="some of " + ",".join(PARTS) + "; several share the making of a network",
    )  # fmt: skip
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--workers", type=int, default=12, help="that compile side by side")
    parser.add_argument("--least-wave", type=float, default=45.0, help="seconds a wave needs")
    parser.add_argument("--network", action="append", help="only this one; may be repeated")
    parser.add_argument("--most-batch", type=int, default=256)
    args = parser.parse_args()
    if unknown := set(args.part) - set(PARTS):
        parser.error(f"--part: unknown {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    end = time.monotonic() + args.seconds
    results = Results(args.out)
    results.append(facts(args.device) | {"part": args.part})
    is_alive = True
    if "compiled" in args.part:
        run_compiled(args, results, end)
    if set(args.part) - {"compiled"}:
        is_alive = run_eager(args, results, end)
    if args.device == "cuda":
        results.append({"clocks": True} | clocks())
    return 0 if is_alive else 3


if __name__ == "__main__":
    sys.exit(main())
