"""Work of a family's kernels, from calls or rows of a table and GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.attention import decode_work, prefill_work
from cdmpp.analytic.gpu_kernels.account.chip import Chip, chip_of, chip_rows
from cdmpp.analytic.gpu_kernels.account.collective import collective_work
from cdmpp.analytic.gpu_kernels.account.exchange import (
    exchange_work,
    one_shot_work,
    quantize_work,
)
from cdmpp.analytic.gpu_kernels.account.gemm import gemm_work, tile_gemm_work, tuned_gemm_work
from cdmpp.analytic.gpu_kernels.account.hyper import hyper_work
from cdmpp.analytic.gpu_kernels.account.latent import latent_decode_work, latent_prefill_work
from cdmpp.analytic.gpu_kernels.account.linear import linear_work
from cdmpp.analytic.gpu_kernels.account.moe import moe_work, tuned_moe_work
from cdmpp.analytic.gpu_kernels.account.sparse import sparse_work
from cdmpp.analytic.gpu_kernels.account.work import ChipRows, Columns, KernelWork
from cdmpp.analytic.gpu_kernels.calls import LINKED, Family, GpuCall
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError

_WORK: Mapping[Family, Callable[[Columns, ChipRows], KernelWork]] = {
    "gemm": gemm_work,
    "prefill": prefill_work,
    "decode": decode_work,
    "collective": collective_work,
    "gemm_tuned": tuned_gemm_work,
    "gemm_tile": tile_gemm_work,
    "moe_tuned": tuned_moe_work,
    "moe": moe_work,
    "latent_prefill": latent_prefill_work,
    "latent_decode": latent_decode_work,
    "linear": linear_work,
    "sparse": sparse_work,
    "exchange": exchange_work,
    "one_shot": one_shot_work,
    "quantize": quantize_work,
    "hyper": hyper_work,
}


def columns_of(calls: Sequence[GpuCall]) -> Columns:
    """Returns field -> [N] of calls of one family; `float16` becomes `bfloat16`."""
    columns = {
        one.name: np.array([getattr(call, one.name) for call in calls]) for one in fields(calls[0])
    }
    for name, column in columns.items():
        if column.dtype.kind == "U":
            columns[name] = np.where(column == "float16", "bfloat16", column)
    return columns


def as_measured(family: Family, columns: Columns) -> Columns:
    """Returns columns with the types in which a library's products were measured: fp8 of aiter and
    pipeweave takes scaled input, which serving frameworks compute in the preceding norm.
    """
    others = {"gemm_tuned": ("fp8",), "gemm_tile": ("fp8", "fp8_block")}.get(family)
    if others is None:
        return columns
    dtype = columns["dtype"]
    return {**columns, "dtype": np.where(np.isin(dtype, others), "fp8_static", dtype)}


def whose_kernels(family: Family, columns: Columns, software: NDArray[np.str_]) -> NDArray[np.str_]:
    """Returns text [N], the software whose kernels run: all software uses cuBLAS for 16-bit
    products on NVIDIA GPUs; they count as TensorRT-LLM's.
    """
    if family != "gemm":
        return software
    is_library = (columns["dtype"] == "bfloat16") & (software != "vllm_xpu")
    return np.where(is_library, "trtllm", software)


def has_groups(family: Family) -> bool:
    """Returns whether errors differ within a family: by type of products and of expert layers, by
    window of prefill attention, by kind and phase of sparse attention, or by step of
    hyper-connections.
    """
    return family.startswith(("gemm", "moe")) or family in ("prefill", "sparse", "hyper")


def error_groups(family: Family, columns: Columns) -> NDArray[np.str_]:
    """Returns text [N], the group that each call is evaluated in: its family, and the type of a
    product or expert layer, whether prefill attention has a window, kind and phase of sparse
    attention, or the step of hyper-connections.
    """
    count = len(next(iter(columns.values())))
    if not has_groups(family):
        return np.full(count, family)
    if family == "prefill":
        return np.where(columns["window"] > 0, "prefill window", "prefill")  # type: ignore[operator]
    if family == "sparse":
        kinds, phases = (np.asarray(columns[name], np.str_) for name in ("kind", "phase"))
        return np.char.add(np.char.add("sparse ", kinds), np.char.add(" ", phases))
    word = "step" if family == "hyper" else "dtype"
    return np.char.add(f"{family} ", columns[word].astype(np.str_))


def is_in_16_bits(call: GpuCall, device: DeviceSpec) -> bool:
    """Returns whether a call requests fp8 on a GPU without fp8 units. Its arithmetic is then in 16
    bits, and only its weights or cache are smaller; such calls were measured only on Intel GPUs.
    """
    return getattr(call, "dtype", "").startswith("fp8") and not device.peak_fp8_flop_per_s


def work_on(family: Family, columns: Columns, device: DeviceSpec) -> KernelWork:
    """Returns the work of calls on one GPU.

    Raises:
        DeviceError: not a GPU, a call needs a pipe that it lacks, or the registry lacks a value.
    """
    chip = chip_of(device)
    _check_pipes(family, columns, chip, device.name)
    count = len(next(iter(columns.values())))
    return _WORK[family](columns, chip_rows([chip], np.zeros(count, np.intp)))


def work_of_rows(
    family: Family, columns: Columns, labels: NDArray[np.str_], known: Mapping[str, DeviceSpec]
) -> KernelWork:
    """Returns the work of rows measured on GPUs with these labels, text [N].

    Raises:
        DeviceError: the registry lacks a value of a GPU.
    """
    names, place = np.unique(labels, return_inverse=True)
    return _WORK[family](columns, chip_rows([chip_of(known[str(n)]) for n in names], place))


def _check_pipes(family: Family, columns: Columns, chip: Chip, name: str) -> None:
    if family in LINKED and not chip.link_bytes_per_s:
        raise DeviceError(
            f"no collective on {name!r}: the registry has no link_bandwidth_bytes_per_s of it; "
            "give it in a device file (docs/devices.md)"
        )
    if family.startswith("gemm") and not chip.fp4_flop_per_s and "nvfp4" in columns["dtype"]:
        raise DeviceError(
            f"no product in nvfp4 on {name!r}: the registry has no peak_fp4_flop_per_s of it; "
            "expected a GPU with fp4 units, or another type (bfloat16, fp8)"
        )
