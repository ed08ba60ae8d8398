"""What a campaign compiles for: the device's label, TVM's target and the number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.devices.registry import find_device, get_device
from cdmpp.errors import UsageError
from tvm_helper.measure.options import TrialOptions


@dataclass(frozen=True)
class MeasureTarget:
    """A device's label with what is compiled for it.

    Attributes:
        device: label.
        options: TVM's target as plain values.
        threads: threads of a program on a CPU, None on other devices.
    """

    device: str
    options: Mapping[str, Any]
    threads: int | None

    @property
    def kind(self) -> str:
        """Kind of the target, such as `llvm` or `cuda`."""
        return str(self.options["kind"])

    @property
    def text(self) -> str:
        """The target as JSON."""
        return json.dumps(dict(self.options), sort_keys=True)

    def tvm_target(self) -> Any:
        """Returns it as TVM's object."""
        from tvm_helper.compat import Target

        return Target(dict(self.options))

    def to_json(self) -> dict[str, Any]:
        """Returns what a campaign's file says of it."""
        return {
            "device": self.device,
            "target": self.text,
            "target_kind": self.kind,
            "threads": self.threads,
        }


def measure_target(options: TrialOptions, folders: Sequence[Path] = ()) -> MeasureTarget:
    """Returns what a campaign compiles for.

    A known label brings its own target and threads; what is given otherwise must agree with it.

    Raises:
        UsageError: a malformed target, threads that are not those of the label, or machine code
            asked of what is no CPU.
        DeviceError: an unknown label without a target.
    """
    from tvm_helper.compat import Target

    spec = find_device(options.device, folders)
    if options.target is None:
        from tvm_helper.programs.target import device_target

        target = device_target(get_device(options.device, folders))
    else:
        try:
            text = options.target.strip()
            target = Target(json.loads(text) if text.startswith("{") else text)
        except Exception as error:  # TVM raises whatever its target parser does
            raise UsageError(
                f"target {options.target!r} is none of TVM's ({str(error).strip()[:160]}); "
                'expected JSON such as {"kind": "llvm", "mcpu": "core-avx2"}, or a tag'
            ) from None
    values = _plain(target.export())
    if values["kind"] != "llvm":
        if options.machine_code:
            raise UsageError(
                f"machine_code: {options.device} is compiled for {values['kind']}; expected a CPU, "
                "or leave it out"
            )
        return MeasureTarget(options.device, values, None)
    known = spec.threads if spec is not None else None
    threads = options.threads or known or values.get("num-cores")
    if threads is None:
        raise UsageError(
            f"device {options.device!r}: the number of threads is not known; give --threads N"
        )
    for name, other in (("the device's label", known), ("the target", values.get("num-cores"))):
        if other is not None and other != threads:
            raise UsageError(
                f"device {options.device!r}: {threads} threads are asked for, {name} says {other}; "
                "a label stands for one number of threads, use the label of the other"
            )
    values["num-cores"] = threads
    return MeasureTarget(options.device, values, int(threads))


def _plain(value: Any) -> Any:
    """Returns TVM's values as JSON has them."""
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return [_plain(item) for item in value]
