"""Inputs of the step-time model: sizes of kernels, relative to the device's rates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import Float32Array, FloatArray, IntArray, items_of
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.kernels.torch_kernels import COLUMNS, KERNELS, PHASES, TorchKernels

#: Device values that the model needs.
NEEDED = ("peak_fp32_flop_per_s", "mem_bandwidth_bytes_per_s", "core_count")
#: TF32 runs at half the rate of 16-bit products (NVIDIA A100 and GA102 white papers).
_TF32_SHARE = 0.5
_TF32_CAPABILITY = 8.0
#: Outputs per multiprocessor in one wave of a product: outputs of a tile times its blocks.
_WAVE = 8192.0
_CONVOLUTIONS = tuple(code for code, name in enumerate(KERNELS) if "convolution" in name)
_PRODUCTS = (KERNELS.index("product"), KERNELS.index("batched product"))
_TINY_S = 1e-9
#: Number of features that depend on the device: compute or memory bound, seconds, waves.
DEVICE_FEATURES = 3
#: Minor version of the latest torch 2 in the measurements.
_LATEST_MINOR = 9


@dataclass(frozen=True)
class StepQuestion:
    """One step to predict.

    Attributes:
        table: index of its table of kernels.
        device: index of its device.
        execution: how it is run.
        torch: version of torch; empty = the latest in the measurements.
    """

    table: int
    device: int
    execution: Execution
    torch: str = ""


class StepTimeInputs:
    """Kernel features of many steps.

    Attributes:
        rows: float64 [kernels, columns], the kernels of all tables.
        calls: float32 [N], number of operators of each step.
        flags: float32 [N, flags], flags of each step.

    Args:
        tables: kernels of networks.
        devices: GPUs.
        questions: [N] the steps.

    Raises:
        DeviceError: a device lacks one of `NEEDED`.
    """

    def __init__(
        self,
        tables: Sequence[TorchKernels],
        devices: Sequence[DeviceSpec],
        questions: Sequence[StepQuestion],
    ) -> None:
        self._offsets = np.concatenate([[0], np.cumsum([len(one.rows) for one in tables])])
        rows = self.rows = np.concatenate([one.rows for one in tables])
        self._sizes = _size_features(rows)
        self._work = rows[:, [COLUMNS.index(name) for name in ("kind", "flop", "bytes", "count")]]
        column = {name: rows[:, COLUMNS.index(name)] for name in ("m", "n", "batch", "is_map")}
        self._is_map = column["is_map"].astype(np.float32)
        self._outputs = column["m"] * column["n"] * column["batch"]
        calls = np.array([one.calls for one in tables])
        self._table = np.array([one.table for one in questions], np.int64)
        self.calls = calls[self._table].astype(np.float32)
        self.flags = np.array(
            [
                (
                    one.execution.layout == "nhwc", one.execution.compiled, release(one.torch),
                    one.execution.mode == "train",
                )
                for one in questions
            ],
            np.float32,
        )  # fmt: skip
        rates = [rates_of(devices[one.device], one.execution) for one in questions]
        self._rates = np.array(rates, np.float64)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def width(self) -> int:
        """Number of columns of `Kernels.features`."""
        return int(self._sizes.shape[1] + DEVICE_FEATURES + self.flags.shape[1])

    def kernels(self, steps: IntArray, noise: Float32Array | None = None) -> Kernels:
        """Returns the kernels of steps.

        Args:
            steps: int64 [S], indices of steps.
            noise: float32 [S, `DEVICE_FEATURES`], added to the device-dependent features; None = no
                noise.
        """
        tables = self._table[steps]
        place, owner = items_of(self._offsets, tables)
        kind, flop, moved, count = self._work[place].T
        rates = self._rates[steps][owner]
        peak = np.where(np.isin(kind, _PRODUCTS), rates[:, 1], rates[:, 0])
        peak = np.where(np.isin(kind, _CONVOLUTIONS), rates[:, 2], peak)
        peak = np.where(kind == KERNELS.index("attention"), rates[:, 1], peak)
        arithmetic_s, memory_s = flop / peak, moved / rates[:, 3]
        roofline_s = np.sqrt(arithmetic_s**2 + memory_s**2) + _TINY_S
        beside_device = np.column_stack(
            [
                np.clip(np.log((arithmetic_s + _TINY_S) / (memory_s + _TINY_S)), -6, 6) / 3,
                np.log10(roofline_s / 1e-4) / 2,
                np.log2(np.maximum(self._outputs[place] / (rates[:, 4] * _WAVE), 1e-3)) / 8,
            ]
        ).astype(np.float32)
        if noise is not None:
            beside_device += noise[owner]
        flags = self.flags[steps][owner]
        flags[:, 0] *= self._is_map[place]  # the layout affects only images
        features = np.concatenate([self._sizes[place], beside_device, flags], axis=1)
        return Kernels(
            features, roofline_s.astype(np.float32), count.astype(np.float32), owner, len(steps)
        )


@dataclass(frozen=True, eq=False)
class Kernels:
    """Concatenated kernels of several steps.

    Attributes:
        features: float32 [kernels, width].
        roofline_s: float32 [kernels], seconds of a kernel's work at the device's rates.
        count: float32 [kernels], number of runs.
        owner: int64 [kernels], the step of each kernel.
        steps: number of steps.
    """

    features: Float32Array
    roofline_s: Float32Array
    count: Float32Array
    owner: IntArray
    steps: int


def missing_numbers(device: DeviceSpec) -> list[str]:
    """Returns the names of `NEEDED` that a device lacks."""
    return [name for name in NEEDED if getattr(device, name) is None]


def release(torch: str) -> float:
    """Returns a version of torch as a number from 0 (1.12 and before) to 1 (2.9 and later)."""
    found = re.match(r"(\d+)\.(\d+)", torch)
    if found is None:
        return 1.0
    major, minor = int(found[1]), int(found[2])
    place = 0.2 + 0.8 * minor / _LATEST_MINOR if major >= 2 else 0.1 * (minor - 12)
    return min(max(place, 0.0), 1.0)


def _size_features(rows: FloatArray) -> Float32Array:
    column = {name: rows[:, place] for place, name in enumerate(COLUMNS)}
    n, k = column["n"], column["k"]

    def log2(name: str) -> FloatArray:
        return np.asarray(np.log2(np.maximum(column[name], 1.0)))

    parts = [
        np.eye(len(KERNELS))[column["kind"].astype(int)],
        np.eye(len(PHASES))[column["phase"].astype(int)],
        log2("m") / 10 - 1, log2("n") / 6 - 1, log2("k") / 6 - 1, log2("batch") / 6 - 0.5,
        np.minimum(column["window"], 11) / 4 - 0.5, np.minimum(column["stride"], 4) / 2 - 0.5,
        n % 8 == 0, k % 8 == 0, n % 64 == 0, k % 64 == 0,
    ]  # fmt: skip
    return np.column_stack(parts).astype(np.float32)


def rates_of(device: DeviceSpec, execution: Execution) -> tuple[float, ...]:
    """Returns operations per second of other kernels, products and convolutions, bytes per second,
    and the number of multiprocessors.

    In float32, convolutions may use TF32 and products may not, as by torch's defaults.

    Raises:
        DeviceError: the device lacks one of `NEEDED`.
    """
    missing = missing_numbers(device)
    if missing:
        raise DeviceError(f"`{missing[0]}` of {device.name} is not known; expected a number")
    peak = float(device.peak_fp32_flop_per_s or 0.0)
    tensor = device.peak_tensor_flop_per_s
    products = convolutions = peak
    if execution.dtype in ("bfloat16", "amp-bf16"):
        products = convolutions = device.peak_bf16_flop_per_s or peak
    elif execution.is_half:
        products = convolutions = tensor or device.peak_fp16_flop_per_s or peak
    elif tensor and device.vendor == "NVIDIA" and _capability(device) >= _TF32_CAPABILITY:
        convolutions = max(peak, _TF32_SHARE * tensor)
    return (
        peak, max(products, peak), max(convolutions, peak),
        float(device.mem_bandwidth_bytes_per_s or 0.0), float(device.core_count or 0),
    )  # fmt: skip


def runs_bfloat16(device: DeviceSpec) -> bool:
    """Returns whether a device has a known bfloat16 peak."""
    return device.peak_bf16_flop_per_s is not None


def _capability(device: DeviceSpec) -> float:
    return float(device.compute_capability or 0.0)
