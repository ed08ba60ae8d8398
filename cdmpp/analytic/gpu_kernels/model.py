"""Kernel models of current GPUs, one per family: `GpuKernels.packaged().times(calls, device)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.gpu_kernels.account.work import Columns
from cdmpp.analytic.gpu_kernels.calls import (
    FAMILIES,
    LIBRARIES,
    SERVING,
    SOFTWARE,
    Family,
    GpuCall,
    family_of,
)
from cdmpp.analytic.gpu_kernels.efficiency import Efficiency
from cdmpp.analytic.gpu_kernels.families import (
    as_measured,
    columns_of,
    error_groups,
    has_groups,
    whose_kernels,
    work_on,
)
from cdmpp.analytic.gpu_kernels.frameworks import Frameworks, type_words
from cdmpp.analytic.gpu_kernels.measured import Measured
from cdmpp.analytic.gpu_kernels.nearest import NearRows
from cdmpp.analytic.gpu_kernels.unseen import NEW_VERSION, errors_of
from cdmpp.analytic.intervals import DeviceErrors, LogErrors
from cdmpp.arrays import BoolArray, FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import make_folder, read_json, write_json
from cdmpp.files.boosted_trees import load_booster, save_booster
from cdmpp.files.stored import from_json, to_json

FORMAT = "gpu-kernels-4"
MODEL_FILE = "kernels.json"
#: File of the measured calls that correct the trees of a family of `SERVING`.
NEAR_FILE = "{}.near.parquet"
#: Fields of `Efficiency` that are stored in `MODEL_FILE`.
_FACTS = ("launch_s", "weights", "largest")


@dataclass(frozen=True)
class GpuKernelTimes:
    """Times of N calls on one GPU.

    Attributes:
        latency_s: float64 [N], seconds.
        low_s, high_s: float64 [N], ends of the interval with 90 % of the validation errors.
        floor_s: float64 [N], lower bound.
        bound: what sets the lower bound of each call: `compute`, `memory`, `cache`, `link`,
            `launch`.
        is_seen_device: whether the model was fitted on the device, and with these types.
        is_seen_version: whether these kinds of calls were measured in the requested version, or,
            without one, with the software.
        versions: software and version of each prediction in a family of `SERVING`, e.g. `sglang
            0.5.14`; empty for other families and for unmeasured versions.
    """

    latency_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    floor_s: FloatArray
    bound: list[str]
    is_seen_device: bool
    is_seen_version: bool
    versions: list[str]


@dataclass(frozen=True)
class GpuKernels(AnalyticModel):
    """The models of all families.

    Attributes:
        families: family -> efficiency of its kernels.
        devices: family -> labels of the devices in the fit.
        errors: device label or one of `UNSEEN_NAMES` -> `error_groups` -> errors on rows held out
            of the fit; `NEW_VERSION` -> family -> the same for versions.
        frameworks: family of `SERVING` -> versions and kernels of the frameworks in its data.
        about: free-form facts: data, seeds, versions.
    """

    what = "kernel model"
    again = "refit it: cdmpp analytic kernels fit"
    place = "gpu_kernels"

    families: Mapping[Family, Efficiency]
    devices: Mapping[Family, tuple[str, ...]]
    errors: DeviceErrors
    frameworks: Mapping[Family, Frameworks]
    about: Mapping[str, Any]

    @classmethod
    def packaged(cls) -> GpuKernels:
        """Returns the model that comes with the package; it is loaded once."""
        return _packaged()

    def times(
        self,
        calls: Sequence[GpuCall],
        device: DeviceSpec,
        *,
        software: str | None = None,
        version: str | None = None,
    ) -> GpuKernelTimes:
        """Returns the times of calls of any families, in order.

        Args:
            software: software that launches the kernels, one of `SOFTWARE`; None =
                `default_software`, or for a family of `SERVING` without it, the software with the
                most rows.
            version: version of the software, for the families of `SERVING`; None = the newest one
                in which the kind of the call (its types and kernel) was measured. An unmeasured
                version widens the interval by the differences between versions.

        Raises:
            UsageError: unknown software or invalid version; or a version or kernel for expert
                layers of AMD's library, whose data have neither.
            DataError: the model does not have these kernels.
            DeviceError: not a GPU, a GPU without the pipe that a call needs, or the registry lacks
                values of it.
        """
        if software is not None and software not in SOFTWARE:
            raise UsageError(
                f"unknown software {software!r}; expected one of {', '.join(SOFTWARE)}"
            )
        numbers = {name: np.zeros(len(calls)) for name in ("latency", "low", "high", "floor")}
        bound, versions = [""] * len(calls), [""] * len(calls)
        is_seen = is_seen_version = True
        whose_family = [self._family_of(call, device, software) for call in calls]
        missing = next((family for family in whose_family if family not in self.families), None)
        if missing is not None:
            raise DataError(f"the {self.what} has no kernels {missing!r}; {self.again}")
        for family in self.families:
            rows = [i for i, one in enumerate(whose_family) if one == family]
            if not rows:
                continue
            columns = as_measured(family, columns_of([calls[i] for i in rows]))
            if family == "moe_tuned":
                _check_tuned(columns, version)
            groups = error_groups(family, columns)
            is_seen &= self._is_measured(family, groups, device)
            name = software or default_software(family, device)
            is_new = np.zeros(len(rows), np.bool_)
            if family in SERVING:
                if software is None and name not in self.families[family].launch_s:
                    name = next(iter(self.families[family].launch_s))
                columns, is_new = self._of_framework(family, columns, name, version, device)
                is_seen_version &= not is_new.any()
                for i, release in zip(rows, columns["release"], strict=True):
                    found = self.frameworks[family].version(name, release)
                    versions[i] = found and f"{name} {found}"
            work = work_on(family, columns, device)
            whose = whose_kernels(family, columns, np.full(len(rows), name))
            latency_s = self.families[family].near_s(work, family, columns, whose, device)
            low_s, high_s = self._ends(family, groups, device, latency_s, is_new=is_new)
            numbers["latency"][rows], numbers["floor"][rows] = latency_s, work.floor_s
            numbers["low"][rows] = np.maximum(low_s, work.floor_s)
            numbers["high"][rows] = high_s
            for i, word in zip(rows, work.bound, strict=True):
                bound[i] = word
        return GpuKernelTimes(
            numbers["latency"],
            numbers["low"],
            numbers["high"],
            numbers["floor"],
            bound,
            is_seen,
            is_seen_version,
            versions,
        )

    def ends_of_rows(
        self, measured: Measured, latency_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Returns float64 [N] each, the interval ends of predictions of measured rows, each on its
        device and in its version.
        """
        family, table = measured.family, measured.table
        low_s, high_s = np.empty(len(table)), np.empty(len(table))
        facts = np.stack([table.device, table.software, table.version])
        for label, software, version in np.unique(facts, axis=1).T:
            rows = (facts[0] == label) & (facts[1] == software) & (facts[2] == version)
            known = self.frameworks.get(family)
            is_new = known is not None and not known.knows(str(software), str(version))
            low_s[rows], high_s[rows] = self._ends(
                family, measured.groups[rows], get_device(str(label)), latency_s[rows],
                is_new=np.full(rows.sum(), is_new),
            )  # fmt: skip
        floor_s = measured.work.floor_s
        return np.maximum(low_s, floor_s), np.maximum(high_s, floor_s)

    def _of_framework(
        self,
        family: Family,
        columns: Columns,
        software: str,
        version: str | None,
        device: DeviceSpec,
    ) -> tuple[Columns, BoolArray]:
        """Returns the columns of calls with `release` and, if a call names no kernel, the kernel
        that the software chooses; and bool [N], whether this kind was not measured in the release.
        """
        facts, near = self.frameworks[family], self.families[family].near
        assert near is not None  # all of `SERVING` have it
        whose = np.full(len(next(iter(columns.values()))), software)
        found = dict(columns)
        if "kernel" in columns:
            types = type_words(columns, whose)
            chosen = [facts.kernel(software, str(word), device) for word in types]
            found["kernel"] = np.where(columns["kernel"] == "", chosen, columns["kernel"])
        release = np.full(len(whose), facts.release(software, version))
        is_new = np.full(len(whose), not facts.knows(software, version))
        for place, measured in enumerate(near.releases(found, whose)):
            if len(measured) and version is None:
                release[place] = measured[-1]
            elif len(measured):
                is_new[place] |= release[place] not in measured
        return {**found, "release": release}, is_new

    def _family_of(self, call: GpuCall, device: DeviceSpec, software: str | None) -> Family:
        """Returns the family that predicts a call: the library's own, if there is one."""
        family = family_of(call)
        whose = software or default_software(family, device), family
        own = next((name for name, one in LIBRARIES.items() if one == whose), family)
        is_measured = own != "gemm_tile" or getattr(call, "dtype", "").startswith("fp8")
        return own if own in self.families and is_measured else family

    def _is_measured(self, family: Family, groups: TextArray, device: DeviceSpec) -> bool:
        """Returns whether the device and these types are in the fit."""
        known = self.errors.get(device.name, {})
        are_known = not has_groups(family) or all(str(name) in known for name in groups)
        return device.name in self.devices[family] and are_known

    def _ends(
        self,
        family: Family,
        groups: TextArray,
        device: DeviceSpec,
        latency_s: FloatArray,
        *,
        is_new: BoolArray,
    ) -> tuple[FloatArray, FloatArray]:
        kinds = list(zip(groups.tolist(), is_new.tolist(), strict=True))
        known = {
            (group, new): self._errors_of(group, family, device, is_new=new)
            for group, new in set(kinds)
        }
        ends = np.array([known[one] for one in kinds])
        return latency_s * np.exp(ends[:, 0]), latency_s * np.exp(ends[:, 1])

    def _errors_of(
        self, group: str, family: Family, device: DeviceSpec, *, is_new: bool
    ) -> tuple[float, float]:
        one = errors_of(self.errors, group, device, self.devices[family])
        if is_new:
            one = LogErrors.widest([one, self.errors.get(NEW_VERSION, {}).get(family)])
        if one is None:
            raise DataError(
                f"the {self.what} has no errors of {group} for {device.name}; {self.again}, on "
                "measurements of several GPUs"
            )
        return one.low, one.high

    def save(self, path: Path) -> None:
        make_folder(path, what=self.what)
        families = {}
        for family, one in self.families.items():
            save_booster(one.booster, path / f"{family}.ubj.xz")
            if one.near is not None:
                one.near.save(path / NEAR_FILE.format(family))
            facts = {name: getattr(one, name) for name in _FACTS}
            families[family] = {**facts, "devices": list(self.devices[family])}
        about = dict(self.about)
        content = {
            "families": families, "errors": to_json(self.errors),
            "frameworks": to_json(self.frameworks), "about": about,
        }  # fmt: skip
        write_json(path / MODEL_FILE, {"format": FORMAT, **content})

    @classmethod
    def load(cls, path: Path) -> GpuKernels:
        file = path / MODEL_FILE
        state = read_json(file, what=cls.what, hint=cls.again, format=FORMAT)
        try:
            known = state["families"]
            more = [family for family in (*LIBRARIES, *SERVING) if family in known]
            has_serving = any(family in known for family in SERVING)
            kept = [family for family in FAMILIES if family in known or not has_serving]
            own: dict[Family, Any] = {family: known[family] for family in [*kept, *more]}
            families = {
                family: Efficiency(
                    load_booster(path / f"{family}.ubj.xz", hint=cls.again),
                    **{name: one[name] for name in _FACTS},
                    near=NearRows.load(path / NEAR_FILE.format(family))
                    if family in SERVING
                    else None,
                )
                for family, one in own.items()
            }
            devices = {family: tuple(one["devices"]) for family, one in own.items()}
            errors = from_json(DeviceErrors, state["errors"])
            frameworks = from_json(dict[Family, Frameworks], state["frameworks"])
            return cls(families, devices, errors, frameworks, dict(state["about"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}: cannot read the {cls.what} ({error}); {cls.again}") from None


def default_software(family: Family, device: DeviceSpec) -> str:
    """Returns the software of kernels if the user names none: the one that most GPUs in the data of
    the packaged model were measured with.
    """
    if device.vendor == "Intel":
        return "vllm_xpu"
    if device.vendor == "AMD" and device.peak_fp8_flop_per_s and family in ("gemm", "moe"):
        return "aiter"  # measured on CDNA 3 and 4 only
    return "vllm" if family == "decode" else "trtllm"


def _check_tuned(columns: Columns, version: str | None) -> None:
    named = np.unique(columns["kernel"][columns["kernel"] != ""])
    if version is None and not len(named):
        return
    what = f"version {version!r}" if version is not None else f"kernel {str(named[0])!r}"
    raise UsageError(
        f"{what}: not supported for expert layers of AMD's library, whose version is unknown; "
        "leave it out, or choose a framework as the software (vllm, sglang)"
    )


@lru_cache(maxsize=1)
def _packaged() -> GpuKernels:
    return GpuKernels.load(GpuKernels.packaged_path())
