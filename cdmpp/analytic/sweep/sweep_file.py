"""Measurements of a sweep: a JSON file beside the device file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.analytic.sweep.calls import SweepCall, call_json, call_of
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError, DataError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.files.places import package_folder

FORMAT = "gpu-sweep-1"
_AGAIN = "measure it again: cdmpp device add NAME --sweep"


@dataclass(frozen=True)
class MeasuredCall:
    """A measured call of a sweep.

    Attributes:
        call: the call.
        latency_s: median over the repeats, seconds.
        noise: half the interquartile range over the median.
        repeats: number of repeats.
    """

    call: SweepCall
    latency_s: float
    noise: float
    repeats: int


@dataclass(frozen=True)
class Sweep:
    """Measurements of a sweep of one device.

    Attributes:
        device: label of the device.
        software: software that launched the kernels, e.g. `torch`.
        calls: measured calls.
        failed: (call, reason) of the calls without a time.
        about: free-form facts: date, versions, driver, clocks, protocol.
    """

    device: str
    software: str
    calls: Sequence[MeasuredCall]
    failed: Sequence[tuple[SweepCall, str]]
    about: Mapping[str, Any]

    def save(self, path: Path) -> None:
        """Writes the file.

        Raises:
            DataError: the file cannot be written.
        """
        rows = [
            {
                "call": call_json(one.call),
                "latency_s": one.latency_s,
                "noise": round(one.noise, 5),
                "repeats": one.repeats,
            }
            for one in self.calls
        ]
        failed = [{"call": call_json(call), "reason": why} for call, why in self.failed]
        facts = {"device": self.device, "software": self.software, "about": dict(self.about)}
        write_json(path, {"format": FORMAT, **facts, "calls": rows, "failed": failed})

    @classmethod
    def load(cls, path: Path) -> Sweep:
        """Reads what `save` wrote.

        Raises:
            DataError: the file is missing, damaged or of another format.
        """
        value = read_json(path, what="sweep of a GPU", hint=_AGAIN, format=FORMAT)
        try:
            calls = [
                MeasuredCall(
                    call_of(row["call"]), _positive(row["latency_s"]), float(row["noise"]),
                    int(row["repeats"]),
                )
                for row in value["calls"]
            ]  # fmt: skip
            failed = [(call_of(row["call"]), str(row["reason"])) for row in value["failed"]]
            texts = str(value["device"]), str(value["software"])
            return cls(*texts, calls, failed, dict(value["about"]))
        except (KeyError, TypeError, ValueError, CdmppError) as error:
            raise DataError(f"{path}: cannot read the sweep ({error!r}); {_AGAIN}") from None


def sweep_of(device: DeviceSpec) -> Sweep | None:
    """Returns the sweep that a GPU's device file names; None if it names none.

    Raises:
        DataError: the file is missing or damaged.
    """
    if device.kernel_sweep is None:
        return None
    path = Path(device.kernel_sweep)
    return _read(path, path.stat().st_mtime_ns if path.is_file() else 0)


def packaged_sweep() -> Sweep:
    """Returns the sweep that comes with the package: torch kernels on one GPU.

    Raises:
        DataError: the sweep cannot be read.
    """
    return _read(package_folder("cdmpp.pretrained") / "gpu_sweep" / "h200.sweep.json", 0)


@lru_cache(maxsize=8)
def _read(path: Path, changed_ns: int) -> Sweep:
    return Sweep.load(path)


def _positive(value: Any) -> float:
    number = float(value)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"latency_s is {value!r}, expected positive seconds")
    return number
