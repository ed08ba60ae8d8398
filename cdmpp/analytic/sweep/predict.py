"""Predictions corrected by a device's sweep: serving kernels and fp32 operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cdmpp.analytic.gpu_kernels.calls import SOFTWARE, GpuCall, family_of
from cdmpp.analytic.gpu_kernels.families import (
    columns_of,
    error_groups,
    is_in_16_bits,
    work_on,
)
from cdmpp.analytic.gpu_kernels.model import GpuKernels, GpuKernelTimes
from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.operators.device import hardware
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.intervals import packaged_operators
from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.sweep.calls import TORCH, Fp32Operator, SweepFamily
from cdmpp.analytic.sweep.correction import SweepCorrection, fit_correction, left_out_logs
from cdmpp.analytic.sweep.inputs import kernel_inputs, operator_inputs, operators_of
from cdmpp.analytic.sweep.rules import (
    corrected_family,
    operator_family,
    packaged_rules,
    torch_errors,
    widened,
)
from cdmpp.analytic.sweep.sweep_file import MeasuredCall, Sweep, packaged_sweep, sweep_of
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError

_FAMILIES: tuple[SweepFamily, ...] = ("gemm", "prefill", "decode")
#: Type of products that all software runs with the same library, cuBLAS.
_LIBRARY = "bfloat16"


@dataclass(frozen=True)
class FamilyCorrection:
    """Correction of one family on one device.

    Attributes:
        correction: correction of the predictions.
        kinds: kinds of calls in the sweep; other kinds are not corrected.
        errors: group -> errors of the corrected predictions; None if the sweep has too few calls.
    """

    correction: SweepCorrection
    kinds: frozenset[str]
    errors: dict[str, LogErrors | None]


#: (sweep, device, family) -> the sweep, which keeps it alive, and its correction; None if the sweep
#: has no calls of the family.
_Known = dict[tuple[Any, ...], tuple[Sweep, FamilyCorrection | None]]


@dataclass(frozen=True)
class SweptKernels:
    """The kernel models with the corrections of a device's sweep.

    Attributes:
        model: models without corrections.
        elsewhere: group -> errors of torch's kernels on GPUs without a torch sweep.
    """

    model: GpuKernels
    elsewhere: Mapping[str, LogErrors] = field(default_factory=torch_errors)
    _known: _Known = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def packaged(cls) -> SweptKernels:
        """Returns the packaged models."""
        return _packaged()

    def times(
        self,
        calls: Sequence[GpuCall],
        device: DeviceSpec,
        *,
        software: str | None = None,
        version: str | None = None,
    ) -> GpuKernelTimes:
        """Returns the times of `GpuKernels.times`, corrected where `corrected` is True.

        Args:
            software: also `TORCH`. If the device has no torch sweep, the packaged sweep of another
                GPU corrects the times, except of 16-bit products. The interval then contains the
                errors of both steps and is at least as wide as `elsewhere`.

        Raises:
            UsageError, DeviceError: as `GpuKernels.times`; or torch's kernel was not measured.
            DataError: the sweep cannot be read.
        """
        sweep, origin = _source(device, software)
        if sweep is None:
            return self.model.times(calls, device, software=software, version=version)
        is_corrected = self._corrected(sweep, origin, calls, software)
        if software == TORCH:
            _check_torch(calls, device, is_corrected)
        base = _base_software(sweep) if software in (None, TORCH) else software
        found = self.model.times(calls, device, software=base, version=version)
        columns: dict[str, Any] = {
            name: np.array(getattr(found, name)) for name in ("latency_s", "low_s", "high_s")
        }
        for family in _FAMILIES:
            rows = [
                i for i, call in enumerate(calls) if is_corrected[i] and family_of(call) == family
            ]
            own = self._of(sweep, origin, family) if rows else None
            if own is None:
                continue
            chosen = [calls[i] for i in rows]
            logs = own.correction.logs(_inputs(chosen, device, found.latency_s[rows]))
            if origin.name != device.name:  # the model has measured cuBLAS products on many GPUs
                logs = np.where(np.array(kernel_kinds(chosen)) == _LIBRARY, 0.0, logs)
            floor_s = found.floor_s[rows]
            factor = np.maximum(np.exp(logs), floor_s / found.latency_s[rows])
            value_s = found.latency_s[rows] * factor
            groups = _groups(chosen)
            low, high = _ends(own.errors, groups)
            if origin.name != device.name:
                lowest, highest = _ends(self.elsewhere, groups)
                low = low + np.log(found.low_s[rows] / found.latency_s[rows])
                high = high + np.log(found.high_s[rows] / found.latency_s[rows])
                low, high = np.fmin(low, lowest), np.fmax(high, highest)
            columns["latency_s"][rows] = value_s
            low_s = np.where(np.isnan(low), found.low_s[rows] * factor, value_s * np.exp(low))
            high_s = np.where(np.isnan(high), found.high_s[rows] * factor, value_s * np.exp(high))
            columns["low_s"][rows], columns["high_s"][rows] = np.maximum(low_s, floor_s), high_s
        if software == TORCH:
            answer = f"torch {sweep.about.get('versions', {}).get('torch', '')} on {origin.name}"
            is_seen, versions = origin.name == device.name, [answer] * len(calls)
            return replace(found, **columns, is_seen_device=is_seen, versions=versions)
        is_seen = found.is_seen_device or all(is_corrected)
        return replace(found, **columns, is_seen_device=is_seen)

    def corrected(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> list[bool]:
        """Returns for each call whether the device's sweep corrects it, i.e. has calls of its kind
        by the requested software. 16-bit products match any software.

        Raises:
            DataError: the sweep cannot be read.
        """
        sweep = sweep_of(device)
        if sweep is None:
            return [False] * len(calls)
        return self._corrected(sweep, device, calls, software)

    def _corrected(
        self, sweep: Sweep, origin: DeviceSpec, calls: Sequence[GpuCall], software: str | None
    ) -> list[bool]:
        found = []
        for call in calls:
            own = self._of(sweep, origin, family_of(call))
            kind = kernel_kinds([call])[0]
            is_same = software in (None, sweep.software) or kind == _LIBRARY
            found.append(own is not None and is_same and kind in own.kinds)
        return found

    def _of(self, sweep: Sweep, device: DeviceSpec, family: str) -> FamilyCorrection | None:
        def fit() -> FamilyCorrection | None:
            own = _calls_of(sweep, family)
            calls: list[GpuCall] = [one.call for one in own]  # type: ignore[misc]
            if not calls or family not in packaged_rules().families:
                return None
            base_s = self.model.times(calls, device, software=_base_software(sweep)).latency_s
            inputs = _inputs(calls, device, base_s)
            return _fitted(family, own, base_s, inputs, kernel_kinds(calls), _groups(calls))

        return _kept(self._known, sweep, device, family, fit)


@dataclass(frozen=True)
class SweptOperators:
    """The operator model with the corrections of a device's sweep.

    Attributes:
        model: model without corrections.
    """

    model: OperatorModel
    _known: _Known = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def packaged(cls) -> SweptOperators:
        """Returns the packaged model."""
        return _packaged_operators()

    def correction(
        self, operators: Operators, device: DeviceSpec, *, is_isolated: bool = False
    ) -> tuple[FloatArray, LogErrors | None] | None:
        """Returns the factors (float64 [N]) of a device's sweep on the predictions for operators of
        one kind, and the errors of the corrected predictions; None if the sweep has no such kind.

        Args:
            is_isolated: whether the operators are isolated calls, as in the packaged sweep. That
                sweep then applies to its own GPU, unless the GPU has another sweep.

        Raises:
            DataError: the sweep cannot be read.
            DeviceError: the registry lacks values of the device.
        """
        sweep, kind = sweep_of(device), str(operators.kind[0])
        if sweep is None and is_isolated and packaged_sweep().device == device.name:
            sweep = packaged_sweep()
        if sweep is None:
            return None
        own = self._of(sweep, device, operator_family(kind))
        if own is None or kind not in own.kinds:
            return None
        inputs = operator_inputs(operators, self._isolated_s(operators, device))
        return np.exp(own.correction.logs(inputs)), own.errors.get(judged_as(kind))

    def _of(self, sweep: Sweep, device: DeviceSpec, family: str) -> FamilyCorrection | None:
        def fit() -> FamilyCorrection | None:
            own = _calls_of(sweep, family)
            if not own or family not in packaged_rules().families:
                return None
            calls = [one.call for one in own if isinstance(one.call, Fp32Operator)]
            kinds, operators = [call.kind for call in calls], operators_of(calls)
            base_s = self._isolated_s(operators, device)
            groups = np.array([judged_as(kind) for kind in kinds])
            inputs = operator_inputs(operators, base_s)
            return _fitted(family, own, base_s, inputs, kinds, groups)

        return _kept(self._known, sweep, device, family, fit)

    def _isolated_s(self, operators: Operators, device: DeviceSpec) -> FloatArray:
        known = {device.name: hardware(device)}
        labels = np.full(len(operators), device.name)
        return self.model.predict(operators, labels, known, context="isolated")


def kernel_kinds(calls: Sequence[GpuCall]) -> list[str]:
    """Returns the kind of each call that a sweep must contain: the types of its operands, and for
    attention whether it has a window or earlier tokens.
    """
    found = []
    for call in calls:
        words = [getattr(call, name, "") for name in ("dtype", "kv_dtype")]
        words = ["bfloat16" if word == "float16" else word for word in words if word]
        more = [name for name in ("window", "past") if getattr(call, name, 0)]
        found.append(" ".join([*words, *more]))
    return found


def _source(device: DeviceSpec, software: str | None) -> tuple[Sweep | None, DeviceSpec]:
    """Returns the sweep that corrects a device's times, and the device that it was measured on."""
    own = sweep_of(device)
    if software != TORCH or (own is not None and own.software == TORCH):
        return own, device
    packaged = packaged_sweep()
    return packaged, get_device(packaged.device)


def _check_torch(calls: Sequence[GpuCall], device: DeviceSpec, is_measured: Sequence[bool]) -> None:
    if device.vendor != "NVIDIA":
        raise UsageError(
            f"software 'torch' on {device.name} ({device.vendor}): torch was measured on NVIDIA "
            "GPUs; leave the software out, or choose an NVIDIA GPU"
        )
    for call, known in zip(calls, is_measured, strict=True):
        if not known or is_in_16_bits(call, device):
            raise UsageError(
                f"software 'torch' has no measured kernel for {call} on {device.name}; expected "
                "products in bfloat16, float16, fp8 or fp8_static (fp8 on GPUs with fp8 units), or "
                "attention in bfloat16 without a window and past tokens"
            )


def _base_software(sweep: Sweep) -> str | None:
    """Returns the software whose predictions a sweep corrects; None = `default_software`."""
    return sweep.software if sweep.software in SOFTWARE else None


def _calls_of(sweep: Sweep, family: str) -> list[MeasuredCall]:
    return [one for one in sweep.calls if corrected_family(one.call) == family]


def _kept(
    known: _Known,
    sweep: Sweep,
    device: DeviceSpec,
    family: str,
    fit: Callable[[], FamilyCorrection | None],
) -> FamilyCorrection | None:
    key = (id(sweep), repr(device), family)
    if key not in known:
        known[key] = sweep, fit()
    return known[key][1]


def _fitted(
    family: str,
    own: Sequence[MeasuredCall],
    base_s: FloatArray,
    inputs: FloatArray,
    kinds: Sequence[str],
    groups: TextArray,
) -> FamilyCorrection:
    rules = packaged_rules().families[family]
    logs = np.log(np.array([one.latency_s for one in own]) / base_s)
    held = left_out_logs(inputs, logs, rules.options)
    errors = {
        str(group): widened(held[groups == group], held, rules.widening)
        for group in np.unique(groups)
    }
    return FamilyCorrection(fit_correction(inputs, logs, rules.options), frozenset(kinds), errors)


def _inputs(calls: Sequence[GpuCall], device: DeviceSpec, predicted_s: FloatArray) -> FloatArray:
    family = family_of(calls[0])
    return kernel_inputs(work_on(family, columns_of(calls), device), predicted_s)


def _groups(calls: Sequence[GpuCall]) -> TextArray:
    return error_groups(family_of(calls[0]), columns_of(calls))


def _ends(
    errors: Mapping[str, LogErrors | None], groups: TextArray
) -> tuple[FloatArray, FloatArray]:
    """Returns float64 [N] each, log ends of corrected predictions; NaN if unknown."""
    found = [errors.get(str(group)) for group in groups]
    low = np.array([np.nan if one is None else one.low for one in found])
    return low, np.array([np.nan if one is None else one.high for one in found])


@lru_cache(maxsize=1)
def _packaged() -> SweptKernels:
    return SweptKernels(GpuKernels.packaged())


@lru_cache(maxsize=1)
def _packaged_operators() -> SweptOperators:
    return SweptOperators(packaged_operators().model)
