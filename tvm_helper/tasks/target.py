"""TVM's compile target of a DeviceSpec."""

from __future__ import annotations

from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from tvm_helper.compat import Target

_X86_VENDORS = frozenset({"AMD", "Intel"})
#: Limits of a GPU kernel that all current devices support.
_KERNEL_LIMITS = {
    "max_shared_memory_per_block": 49152, "max_threads_per_block": 1024, "thread_warp_size": 32,
}  # fmt: skip


def device_target(spec: DeviceSpec) -> Target:
    """Returns the target for which programs of a device are scheduled.

    A CPU target has the threads of the label; vendor and vector width determine its instruction
    set. Unknown values get defaults.

    Raises:
        DeviceError: TVM has no target for such hardware.
    """
    options = _options(spec)
    try:
        return Target(options)
    except Exception as error:  # TVM's parser raises many types
        text = (str(error).strip().splitlines() or [""])[-1]
        raise DeviceError(
            f"{spec.name}: TVM has no target {options} ({text[:120]}); expected a CPU, an NVIDIA "
            "or an AMD GPU"
        ) from None


def _options(spec: DeviceSpec) -> dict[str, Any]:
    if spec.kind == "cpu":
        options: dict[str, Any] = {"kind": "llvm"}
        cores = spec.threads or spec.core_count
        if cores:
            options["num-cores"] = cores
        if spec.vendor is None or spec.vendor in _X86_VENDORS:
            options["mcpu"] = "skylake-avx512" if spec.simd_bits == 512 else "core-avx2"
        else:
            options["mtriple"] = "aarch64-linux-gnu"
        return options
    if spec.kind == "gpu" and spec.vendor == "AMD":
        architecture = spec.compute_capability or ""
        mcpu = {"mcpu": architecture} if architecture.startswith("gfx") else {}
        return {"kind": "rocm", **mcpu, **_KERNEL_LIMITS, "thread_warp_size": spec.warp_size or 64}
    if spec.kind == "gpu" and spec.vendor in (None, "NVIDIA"):
        capability = (spec.compute_capability or "7.0").replace(".", "")
        return {"kind": "cuda", "arch": f"sm_{capability}", **_KERNEL_LIMITS}
    raise DeviceError(
        f"{spec.name} is a {spec.vendor or ''} {spec.kind}, for which TVM has no target here; "
        "expected a CPU, an NVIDIA or an AMD GPU, see `cdmpp device list`"
    )
