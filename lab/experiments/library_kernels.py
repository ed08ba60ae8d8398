"""Writes the tables of two libraries' kernels in data/gpu-kernels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import Family
from cdmpp.analytic.gpu_kernels.table import FILES
from cdmpp.arrays import BoolArray
from cdmpp.files.atomic import make_folder, write_columns
from lab.paths import ROOT, SHARED_DATA

#: gfx of aiter's tables -> label; rows of MI325X and MI355X cannot be distinguished from these.
_SYSTEMS = {"gfx942": "mi300x", "gfx950": "mi350x"}
#: aiter's name of an operation -> type of a product.
_TYPES = {
    "bf16": "bfloat16", "a8w8_blockscale": "fp8_block", "a8w8_blockscale_bpreshuffle": "fp8_block",
    "a8w8": "fp8_static", "a8w8_bpreshuffle": "fp8_static", "a4w4_blockscale": "nvfp4",
}  # fmt: skip
#: aiter's types of activations, weights and scales -> type of an expert layer. No call has the last
#: type; its rows count as faults.
_MOE_TYPES = {
    ("bfloat16", "bfloat16", "No"): "bfloat16", ("float8", "float8", "per_Token"): "fp8",
    ("float8", "float8", "per_1x128"): "fp8_block", ("float4", "float4", "per_1x32"): "nvfp4",
    ("float8", "float4", "per_1x32"): "w4a8_mxfp4_mxfp8",
    ("bfloat16", "float4", "per_1x32"): "w4a16_mxfp4", ("bfloat16", "int4", "per_1x32"): "int4_wo",
    ("float8", "float8", "per_1x32"): "mxfp8_mxfp8",
}  # fmt: skip
#: Share of aiter's block-scaled products to keep, by a hash of their sizes. Others are all kept.
_SHARE = 0.25


def experiment(shared: Path = SHARED_DATA, out: Path = ROOT / "data" / "gpu-kernels") -> None:
    """Writes the rows of the shared tables that the repository stores."""
    whole: dict[Family, dict[str, np.ndarray]] = {
        "gemm_tuned": _aiter(shared), "gemm_tile": _pipeweave(shared), "moe_tuned": _layers(shared),
    }  # fmt: skip
    for name, columns in whole.items():
        is_kept = columns.pop("is_kept").astype(bool)
        _write(out / FILES[name], {key: column[is_kept] for key, column in columns.items()})
        print(f"{name}: {np.sum(is_kept)} rows of {len(is_kept)}")


def _write(path: Path, columns: dict[str, np.ndarray]) -> None:
    make_folder(path.parent, what="library's table")
    write_columns(path, columns)


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
    """Returns a hash of the sizes and the type as a number in [0, 1)."""
    digest = hashlib.sha256(" ".join(map(str, row)).encode()).hexdigest()
    return int(digest[:12], 16) / 16**12


def _columns(path: Path) -> dict[str, np.ndarray]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(path)
    return {name: np.array(table[name].to_pylist(), dtype=object) for name in table.column_names}
