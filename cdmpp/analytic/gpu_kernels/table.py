"""Reads measured kernels of serving frameworks from Parquet files: columns, device and time.

Source: the layout of ai-dynamo/aiconfigurator's collected tables (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.work import Columns
from cdmpp.analytic.gpu_kernels.calls import FAMILIES, LIBRARIES, SERVING, Family, field_names
from cdmpp.analytic.gpu_kernels.frameworks import releases_of
from cdmpp.analytic.rows import Rows
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.text import nearest

FILES: Mapping[Family, str] = {
    "gemm": "gemm.parquet",
    "prefill": "context_attention.parquet",
    "decode": "generation_attention.parquet",
    "collective": "nccl.parquet",
    "gemm_tuned": "aiter/gemm.parquet",
    "gemm_tile": "pipeweave/gemm.parquet",
    "moe_tuned": "aiter/moe.parquet",
    "moe": "moe.parquet",
    "latent_prefill": "mla.parquet",
    "latent_decode": "mla.parquet",
    "linear": "linear_attention.parquet",
    "sparse": "sparse_attention.parquet",
    "exchange": "deepep.parquet",
    "one_shot": "allreduce.parquet",
    "quantize": "quantize.parquet",
    "hyper": "mhc.parquet",
}
_GEMM = {"m": "m", "n": "n", "k": "k", "dtype": "gemm_dtype"}
_MOE = {
    "tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "top_k": "topk",
    "experts": "num_experts", "tensor_parallel": "moe_tp_size", "expert_parallel": "moe_ep_size",
    "dtype": "moe_dtype", "distribution": "distribution",
}  # fmt: skip
#: Column of a call -> column of the file.
_NAMES: Mapping[Family, Mapping[str, str]] = {
    "gemm": _GEMM,
    "gemm_tuned": _GEMM,
    "gemm_tile": _GEMM,
    "prefill": {
        "batch": "batch_size", "length": "isl", "heads": "num_heads", "past": "step",
        "kv_heads": "num_key_value_heads", "head_size": "head_dim", "window": "window_size",
        "dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype",
    },
    "decode": {
        "batch": "batch_size", "context": "step", "heads": "num_heads",
        "kv_heads": "num_key_value_heads", "head_size": "head_dim", "window": "window_size",
        "dtype": "attn_dtype", "kv_dtype": "kv_cache_dtype",
    },
    "collective": {"kind": "op_name", "message_bytes": "message_size", "gpus": "num_gpus"},
    "moe_tuned": _MOE,
    "moe": {**_MOE, "kernel": "kernel_source"},
    "latent_prefill": {
        "batch": "batch_size", "length": "isl", "heads": "num_heads",
        "kv_dtype": "kv_cache_dtype", "kernel": "kernel_source",
    },
    "latent_decode": {
        "batch": "batch_size", "context": "step", "heads": "num_heads",
        "kv_dtype": "kv_cache_dtype", "kernel": "kernel_source",
    },
    "linear": {"kind": "op_name", "batch": "batch_size", "length": "seq_len"},
    "sparse": {
        "batch": "batch_size", "length": "isl", "past": "step", "heads": "num_heads",
        "dtype": "gemm_type",
    },
    "exchange": {
        "step": "phase", "tokens": "num_token", "hidden": "hidden_size", "top_k": "num_topk",
        "experts": "num_experts", "nodes": "node_num", "multiprocessors": "sms",
    },
    "one_shot": {"message_bytes": "message_size", "gpus": "num_gpus"},
    "quantize": {"rows": "m", "columns": "k"},
    "hyper": {
        "step": "op_name", "tokens": "num_tokens", "hidden": "hidden_size", "streams": "hc_mult",
    },
}  # fmt: skip
#: Additional columns of a family's file that are read.
_MORE: Mapping[Family, tuple[str, ...]] = {
    "collective": ("nccl_dtype",), "moe_tuned": ("op_name",),
    "latent_prefill": ("table",), "latent_decode": ("table",),
    "linear": (
        "kernel_source", "phase", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim",
        "n_groups", "nheads", "d_state", "head_dim",
    ),
    "sparse": ("table", "op_name", "kernel_source", "architecture", "model", "kv_cache_dtype"),
    "exchange": ("op_name",),
    "one_shot": ("kernel_source", "table"),
    "hyper": ("kernel_source",),
}  # fmt: skip
#: Additional columns that a file may lack; their words are then empty.
_MAYBE: Mapping[Family, tuple[str, ...]] = {"prefill": ("kernel_source",)}
#: Family -> values of the column `table` of its rows.
_TABLES: Mapping[Family, tuple[str, ...]] = {
    "latent_prefill": ("context_mla",), "latent_decode": ("generation_mla",),
    "one_shot": ("custom_allreduce",),
}  # fmt: skip
#: Part of a kernel's name in the data -> its kind; the first match counts.
_KINDS: Mapping[Family, Mapping[str, str]] = {
    "moe": {
        "min_latency": "min_latency", "marlin": "marlin", "deepgemm": "deepgemm",
        "cutedsl": "cutedsl", "cutlass": "cutlass", "nongated": "cutlass",
        "triton": "triton", "trtllm": "trtllm",
    },
    "latent_prefill": {"default": "trtllm", "trtllm": "trtllm", "triton": "triton"},
    "latent_decode": {"default": "trtllm", "trtllm": "trtllm", "triton": "triton"},
    "linear": {"flashinfer": "flash", "flashkda": "flash"},
}  # fmt: skip
#: Field of `LinearAttention` -> its column for gdn and kda, and for mamba2.
_LINEAR_SIZES = {
    "key_heads": ("num_k_heads", "n_groups"), "value_heads": ("num_v_heads", "nheads"),
    "key_size": ("head_k_dim", "d_state"), "value_size": ("head_v_dim", "head_dim"),
}  # fmt: skip
_OTHER_KIND: Mapping[Family, str] = {
    "moe": "other", "latent_prefill": "flash", "latent_decode": "flash", "linear": "plain",
}  # fmt: skip


#: Family -> reason for excluding rows -> column and part of the word that marks them. Source: the
#: faults in the README of the data.
FAULTS: Mapping[Family, Mapping[str, tuple[str, str]]] = {
    "moe_tuned": {
        "fp8 with scales per 32 elements, an unsupported type": ("moe_dtype", "mxfp8_mxfp8"),
        "weights of the experts applied before the last product": ("op_name", "weighted_first"),
    },
    "moe": {"drawn with exponent 0, a single row": ("distribution", "power_law_0")},
    "linear": {"steps that verify drafts": ("phase", "verify")},
    "one_shot": {"timed eagerly, with the host": ("kernel_source", "eager")},
    "hyper": {"SGLang's path in torch": ("kernel_source", "sglang_torch")},
}


#: These times cover the channels of only one of queries, keys and values, at the bandwidth that
#: vLLM's rows of the whole convolution reach: 1/3 to 1/6 of the whole on every device.
_KEYS_ALONE = "gdn's convolution of sglang and trtllm: only the keys' channels"
#: SGLang's prefill on B200. Above 4,096 tokens a call without a window takes 0.83 of the time of
#: the same call with a window of 128; with TensorRT-LLM's kernels it takes 2 to 18 times as long.
#: Triton's kernels take nearly as long with a window of 128 as with one of 1,024, and 10 to 60
#: times as long as others.
_NO_KEYS = "without a window, timed as if with one that is shorter than 128"
_ALL_KEYS = "Triton's kernels, which compute what the window hides"
#: Fault 8 in the README of the data.
_REFERENCE = "msa of trtllm on H100 and L40S: a reference path"
#: These calls take 2 to 60 ms for one token. For the longest prompts they take 19 times as long as
#: vLLM's on B200, and 1.6 times on GB300, the same chip.
_FOR_ANY_TOKEN = "msa of trtllm, prefill: milliseconds for one token"
#: These calls take 4 to 500 times as long as their work requires, up to 0.2 s for one token; vLLM's
#: msa blocks on that GPU are within a factor of two.
_PLAIN = "csa and hca of sglang on RTX PRO 6000: a reference path"


@dataclass(frozen=True)
class GpuKernelTable(Rows):
    """Measured calls of one family.

    Attributes:
        columns: fields of the family's call -> [N].
        device: text [N], labels of the registry.
        software: text [N], one of `SOFTWARE`.
        version: text [N], version of the software.
        latency_s: float64 [N].
        fault: text [N], reason for excluding a row; empty for usable rows.
    """

    columns: Columns
    device: TextArray
    software: TextArray
    version: TextArray
    latency_s: FloatArray
    fault: TextArray

    @property
    def software_version(self) -> TextArray:
        """text [N], software and version of each row, e.g. `sglang 0.5.14`."""
        return np.char.add(np.char.add(self.software, " "), self.version)


def families_in(folder: Path) -> list[Family]:
    """Returns the families of a folder: those of `LIBRARIES` and `SERVING` with a file, and all of
    `FAMILIES`; a folder with a file of `SERVING` need not have all files of `FAMILIES`.

    Raises:
        DataError: the folder does not exist.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; expected a folder of measured kernels (.parquet)")

    def known(families: Iterable[Family]) -> list[Family]:
        return [family for family in families if (folder / FILES[family]).exists()]

    serving = known(SERVING)
    return [*(known(FAMILIES) if serving else FAMILIES), *known(LIBRARIES), *serving]


def asked_families(folder: Path, names: Sequence[str]) -> list[Family]:
    """Returns the named families of a folder; all families without names.

    Raises:
        DataError: the folder does not exist.
        UsageError: unknown family, or the folder has no file of it.
    """
    known = families_in(folder)
    there = [family for family in known if (Path(folder) / FILES[family]).exists()]
    files: Mapping[str, str] = {str(family): file for family, file in FILES.items()}
    for name in names:
        if name not in files:
            raise UsageError(
                f"no kernels {name!r}{nearest(name, FILES)}; expected some of {', '.join(FILES)}"
            )
        if name not in there:
            raise UsageError(
                f"no kernels {name!r} in {folder}: it has no {files[name]}"
                + (f"; expected some of {', '.join(there)}" if there else "")
            )
    return [family for family in known if not names or family in names]


def read_kernels(folder: Path, family: Family) -> GpuKernelTable:
    """Reads the measured calls of a family.

    Raises:
        DataError: the file is missing or lacks a column.
        DeviceError: the registry does not know a device.
    """
    names = _NAMES[family]
    more = _MORE.get(family, ())
    raw = _read(
        Path(folder) / FILES[family],
        [*names.values(), *more, "system", "framework", "version", "latency_s"],
        _MAYBE.get(family, ()),
    )
    if family in _TABLES:
        own = np.isin(raw["table"], _TABLES[family])
        raw = {name: column[own] for name, column in raw.items()}
    columns = {name: raw[place] for name, place in names.items()}
    if family in ("decode", "latent_decode"):
        columns["context"] = columns["context"] + 1  # includes the new token
    if family in SERVING:
        columns = {**columns, **_of_framework(family, raw)}
        # Same order as the fields of a call: the words of `NearRows` depend on it.
        columns = {name: columns[name] for name in (*field_names(family), "release")}
    if family == "collective":
        halves = np.where(raw["nccl_dtype"] == "half", 2, 1)
        columns["message_bytes"] = columns["message_bytes"] * halves
    systems, place = np.unique(raw["system"].astype(str), return_inverse=True)
    specs = [get_device(str(system)) for system in systems]
    is_xpu = np.array([spec.vendor == "Intel" for spec in specs])[place]
    software = np.char.lower(raw["framework"].astype(str))
    return GpuKernelTable(
        columns,
        np.array([spec.name for spec in specs])[place],
        np.where(is_xpu & (software == "vllm"), "vllm_xpu", software),
        raw["version"].astype(str),
        np.asarray(raw["latency_s"], np.float64),
        _faults(family, raw),
    )


def _faults(family: Family, raw: Columns) -> TextArray:
    found = np.full(len(raw["version"]), "", "U80")
    for why, (name, part) in FAULTS.get(family, {}).items():
        words = raw[name].astype(str)
        is_whole = name == "distribution"
        found[words == part if is_whole else np.char.find(words, part) >= 0] = why
    if family == "prefill":
        found[(raw["kernel_source"] == "trtllm_mha") & (raw["window_size"] == 0)] = _NO_KEYS
        found[raw["kernel_source"] == "triton"] = _ALL_KEYS
    if family == "linear":
        is_conv = np.char.find(raw["kernel_source"].astype(str), "causal_conv1d_fn") >= 0
        is_gdn = raw["op_name"] == "gdn"
        is_vllm = np.char.lower(raw["framework"].astype(str)) == "vllm"
        found[is_conv & is_gdn & ~is_vllm] = _KEYS_ALONE
    if family == "sparse":
        framework = np.char.lower(raw["framework"].astype(str))
        is_msa = np.char.startswith(raw["table"].astype(str), "msa") & (framework == "trtllm")
        found[is_msa & (raw["table"] == "msa_context_module")] = _FOR_ANY_TOKEN
        found[is_msa & (raw["kernel_source"] == "default")] = _REFERENCE
        is_plain = (raw["system"] == "rtx_pro_6000_server") & (framework == "sglang")
        found[is_plain] = _PLAIN
    return found


def _of_framework(family: Family, raw: Columns) -> dict[str, NDArray[np.generic]]:
    """Returns the columns that are derived from a framework's names."""
    found: dict[str, NDArray[np.generic]] = {"release": releases_of(raw["version"].astype(str))}
    if family in _KINDS:
        names, place = np.unique(raw["kernel_source"].astype(str), return_inverse=True)
        kinds = _KINDS[family].items()
        found["kernel"] = np.array([
            next((kind for part, kind in kinds if part in str(name)), _OTHER_KIND[family])
            for name in names
        ])[place]  # fmt: skip
        if family == "moe":
            gated = [int("nongated" not in str(name)) for name in names]
            found["gated"] = np.array(gated, np.int64)[place]
    if family == "linear":
        is_conv = np.char.startswith(raw["kernel_source"].astype(str), "causal_conv1d")
        found["step"] = np.where(is_conv, "conv", "scan")
        found["phase"] = np.where(raw["phase"] == "generation", "decode", "prefill")
        is_mamba = raw["op_name"] == "mamba2"
        for name, (delta, mamba) in _LINEAR_SIZES.items():
            found[name] = np.where(is_mamba, raw[mamba], raw[delta])
    if family == "sparse":
        found.update(_of_sparse(raw))
    if family == "exchange":
        found["mode"] = np.where(raw["op_name"] == "deepep_ll", "low_latency", "normal")
    if family == "one_shot":
        found["message_bytes"] = 2 * raw["message_size"]  # elements of bfloat16
    return found


def _of_sparse(raw: Columns) -> dict[str, NDArray[np.generic]]:
    """Returns the columns of `SparseBlock` that are derived from the file's names."""
    names = {
        "DeepseekV32ForCausalLM": "deepseek-v3.2", "GlmMoeDsaForCausalLM": "glm-5",
        "MiniMaxM3ForCausalLM": "minimax-m3", "DeepseekV4ForCausalLM": "deepseek-v4-pro",
    }  # fmt: skip

    def model(word: str) -> str:
        if word not in names:
            raise DataError(
                f"{FILES['sparse']}: architecture {word!r} is unknown; expected one of "
                f"{', '.join(names)}"
            )
        return names[word]

    def read(name: str, value: Callable[[str], int | str]) -> NDArray[np.generic]:
        words, place = np.unique(raw[name].astype(str), return_inverse=True)
        return np.array([value(str(word)) for word in words])[place]

    is_flash = read("model", lambda word: int("Flash" in word)) == 1
    return {
        "model": np.where(is_flash, "deepseek-v4-flash", read("architecture", model)),
        "kind": read("table", lambda word: word.removeprefix("dsv4_").partition("_")[0]),
        "phase": read("table", lambda word: "decode" if "generation" in word else "prefill"),
        "indexed": read("op_name", lambda word: int("skip_indexer" not in word)),
        "kv_dtype": read("kv_cache_dtype", lambda word: "fp8" if "fp8" in word else word),
    }


def _read(path: Path, names: Sequence[str], maybe: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        there = [name for name in maybe if name in parquet.read_schema(path).names]
        table = parquet.read_table(path, columns=[*names, *there])
        missing = [name for name in names if name not in table.column_names]
        if missing:
            raise KeyError(f"no column {', '.join(missing)}")
    except (OSError, KeyError, pa.ArrowException) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error
        raise DataError(
            f"{path}: cannot read the measured kernels ({why}); expected a Parquet file with "
            f"{', '.join(names)}"
        ) from None
    found: dict[str, NDArray[np.generic]] = {
        name: np.full(table.num_rows, "") for name in maybe if name not in there
    }
    for name in (*names, *there):
        column = table.column(name)
        if pa.types.is_dictionary(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.string()).fill_null("")
        is_text = pa.types.is_string(column.type)
        found[name] = (
            (column if is_text else column.fill_null(0))
            .to_numpy()
            .astype(np.str_ if is_text else column.type.to_pandas_dtype())
        )
    return found
