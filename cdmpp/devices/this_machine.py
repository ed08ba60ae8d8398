"""Check that a device's description fits this machine."""

from __future__ import annotations

from pathlib import Path

from cdmpp.devices.probe import probe_cpu
from cdmpp.devices.probe_gpu import nvidia_smi, probe_nvidia
from cdmpp.devices.registry import find_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError


def check_is_here(spec: DeviceSpec, *, root: Path = Path("/")) -> None:
    """Checks that a device's description can be that of this machine's CPU or first NVIDIA GPU.

    Compares the architecture (the vendor if an architecture is unknown), the SIMD width, the
    compute capability, and for GPUs the registry's label of the product. An unknown field matches
    everything. Other GPUs and accelerators are not checked.

    Args:
        root: folder with `proc` and `sys`.

    Raises:
        DeviceError: the description is of another device, or nvidia-smi is missing or fails.
    """
    if spec.kind == "cpu":
        here, product = probe_cpu("this CPU", root=root), None
    elif spec.kind == "gpu" and spec.vendor in (None, "NVIDIA"):
        line = nvidia_smi(hint=f"choose the label of this machine, not {spec.name}")
        here, product = probe_nvidia("this GPU", line), line.partition(",")[0].strip()
    else:
        return
    difference = _difference(spec, here)
    if product is not None:
        asked, known = find_device(spec.name), find_device(product)
        if asked is not None and known is not None and asked.name != known.name:
            difference = f"this GPU is {known.name} ({product})"
    if difference is not None:
        raise DeviceError(
            f"{spec.name} does not describe this machine ({difference}), so measurements here "
            "would be of another device. Describe this machine with `cdmpp device add NAME`, or "
            "override with --force"
        )


def _difference(spec: DeviceSpec, here: DeviceSpec) -> str | None:
    if spec.architecture and here.architecture:
        if spec.architecture != here.architecture:
            return f"it is {_called(spec)}, {here.name} is {_called(here)}"
    elif spec.vendor and here.vendor and spec.vendor != here.vendor:
        return f"it is {_called(spec)}, {here.name} is {_called(here)}"
    if spec.simd_bits and here.simd_bits and spec.simd_bits > here.simd_bits:
        return f"its instructions have {spec.simd_bits} bits, those of {here.name} {here.simd_bits}"
    capabilities = spec.compute_capability, here.compute_capability
    if None not in capabilities and len(set(capabilities)) > 1:
        return (
            f"its compute capability is {spec.compute_capability}, that of {here.name} "
            f"{here.compute_capability}"
        )
    return None


def _called(spec: DeviceSpec) -> str:
    return " ".join(word for word in (spec.vendor, spec.architecture) if word)
