"""Compile target of a campaign: the device's label, TVM's target and the number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cdmpp.devices.probe import probe_cpu
from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.this_machine import check_is_here
from cdmpp.errors import DeviceError, UsageError
from cdmpp.machine import allowed_cpus
from tvm_helper.measure.options import TrialOptions

Options = TypeVar("Options", bound=TrialOptions)
_X86_BASELINE, _NARROW_BITS = "x86-64-v2", 128
#: Feature of an LLVM target -> width in bits of its float32 code, widest first.
_WIDTHS = (("avx512vl", 512), ("avx2", 256))


@dataclass(frozen=True)
class MeasureTarget:
    """Compile target of a device.

    Attributes:
        device: label of the device.
        options: TVM's target as plain values.
        threads: threads of a program on a CPU; None on other devices.
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
        """Returns the target as an object of TVM."""
        from tvm_helper.compat import Target

        return Target(dict(self.options))

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON values for a campaign's file."""
        return {
            "device": self.device,
            "target": self.text,
            "target_kind": self.kind,
            "threads": self.threads,
        }


def with_registered_label(options: Options, folders: Sequence[Path] = ()) -> Options:
    """Returns the options with the device's label as spelled in the registry."""
    spec = find_device(options.device, folders)
    return options if spec is None else replace(options, device=spec.name)


def measure_target(options: TrialOptions, folders: Sequence[Path] = ()) -> MeasureTarget:
    """Returns the compile target of a campaign.

    Target and threads default to those of a known label. Given threads must agree with the label
    and with the target.

    Raises:
        UsageError: a malformed target, threads that differ from those of the label, or machine
            code requested of a device that is not a CPU.
        DeviceError: an unknown label without a target.
    """
    from tvm_helper.compat import Target

    spec = find_device(options.device, folders)
    if options.target is None:
        target = Target(json.loads(target_text(get_device(options.device, folders))))
    else:
        try:
            text = options.target.strip()
            target = Target(json.loads(text) if text.startswith("{") else text)
        except Exception as error:  # TVM's parser raises many types
            raise UsageError(
                f"target {options.target!r} is not a TVM target ({str(error).strip()[:160]}); "
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
                f"device {options.device!r}: {threads} got {threads} threads, but {name} has "
                f"{other}; every number of threads needs its own label"
            )
    values["num-cores"] = threads
    return MeasureTarget(options.device, values, int(threads))


def target_text(spec: DeviceSpec) -> str:
    """Returns TVM's target for a device as JSON; for an x86 CPU without AVX2, `x86-64-v2`.

    Raises:
        DeviceError: TVM has no target for such hardware.
    """
    if spec.kind == "cpu" and spec.vendor in ("AMD", "Intel") and spec.simd_bits == _NARROW_BITS:
        return json.dumps({"kind": "llvm", "mcpu": _X86_BASELINE})
    from tvm_helper.tasks.target import device_target

    return str(device_target(spec))


def this_cpu(threads: int | None = None) -> MeasureTarget:
    """Returns the compile target of this machine's CPU, independent of labels.

    Args:
        threads: threads of a program; None = one per usable CPU.

    Raises:
        DeviceError: the CPU cannot be identified.
    """
    spec = replace(probe_cpu("here"), threads=threads or allowed_cpus() or 1)
    options = TrialOptions(device=spec.name, target=target_text(spec), threads=spec.threads)
    return measure_target(options)


def check_machine(
    label: str, target: Any, spec: DeviceSpec | None, *, is_forced: bool = False
) -> None:
    """Checks that this machine is the device to measure.

    Args:
        label: label of the device.
        target: TVM's target.
        spec: description of the device; None for a new label.
        is_forced: whether to accept another device of the target's kind.

    Raises:
        DeviceError: there is no GPU for the target, the label describes another device, or the CPU
            does not support the target's vector instructions.
    """
    check_present(label, target)
    if is_forced:
        return
    if spec is not None:
        check_is_here(spec)
    if target.kind.name == "llvm":
        bits, here = code_bits(target), probe_cpu("here").simd_bits
        if here is not None and bits > here:
            raise DeviceError(
                f"{label} is compiled to instructions of {bits} bits, this CPU has {here}; "
                "choose another label or --target, or override with --force"
            )


def check_present(label: str, target: Any) -> None:
    """Checks that this machine has a GPU if the target needs one; for arguments see
    `check_machine`.

    Raises:
        DeviceError: TVM finds no such GPU.
    """
    from tvm_helper.compat import tvm

    kind = str(target.kind.name)
    if kind != "llvm" and not tvm.device(kind).exist:
        raise DeviceError(
            f"{label} is compiled for {kind}, but TVM finds no such GPU on this machine. Run "
            "this on a machine with the GPU, or choose the label of this machine's CPU"
        )


def code_bits(target: Any) -> int:
    """Returns the width in bits of the float32 code of an LLVM target."""
    from tvm_helper.compat import tvm

    has_feature = tvm.get_global_func("target.target_has_feature")
    return next((bits for flag, bits in _WIDTHS if has_feature(flag, target)), _NARROW_BITS)


def _plain(value: Any) -> Any:
    """Returns values of TVM as JSON values."""
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return [_plain(item) for item in value]
