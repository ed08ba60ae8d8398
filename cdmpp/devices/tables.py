"""Devices as text: the list, one device with its sources, and the documentation page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple

from cdmpp.devices.occupancy import COMPUTE_CAPABILITIES, occupancy_limits
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.places import package_folder
from cdmpp.text import aligned, counted, markdown_table

_UNKNOWN = "-"
_WITHOUT_VALUE = frozenset({"name", "kind", "sources"})


class _Column(NamedTuple):
    title: str
    field: str
    unit: float = 1.0


_SHARED_COLUMNS = (
    _Column("cores", "core_count"),
    _Column("clock (GHz)", "clock_hz", 1e9),
    _Column("fp32 (TFLOP/s)", "peak_fp32_flop_per_s", 1e12),
)
_MEMORY_COLUMNS = (
    _Column("memory (GB/s)", "mem_bandwidth_bytes_per_s", 1e9),
    _Column("memory (GiB)", "mem_bytes", 2.0**30),
    _Column("L1 (KiB)", "l1_bytes", 1024),
    _Column("L2 (KiB)", "l2_bytes", 1024),
)
_MATRIX_COLUMNS = (
    _Column("bf16", "peak_bf16_flop_per_s", 1e12),
    _Column("fp8", "peak_fp8_flop_per_s", 1e12),
    _Column("fp4", "peak_fp4_flop_per_s", 1e12),
    _Column("int8", "peak_int8_op_per_s", 1e12),
)
_BOARD_COLUMNS = (
    _Column("link (GB/s)", "link_bandwidth_bytes_per_s", 1e9),
    _Column("TDP (W)", "tdp_w"),
)
_COLUMNS = {
    "gpu": (
        _Column("architecture", "architecture"),
        _Column("capability", "compute_capability"),
        *_SHARED_COLUMNS,
        _Column("fp16", "peak_fp16_flop_per_s", 1e12),
        _Column("tensor", "peak_tensor_flop_per_s", 1e12),
        *_MATRIX_COLUMNS,
        *_MEMORY_COLUMNS,
        _Column("shared (KiB)", "shared_mem_bytes_per_core", 1024),
        _Column("registers", "registers_per_core"),
        _Column("kernel (µs)", "launch_s", 1e-6),
        *_BOARD_COLUMNS,
    ),
    "cpu": (
        _Column("architecture", "architecture"),
        *_SHARED_COLUMNS,
        _Column("threads", "threads"),
        _Column("SIMD bits", "simd_bits"),
        *_MEMORY_COLUMNS,
        _Column("L3 (KiB)", "l3_bytes", 1024),
        _Column("TDP (W)", "tdp_w"),
    ),
    "accelerator": (
        _Column("architecture", "architecture"),
        *_SHARED_COLUMNS,
        *_MATRIX_COLUMNS,
        *_MEMORY_COLUMNS,
        *_BOARD_COLUMNS,
    ),
}
#: Maximum number of columns of a table of the page, besides the label: fits 1000 pixels.
_MOST_COLUMNS = 8
_TITLES = {"gpu": "GPUs", "cpu": "CPUs", "accelerator": "accelerators"}
#: Columns of the list in the terminal, 80 characters wide; rates in TFLOP/s, memory in GiB and
#: GB/s.
_SHORT_COLUMNS = (
    _Column("architecture", "architecture"),
    _Column("cores", "core_count"),
    _Column("GHz", "clock_hz", 1e9),
    _Column("fp32", "peak_fp32_flop_per_s", 1e12),
    _Column("tensor", "peak_tensor_flop_per_s", 1e12),
    _Column("GiB", "mem_bytes", 2.0**30),
    _Column("GB/s", "mem_bandwidth_bytes_per_s", 1e9),
    _Column("watts", "tdp_w"),
)


def devices_text(devices: Sequence[DeviceSpec]) -> str:
    """Returns the number of devices and a table of 80 characters for each kind."""
    if not devices:
        return "no devices"
    counts, parts = [], []
    for kind in _COLUMNS:
        own = [spec for spec in devices if spec.kind == kind]
        if not own:
            continue
        counts.append(f"{len(own)} {_TITLES[kind]}")
        columns = [c for c in _SHORT_COLUMNS if any(getattr(spec, c.field) for spec in own)]
        rows = [["label", *(column.title for column in columns)]]
        rows += [
            [spec.name, *(_cell(spec, column, digits=4) for column in columns)] for spec in own
        ]
        parts.append(aligned(rows, "llr"))
    return "\n\n".join(
        [
            f"{counted(len(devices), 'device')} ({', '.join(counts)})",
            *parts,
            "fp32, tensor: peak TFLOP/s, tensor cores at fp16; GiB, GB/s: memory; -: unknown.\n"
            "All values of a device, with their sources: cdmpp device show LABEL",
        ]
    )


def device_text(spec: DeviceSpec, aliases: Sequence[str] = (), *, only_known: bool = False) -> str:
    """Returns every field of a device in SI units, each with its source.

    Args:
        only_known: whether to omit fields without a value.
    """
    names = f" (also {', '.join(aliases)})" if aliases else ""
    lines = [f"{spec.name}{names}: {spec.kind}"]
    shown = [item.name for item in fields(DeviceSpec) if item.name not in _WITHOUT_VALUE]
    for name in shown:
        value = getattr(spec, name)
        if value is None:
            lines += [] if only_known else [f"  {name:27}unknown"]
        else:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            lines.append(f"  {name:27}{text:13} {spec.sources.get(name, 'no source')}")
    return "\n".join(lines)


def devices_markdown(
    devices: Iterable[DeviceSpec], aliases: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Returns the page `docs/devices.md`: a table per kind of device, and the occupancy limits.

    Args:
        aliases: label -> aliases.
    """
    devices = list(devices)
    names = aliases or {}
    parts = [(package_folder("cdmpp.devices") / "page.md").read_text("utf-8")]
    for kind, columns in _COLUMNS.items():
        own = [spec for spec in devices if spec.kind == kind]
        if not own:
            continue
        title = _TITLES[kind]
        parts.append(f"\n## {title[0].upper()}{title[1:]}\n")
        rows = [
            [", ".join(names.get(spec.name, ())) or _UNKNOWN, *(_cell(spec, c) for c in columns)]
            for spec in own
        ]
        titles = ["also", *(column.title for column in columns)]
        for start in range(0, len(titles), _MOST_COLUMNS):
            end = start + _MOST_COLUMNS
            lines = [[spec.name, *row[start:end]] for spec, row in zip(own, rows, strict=True)]
            parts.append(f"\n{markdown_table(['label', *titles[start:end]], lines)}\n")
    if any(spec.kind == "gpu" for spec in devices):
        parts.append(_limits_markdown())
    return "".join(parts)


def _limits_markdown() -> str:
    titles = [
        "capability", "warps", "blocks", "registers", "shared (KiB)", "shared per block (KiB)",
        "shared unit (bytes)", "reserved per block (bytes)",
    ]  # fmt: skip
    rows = []
    for capability in COMPUTE_CAPABILITIES:
        limits = occupancy_limits(capability)
        values = (
            limits.max_warps_per_core,
            limits.max_blocks_per_core,
            limits.registers_per_core,
            limits.shared_bytes_per_core // 1024,
            limits.shared_bytes_per_block // 1024,
            limits.shared_allocation_bytes,
            limits.reserved_shared_bytes_per_block,
        )
        rows.append([capability, *map(str, values)])
    return (
        "\n## Occupancy limits\n\n"
        "Per multiprocessor of an NVIDIA GPU (CUDA C++ Programming Guide, technical "
        "specifications); `cdmpp device occupancy` computes with them.\n\n"
        f"{markdown_table(titles, rows)}\n"
    )


def _cell(spec: DeviceSpec, column: _Column, digits: int = 5) -> str:
    value = getattr(spec, column.field)
    if value is None:
        return _UNKNOWN
    if isinstance(value, str):
        return value
    number = value / column.unit
    return str(int(number)) if number == int(number) else f"{number:.{digits}g}"
