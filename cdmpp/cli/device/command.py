"""`cdmpp device`: known devices, the source of each number, the occupancy calculator."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdmpp.cli.shared.option_table import add_table
from cdmpp.cli.shared.options import add_devices_option, device_folders
from cdmpp.devices.device_file import load_device_spec
from cdmpp.devices.occupancy import (
    Occupancy,
    OccupancyLimits,
    device_occupancy_limits,
    occupancy,
)
from cdmpp.devices.of_run import run_spec, run_specs
from cdmpp.devices.registry import THIS_CPU, get_device, load_aliases, load_registry
from cdmpp.devices.spec import DeviceSpec, same_architecture
from cdmpp.devices.tables import device_text, devices_markdown, devices_text
from cdmpp.errors import DeviceError, UsageError


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `device list`."""
    add_table(parser, """
        --kind gpu|cpu|accelerator  only devices of this kind
    """)  # fmt: skip
    form = parser.add_mutually_exclusive_group()
    add_table(form, """
        --markdown  print the tables as Markdown
        --json      print one JSON array
    """)  # fmt: skip
    add_devices_option(parser)
    _add_run(parser)


def add_show_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `device show`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="label or alias, e.g. t4")
    where = parser.add_mutually_exclusive_group()
    _add_device_file(where)
    _add_run(where)
    add_table(parser, """
        --json  print one JSON object
    """)  # fmt: skip
    add_devices_option(parser)


def add_occupancy_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `device occupancy`."""
    add_table(parser, """
        --threads N: int required    threads of a block
        --registers N: int required  registers of a thread
        --shared-mem BYTES: int = 0  shared memory of a block
        --device NAME                label or alias of an NVIDIA GPU
    """)  # fmt: skip
    _add_device_file(parser)
    add_table(parser, """
        --json  print one JSON object
    """)  # fmt: skip
    add_devices_option(parser)


def run_list(args: argparse.Namespace) -> int:
    """Runs `cdmpp device list`; returns the exit code."""
    folders = device_folders(args.devices)
    if args.run_folder is not None:
        known = run_specs(args.run_folder)
    else:
        known = list(load_registry(folders).values())
    devices = [spec for spec in known if args.kind in (None, spec.kind)]
    names = _aliases_by_label(folders)
    if args.json:
        print(json.dumps([_json_device(spec, names.get(spec.name, [])) for spec in devices]))
    elif args.markdown:
        print(devices_markdown(devices, names), end="")
    else:
        print(devices_text(devices))
        if args.run_folder is None and args.kind in (None, "cpu"):
            print(f"\n{_this_cpu(known)}")
    return 0


def run_show(args: argparse.Namespace) -> int:
    """Runs `cdmpp device show`; returns the exit code."""
    folders = device_folders(args.devices)
    if args.run_folder is not None and args.name is not None:
        spec = run_spec(args.run_folder, args.name)
    else:
        spec = _device(args.name, args.device_spec, folders, "give a NAME")
    names = _aliases_by_label(folders).get(spec.name, [])
    if args.json:
        print(json.dumps(_json_device(spec, names)))
    else:
        print(device_text(spec, names))
    return 0


def run_occupancy(args: argparse.Namespace) -> int:
    """Runs `cdmpp device occupancy`; returns the exit code."""
    spec = _device(
        args.device, args.device_spec, device_folders(args.devices), "give --device NAME"
    )
    limits = device_occupancy_limits(spec)
    result = occupancy(
        limits,
        args.threads,
        registers_per_thread=args.registers,
        shared_bytes_per_block=args.shared_mem,
    )
    if args.json:
        print(json.dumps({"device": spec.name, "limits": asdict(limits), **asdict(result)}))
    else:
        print(_occupancy_text(spec, limits, result))
    return 0


def _this_cpu(known: Sequence[DeviceSpec]) -> str:
    try:
        spec = get_device(THIS_CPU)
    except DeviceError as error:
        text = f"{THIS_CPU} is not known here: {error}"
    else:
        akin = same_architecture(spec, known)
        names = " ".join(word for word in (spec.vendor, spec.architecture) if word) or "unknown"
        text = (
            f"{THIS_CPU} is the CPU of this machine "
            f"({names}{', as ' + ', '.join(akin) if akin else ''}), as described by the "
            f"operating system; details: cdmpp device show {THIS_CPU}"
        )
    return textwrap.fill(text, shutil.get_terminal_size().columns, break_on_hyphens=False)


def _add_run(parser: argparse._ActionsContainer) -> None:
    add_table(parser, """
        --run RUN: Path as run_folder  devices that the model of a run folder was trained on, e.g.
            by `device add`
    """)  # fmt: skip


def _add_device_file(parser: argparse._ActionsContainer) -> None:
    add_table(parser, """
        --device-spec YAML: Path  file that describes one device
    """)  # fmt: skip


def _device(name: str | None, file: Path | None, folders: list[Path], hint: str) -> DeviceSpec:
    """Returns the requested device, from the file of --device-spec or from the registry.

    Raises:
        UsageError: neither is given.
        DeviceError: the name is unknown, or the file is invalid.
    """
    if file is not None:
        return load_device_spec(file, name)
    if name is None:
        raise UsageError(f"no device: {hint} or --device-spec YAML; list them: cdmpp device list")
    return get_device(name, folders)


def _aliases_by_label(folders: list[Path]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for alias, label in load_aliases(folders).items():
        names.setdefault(label, []).append(alias)
    return names


def _json_device(spec: DeviceSpec, aliases: list[str]) -> dict[str, Any]:
    return {**asdict(spec), "aliases": aliases}


def _occupancy_text(spec: DeviceSpec, limits: OccupancyLimits, result: Occupancy) -> str:
    words: dict[str, Callable[[], str]] = {
        "warps": lambda: f"{limits.max_warps_per_core} warps",
        "blocks": lambda: f"{limits.max_blocks_per_core} blocks",
        "registers": lambda: (
            f"{limits.registers_per_core} registers, a block needs {result.registers_per_block}"
        ),
        "shared_memory": lambda: (
            f"{limits.shared_bytes_per_core} bytes of shared memory, a block needs "
            f"{result.shared_bytes_per_block}"
        ),
    }
    lines = [
        f"{spec.name}, compute capability {limits.compute_capability}",
        f"blocks per multiprocessor  {result.blocks_per_core}",
        f"warps per multiprocessor   {result.warps_per_core} of {limits.max_warps_per_core}",
        f"occupancy                  {100 * result.occupancy:.1f} %",
        f"limited by                 {' and '.join(result.limiters)}".replace("_", " "),
    ]
    for name, allowed in result.block_limits.items():
        shown = "not used" if allowed is None else f"{allowed} blocks"
        lines.append(f"  {name.replace('_', ' '):15}{shown:>10}  ({words[name]()})")
    if not result.blocks_per_core:
        lines.append(
            "the kernel cannot be launched: a block may have "
            f"{limits.max_threads_per_block} threads, {limits.registers_per_block} registers "
            f"({limits.max_registers_per_thread} a thread) and {limits.shared_bytes_per_block} "
            "bytes of shared memory"
        )
    return "\n".join(lines)
