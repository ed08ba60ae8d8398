"""The kernel models of today's GPUs, one a family: `GpuKernels.packaged().times(calls, device)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.gpu_kernels.calls import (
    FAMILIES,
    LIBRARIES,
    SOFTWARE,
    Family,
    Gemm,
    GpuCall,
    family_of,
)
from cdmpp.analytic.gpu_kernels.efficiency import Efficiency
from cdmpp.analytic.gpu_kernels.families import (
    as_measured,
    columns_of,
    error_groups,
    whose_kernels,
    work_on,
)
from cdmpp.analytic.gpu_kernels.unseen import errors_of
from cdmpp.analytic.intervals import DeviceErrors
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, read_json, write_json
from cdmpp.files.boosted_trees import load_booster, save_booster
from cdmpp.files.stored import from_json, to_json

FORMAT = "gpu-kernels-2"
MODEL_FILE = "kernels.json"
#: Fields of `Efficiency` beside its trees.
_FACTS = ("launch_s", "weights", "largest")


@dataclass(frozen=True)
class GpuKernelTimes:
    """What N calls take on one GPU.

    Attributes:
        latency_s: float64 [N], seconds.
        low_s, high_s: float64 [N], the ends that hold 90 % of the errors of the validation.
        floor_s: float64 [N], what no kernel can beat.
        bound: what sets the floor of each call: `compute`, `memory`, `cache`, `link`, `launch`.
        is_seen_device: whether the model was fitted on the device, for products in their type.
    """

    latency_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    floor_s: FloatArray
    bound: list[str]
    is_seen_device: bool


@dataclass(frozen=True)
class GpuKernels(AnalyticModel):
    """The models of all families.

    Attributes:
        families: family -> what its kernels reach.
        devices: family -> labels of the fit.
        errors: device label or one of `UNSEEN_NAMES` -> `error_groups` -> errors on rows held out
            of the fit.
        about: free facts: data, seeds, versions.
    """

    what = "kernel model"
    again = "make it again: cdmpp analytic kernels fit"
    place = "gpu_kernels"

    families: Mapping[Family, Efficiency]
    devices: Mapping[Family, tuple[str, ...]]
    errors: DeviceErrors
    about: Mapping[str, Any]

    @classmethod
    def packaged(cls) -> GpuKernels:
        """Returns the model that comes with the package; it is read once."""
        return _packaged()

    def times(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> GpuKernelTimes:
        """Returns the times of calls, of whatever families, in their order.

        Args:
            software: whose kernels, one of `SOFTWARE`; None = `default_software`.

        Raises:
            UsageError: the software is not known.
            DeviceError: no GPU, one without the pipe that a call is for, or one of which the
                registry knows too little.
        """
        if software is not None and software not in SOFTWARE:
            raise UsageError(
                f"software {software!r} is not known; expected one of {', '.join(SOFTWARE)}"
            )
        numbers = {name: np.zeros(len(calls)) for name in ("latency", "low", "high", "floor")}
        bound = [""] * len(calls)
        is_seen = True
        whose_family = [self._family_of(call, device, software) for call in calls]
        for family in self.families:
            rows = [i for i, one in enumerate(whose_family) if one == family]
            if not rows:
                continue
            columns = as_measured(family, columns_of([calls[i] for i in rows]))
            groups = error_groups(family, columns)
            is_seen &= self._is_measured(family, groups, device)
            work = work_on(family, columns, device)
            own = np.full(len(rows), software or default_software(family, device))
            whose = whose_kernels(family, columns, own)
            latency_s = self.families[family].latency_s(work, whose)
            low_s, high_s = self._ends(family, groups, device, latency_s)
            numbers["latency"][rows], numbers["floor"][rows] = latency_s, work.floor_s
            numbers["low"][rows] = np.maximum(low_s, work.floor_s)
            numbers["high"][rows] = high_s
            for i, word in zip(rows, work.bound, strict=True):
                bound[i] = word
        return GpuKernelTimes(
            numbers["latency"], numbers["low"], numbers["high"], numbers["floor"], bound, is_seen
        )

    def _family_of(self, call: GpuCall, device: DeviceSpec, software: str | None) -> Family:
        """Returns whose model answers for a call: that of the library, where it has one."""
        family = family_of(call)
        if not isinstance(call, Gemm):
            return family
        own = LIBRARIES.get(software or default_software(family, device), family)
        is_measured = own != "gemm_tile" or call.dtype.startswith("fp8")
        return own if own in self.families and is_measured else family

    def _is_measured(self, family: Family, groups: TextArray, device: DeviceSpec) -> bool:
        """Whether the device is in the fit, with the types of these products."""
        known = self.errors.get(device.name, {})
        are_known = not family.startswith("gemm") or all(str(name) in known for name in groups)
        return device.name in self.devices[family] and are_known

    def _ends(
        self, family: Family, groups: TextArray, device: DeviceSpec, latency_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        names, place = np.unique(groups, return_inverse=True)
        spread = np.array([self._errors_of(str(name), family, device) for name in names])[place]
        return latency_s * np.exp(spread[:, 0]), latency_s * np.exp(spread[:, 1])

    def _errors_of(self, group: str, family: Family, device: DeviceSpec) -> tuple[float, float]:
        one = errors_of(self.errors, group, device, self.devices[family])
        if one is None:
            raise DataError(f"the {self.what} has no errors of {group}; {self.again}")
        return one.low, one.high

    def save(self, path: Path) -> None:
        make_folder(path, what=self.what)
        families = {}
        for family, one in self.families.items():
            save_booster(one.booster, path / f"{family}.ubj.xz")
            facts = {name: getattr(one, name) for name in _FACTS}
            families[family] = {**facts, "devices": list(self.devices[family])}
        about = dict(self.about)
        content = {"families": families, "errors": to_json(self.errors), "about": about}
        write_json(path / MODEL_FILE, {"format": FORMAT, **content})

    @classmethod
    def load(cls, path: Path) -> GpuKernels:
        file = path / MODEL_FILE
        state = read_json(file, what=cls.what, hint=cls.again, format=FORMAT)
        try:
            known = state["families"]
            more = [family for family in LIBRARIES.values() if family in known]
            own: dict[Family, Any] = {family: known[family] for family in [*FAMILIES, *more]}
            families = {
                family: Efficiency(
                    load_booster(path / f"{family}.ubj.xz", hint=cls.again),
                    *(one[name] for name in _FACTS),
                )
                for family, one in own.items()
            }
            devices = {family: tuple(one["devices"]) for family, one in own.items()}
            errors = from_json(DeviceErrors, state["errors"])
            return cls(families, devices, errors, dict(state["about"]))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: cannot read the {cls.what} ({error}); {cls.again}") from None


def default_software(family: Family, device: DeviceSpec) -> str:
    """Returns whose kernels are meant where nobody says: those that most GPUs of the packaged
    model's data were measured with.
    """
    if device.vendor == "Intel":
        return "vllm_xpu"
    if device.vendor == "AMD" and device.peak_fp8_flop_per_s and family == "gemm":
        return "aiter"  # measured on CDNA 3 and 4 alone; older ones as other GPUs
    return "vllm" if family == "decode" else "trtllm"


@lru_cache(maxsize=1)
def _packaged() -> GpuKernels:
    return GpuKernels.load(GpuKernels.packaged_path())
