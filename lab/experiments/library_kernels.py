"""Kernels of two libraries: the tables in data/gpu-kernels, and GPUs predicted from another; and
the packaged collectives on machines that no fit has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import Collective, Family
from cdmpp.analytic.gpu_kernels.measured import Measured, read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.references import best_factor
from cdmpp.analytic.gpu_kernels.table import FILES
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.cli.shared.options import parse_seeds
from cdmpp.devices.registry import get_device
from cdmpp.files.atomic import make_folder, write_columns
from cdmpp.text import markdown_table
from lab.paths import ROOT, SHARED_DATA

#: gfx of aiter's tables -> label; MI325X and MI355X are among these rows and cannot be told apart.
_SYSTEMS = {"gfx942": "mi300x", "gfx950": "mi350x"}
#: aiter's name of an operation -> type of a product.
_TYPES = {
    "bf16": "bfloat16", "a8w8_blockscale": "fp8_block", "a8w8_blockscale_bpreshuffle": "fp8_block",
    "a8w8": "fp8_static", "a8w8_bpreshuffle": "fp8_static", "a4w4_blockscale": "nvfp4",
}  # fmt: skip
#: aiter's types of activations and weights with their scales -> type of an expert layer; the last
#: is one that no call has, and its rows count as faults.
_MOE_TYPES = {
    ("bfloat16", "bfloat16", "No"): "bfloat16", ("float8", "float8", "per_Token"): "fp8",
    ("float8", "float8", "per_1x128"): "fp8_block", ("float4", "float4", "per_1x32"): "nvfp4",
    ("float8", "float4", "per_1x32"): "w4a8_mxfp4_mxfp8",
    ("bfloat16", "float4", "per_1x32"): "w4a16_mxfp4", ("bfloat16", "int4", "per_1x32"): "int4_wo",
    ("float8", "float8", "per_1x32"): "mxfp8_mxfp8",
}  # fmt: skip
#: Share of aiter's products in blocks that is kept, by a hash of their sizes; of other types all.
_SHARE = 0.25
#: pipeweave's name of a GPU -> label.
_LABELS = {
    "A100": "a100-sxm", "H100": "h100", "H20": "h20", "H800": "h800",
    "RTX 6000 Ada": "rtx-6000-ada", "RTX PRO 6000 S": "rtx-pro-6000",
}  # fmt: skip
#: Messages up to so many bytes carry the host's launches there; sizes on each side whose median
#: stands for one, as three repeats scatter.
_SMALL, _NEAR = 2**18, 4
#: Fit on the first, evaluated on the second.
_TRANSFERS: dict[Family, tuple[tuple[str, str], ...]] = {
    "gemm_tuned": (("mi300x", "mi350x"), ("mi350x", "mi300x")),
    "moe_tuned": (("mi300x", "mi350x"), ("mi350x", "mi300x")),
    "gemm_tile": (("h100", "h20"), ("h100", "h800")),
}


def experiment(
    shared: Path = SHARED_DATA,
    out: Path = ROOT / "data" / "gpu-kernels",
    seeds: str = "0,1,2",
    write: bool = False,
) -> None:
    """Prints the errors on GPUs predicted from one other, on all rows of the shared tables, and of
    the packaged model on pipeweave's all-reduces; with `write`, also writes the parts of the tables
    that the repository keeps.
    """
    whole: dict[Family, dict[str, np.ndarray]] = {
        "gemm_tuned": _aiter(shared), "gemm_tile": _pipeweave(shared), "moe_tuned": _layers(shared),
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        for name, columns in whole.items():
            is_kept = columns.pop("is_kept").astype(bool)
            if write:
                kept = {key: column[is_kept] for key, column in columns.items()}
                _write(out / FILES[name], kept)
                print(f"{name}: {np.sum(is_kept)} rows of {len(is_kept)}")
            _write(Path(folder) / FILES[name], columns)
        rows = list(_transfers(Path(folder), out, [int(seed) for seed in parse_seeds(seeds)]))
    head = ["fit on", "evaluated on", "type", "n", "cdmpp", "roofline", "rows"]
    print(markdown_table(head, rows))
    head = [
        "GPU",
        "GPUs",
        "link, GB/s",
        "measured",
        "bytes",
        "n",
        "cdmpp",
        "measured over predicted",
    ]
    print(markdown_table([*head, "in the interval, %"], list(_all_reduces(shared))))


def _write(path: Path, columns: dict[str, np.ndarray]) -> None:
    make_folder(path.parent, what="library's table")
    write_columns(path, columns)


def _transfers(whole: Path, kept: Path, seeds: list[int]) -> Iterator[list[str]]:
    for family, places in _TRANSFERS.items():
        for folder in (whole, kept):
            tests, fits = read_measured(whole, family), read_measured(folder, family)
            for source, target in places:
                yield from _transfer(fits, tests, source, target, seeds, folder is whole)


def _transfer(
    fits: Measured, tests: Measured, source: str, target: str, seeds: list[int], is_whole: bool
) -> Iterator[list[str]]:
    fitted, own = fits.table.device == source, tests.table.device == target
    seconds = [tests.predicted_s(fits.fit(fitted, seed=seed), own) for seed in seeds]
    measured_s, groups = tests.table.latency_s[own], tests.groups[own]
    floor_s = fits.work.floor_s[fitted]
    roofline_s = best_factor(fits.table.latency_s[fitted], floor_s) * tests.work.floor_s[own]
    for name in ("all", *map(str, np.unique(groups))):
        rows = np.ones(len(groups), np.bool_) if name == "all" else groups == name
        cells = [_errors(measured_s, seconds, rows), _errors(measured_s, [roofline_s], rows)]
        size = "all" if is_whole else "kept"
        yield [source, target, name.split()[-1], str(int(rows.sum())), *cells, size]


def _all_reduces(shared: Path) -> Iterator[list[str]]:
    raw = _columns(shared / "pipeweave" / "collectives.parquet")
    model = GpuKernels.packaged()
    is_sum = raw["op"] == "all_reduce"
    for name, gpus in sorted(set(zip(raw["device"][is_sum], raw["gpus"][is_sum], strict=True))):
        own = np.flatnonzero(is_sum & (raw["device"] == name) & (raw["gpus"] == gpus))
        own = own[np.argsort(raw["bytes"][own].astype(np.int64))]
        sizes, device = raw["bytes"][own].astype(np.int64), get_device(_LABELS[name])
        each_s = raw["us_median"][own].astype(np.float64) * 1e-6
        near = [slice(max(0, i - _NEAR), i + _NEAR + 1) for i in range(len(own))]
        seconds = np.array([np.median(each_s[rows]) for rows in near])
        calls = [Collective("all_reduce", int(size), int(gpus)) for size in sizes]
        times = model.times(calls, device)
        is_inside = (times.low_s <= seconds) & (seconds <= times.high_s)
        link = f"{(device.link_bandwidth_bytes_per_s or 0) / 1e9:.0f}"
        for what, rows in (("to 256 KiB", sizes <= _SMALL), ("above", sizes > _SMALL)):
            ratio = float(np.median(seconds[rows] / times.latency_s[rows]))
            yield [
                name, str(gpus), link, "yes" if times.is_seen_device else "no", what,
                str(int(rows.sum())), _errors(seconds, [times.latency_s], rows), f"{ratio:.2f}",
                f"{100 * np.mean(is_inside[rows]):.0f}",
            ]  # fmt: skip


def _errors(measured_s: FloatArray, seconds: list[FloatArray], rows: BoolArray) -> str:
    errors = [np.abs(one[rows] / measured_s[rows] - 1.0) for one in seconds]
    mean, median = (float(np.mean([f(one) for one in errors])) for f in (np.mean, np.median))
    return f"{100 * mean:.1f} / {100 * median:.1f}"


def _aiter(shared: Path) -> dict[str, np.ndarray]:
    raw = _columns(shared / "amd-aiter" / "gemm.parquet")
    op, weights = raw["op"].astype(str), raw["w_dtype"].astype(str)
    system = np.array([_SYSTEMS.get(name, "") for name in raw["gfx"]])
    dtype = np.array([_TYPES.get(name, "") for name in op])
    is_int8 = (dtype == "fp8_static") & (weights != "float8_e4m3fn")
    is_wide = (dtype == "bfloat16") & (raw["out_dtype"].astype(str) == "float32")
    usable = (system != "") & (dtype != "") & ~is_int8 & ~is_wide & ~raw["batched"].astype(bool)
    content = _content(raw, usable, dtype[usable], system[usable], "aiter", "e404860")
    content["library"] = np.array([name or "" for name in raw["libtype"][usable]])
    sizes = zip(*(content[name] for name in ("m", "n", "k", "gemm_dtype")), strict=True)
    content["is_kept"] = np.array([_share(*row) < _SHARE for row in sizes])
    content["is_kept"] |= content["gemm_dtype"] != "fp8_block"
    return content


def _layers(shared: Path) -> dict[str, np.ndarray]:
    raw = _columns(shared / "amd-aiter" / "fused_moe.parquet")
    count = len(raw["us"])
    kinds = zip(raw["q_dtype_a"], raw["q_dtype_w"], raw["q_type"], strict=True)
    dtype = np.array(
        [_MOE_TYPES[a.split("_")[0], w.split("_")[0], scales] for a, w, scales in kinds]
    )
    names = {
        "num_tokens": "token", "hidden_size": "model_dim", "inter_size": "inter_dim",
        "topk": "topk", "num_experts": "expert",
    }  # fmt: skip
    ones = dict.fromkeys(("moe_tp_size", "moe_ep_size"), np.ones(count, np.int64))
    is_first = raw["doweight_stage1"].astype(bool)
    return {
        **{name: raw[place].astype(np.int64) for name, place in names.items()}, **ones,
        "moe_dtype": dtype, "distribution": np.full(count, "drawn"),
        "op_name": np.where(is_first, "moe_weighted_first", "moe"),
        "activation": raw["act_type"].astype(str),
        **_origin(raw, np.array([_SYSTEMS[name] for name in raw["gfx"]]), "aiter", "e404860"),
        "is_kept": np.ones(count, np.bool_),
    }  # fmt: skip


def _pipeweave(shared: Path) -> dict[str, np.ndarray]:
    raw = _columns(shared / "pipeweave" / "gemm_fp8.parquet")
    usable = np.ones(len(raw["us"]), np.bool_)
    system = np.char.lower(raw["device"].astype(str))
    dtype = np.full(len(usable), "fp8_static")
    content = _content(raw, usable, dtype, system, "pipeweave", "55e0317")
    return {**content, "is_kept": raw["part"].astype(str) == "test"}


def _content(
    raw: dict[str, np.ndarray], rows: BoolArray, dtype: np.ndarray, system: np.ndarray,
    framework: str, version: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    own = {name: column[rows] for name, column in raw.items()}
    sizes = {name.lower(): own[name].astype(np.int64) for name in "MNK"}
    return {**sizes, "gemm_dtype": dtype, **_origin(own, system, framework, version)}


def _origin(
    raw: dict[str, np.ndarray], system: np.ndarray, framework: str, version: str
) -> dict[str, np.ndarray]:
    count = len(system)
    return {
        "system": system, "framework": np.full(count, framework),
        "version": np.full(count, version),
        "latency_s": (raw["us"].astype(np.float64) * 1e-6).astype(np.float32),
    }  # fmt: skip


def _share(*row: object) -> float:
    """Returns a number in [0, 1) that the sizes and the type decide."""
    digest = hashlib.sha256(" ".join(map(str, row)).encode()).hexdigest()
    return int(digest[:12], 16) / 16**12


def _columns(path: Path) -> dict[str, np.ndarray]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    return {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
