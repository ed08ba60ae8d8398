"""DeviceSpec of an NVIDIA GPU of this machine, as reported by its driver."""

from __future__ import annotations

import subprocess

from cdmpp.devices.occupancy import COMPUTE_CAPABILITIES, occupancy_limits
from cdmpp.devices.registry import find_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError

_FIELDS = ("name", "memory.total", "clocks.max.sm", "compute_cap")
_ARCHITECTURES = {
    "3": "kepler", "5": "maxwell", "6": "pascal", "7.0": "volta", "7.2": "volta", "7.5": "turing",
    "8.9": "ada", "8": "ampere", "9": "hopper", "10": "blackwell", "12": "blackwell",
}  # fmt: skip
_TIMEOUT_S = 30


def nvidia_smi(*, hint: str = "leave --target out to add this machine's CPU") -> str:
    """Returns the line that nvidia-smi prints for the first GPU.

    Args:
        hint: next step for the error text.

    Raises:
        DeviceError: nvidia-smi is missing or fails.
    """
    command = [
        "nvidia-smi",
        "--id=0",
        f"--query-gpu={','.join(_FIELDS)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(
            f"cannot describe an NVIDIA GPU here: nvidia-smi cannot be run ({error}); {hint}"
        ) from None
    if done.returncode != 0 or not done.stdout.strip():
        text = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["it prints nothing"]
        raise DeviceError(
            f"cannot describe an NVIDIA GPU here: nvidia-smi fails ({text[-1][:160]}); {hint}"
        )
    return done.stdout.strip().splitlines()[0]


def probe_nvidia(name: str, line: str) -> DeviceSpec:
    """Returns the description of a GPU from a line of `nvidia_smi`; unknown fields are None.

    Args:
        name: label of the device.

    Raises:
        DeviceError: the line has another form.
    """
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(_FIELDS):
        raise DeviceError(
            f"nvidia-smi printed {line!r}; expected {len(_FIELDS)} values: {', '.join(_FIELDS)}"
        )
    product, memory, clock, capability = words
    source = {key: f"{key} of nvidia-smi ({product})" for key in _FIELDS}
    values: dict[str, tuple[str | int | float, str]] = {"vendor": ("NVIDIA", source["name"])}
    if memory.isdecimal():
        values["mem_bytes"] = (int(memory) << 20, source["memory.total"])
    if clock.isdecimal():
        values["clock_hz"] = (1e6 * int(clock), source["clocks.max.sm"])
    if capability.replace(".", "", 1).isdecimal():
        values["compute_capability"] = (capability, source["compute_cap"])
        major = capability.partition(".")[0]
        architecture = _ARCHITECTURES.get(capability, _ARCHITECTURES.get(major))
        if architecture:
            values["architecture"] = (architecture, f"compute capability {capability}")
        if capability in COMPUTE_CAPABILITIES:
            limits = occupancy_limits(capability)
            table = f"CUDA C++ Programming Guide, compute capability {capability}"
            values["shared_mem_bytes_per_core"] = (limits.shared_bytes_per_core, table)
            values["registers_per_core"] = (limits.registers_per_core, table)
    return DeviceSpec(
        name=name,
        kind="gpu",
        sources={field: told for field, (_, told) in values.items()},
        **{field: value for field, (value, _) in values.items()},  # type: ignore[arg-type]
    )


def check_not_known(line: str) -> None:
    """Checks that the GPU of a line of `nvidia_smi` is not in the registry.

    Raises:
        UsageError: the registry has the GPU.
    """
    product = line.partition(",")[0].strip()
    known = find_device(product)
    if known is not None:
        raise UsageError(
            f"this GPU ({product}) is already described as {known.name}; add it with that label: "
            f"cdmpp device add {known.name} --spec"
        )
