"""`cdmpp device add NAME --sweep`: measures reference kernels of a GPU with torch."""

from __future__ import annotations

import argparse
import datetime
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.sweep.calls import sweep_calls, sweep_family
from cdmpp.analytic.sweep.run import Launcher, expected_s, plan_of, run_sweep
from cdmpp.analytic.sweep.sweep_file import Sweep
from cdmpp.analytic.sweep.timers import CudaTimer, Timer
from cdmpp.analytic.sweep.torch_kernels import TorchLauncher
from cdmpp.cli.shared.progress import campaign_progress
from cdmpp.devices.device_file import load_device_spec
from cdmpp.devices.probe_gpu import check_not_known, nvidia_smi, probe_nvidia
from cdmpp.devices.registry import find_device, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.machine import versions
from cdmpp.text import aligned

MINUTES = 5.0
_HINT = "leave --sweep out to add this machine's CPU"


def run_sweep_command(args: argparse.Namespace, folder: Path) -> int:
    """Measures the sweep and writes the device's file; returns the exit code."""
    kernels, timer, told, about = gpu_here(args.name)
    if args.spec:
        spec = _known(args.name, told, is_forced=args.force)
    else:
        spec = _new(args.name, args.device_spec, told)
    calls = sweep_calls()
    minutes = MINUTES if args.minutes is None else args.minutes
    expected = sum(
        plan_of(*one).seconds for one in zip(calls, expected_s(calls, spec), strict=True)
    )
    is_quiet = args.json or args.quiet
    if not is_quiet:
        print(
            f"{len(calls)} reference kernels, about {expected / 60:.1f} min on {spec.name} as "
            f"predicted, at most {minutes:g}"
        )
    with campaign_progress(is_quiet=is_quiet) as show:
        device, sweep, path = run_sweep(
            spec, folder, kernels, timer, minutes=minutes, about=about, calls=calls,
            on_progress=show,
        )  # fmt: skip
    if args.json:
        facts = {"measured": len(sweep.calls), "failed": len(sweep.failed)}
        print(json.dumps({"device": device.name, "device_file": str(path), **facts}))
        return 0
    print(aligned(_summary(sweep)))
    print(
        f"\ndevice  {path}\n"
        f"next    cdmpp analytic kernels predict --kernel gemm --call m=64,n=4096,k=4096 "
        f"--device-spec {path}\n"
        f"        cdmpp compare --transformer layers=32,width=4096,heads=32,kv_heads=8,ffn=14336,"
        f"vocab=128256 --decode-at 4096 --device-spec {path}"
    )
    return 0


def gpu_here(name: str) -> tuple[Launcher, Timer, DeviceSpec, dict[str, Any]]:
    """Returns a launcher and timer for this machine's GPU, its DeviceSpec, and facts for the file.

    Raises:
        DeviceError: torch sees no CUDA GPU, or nvidia-smi is missing or fails.
    """
    import torch

    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} sees no CUDA GPU here; expected one for --sweep. Install a "
            f"CUDA build of torch on the machine with the GPU and run the command there, or {_HINT}"
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    line = nvidia_smi(hint=_HINT)
    told = probe_nvidia(name, line)
    properties = torch.cuda.get_device_properties(0)
    more: dict[str, Any] = {"core_count": properties.multi_processor_count}
    l2_bytes = getattr(properties, "L2_cache_size", 0)
    more |= {"l2_bytes": l2_bytes} if l2_bytes else {}
    sources = dict.fromkeys(more, "torch.cuda.get_device_properties")
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "gpu": line, "cuda": torch.version.cuda, "versions": versions(),
        "timing": "serving kernels: CUDA graphs of repeated calls, operands stay in the L2; "
        "operators in fp32: one call between two events",
    }  # fmt: skip
    spec = replace(told, **more, sources={**told.sources, **sources})
    return TorchLauncher(torch, "cuda"), CudaTimer(torch), spec, about


def _product(told: DeviceSpec) -> str:
    """Returns the driver's name of the GPU."""
    return told.sources.get("vendor", "").partition("(")[2].rstrip(")")


def _known(name: str, told: DeviceSpec, *, is_forced: bool) -> DeviceSpec:
    """Returns the registry's description of a label.

    Raises:
        DeviceError: the label is of another GPU.
    """
    product = _product(told)
    known, here = get_device(name), find_device(product)
    if not is_forced and (here is None or here.name != known.name):
        raise DeviceError(
            f"this GPU is {product}, expected {known.name}. Add it under a new label with "
            "--device-spec FILE, or override with --force"
        )
    return known


def _new(name: str, file: Path | None, told: DeviceSpec) -> DeviceSpec:
    """Returns the user's description, completed by the driver's, or the driver's alone.

    Raises:
        UsageError: no file is given and the registry has the GPU.
        DeviceError: the file is not of a GPU, or numbers that the models need are missing.
    """
    if file is None:
        check_not_known(_product(told))
        given = told
    else:
        given = replace(load_device_spec(file), name=name, kernel_sweep=None)
        if given.kind != "gpu":
            raise DeviceError(f"{file}: kind is {given.kind!r}, expected 'gpu' for --sweep")
        more = {
            one.name: getattr(told, one.name)
            for one in fields(DeviceSpec)
            if one.name not in ("name", "kind", "sources") and getattr(given, one.name) is None
        }
        given = replace(given, **more, sources={**told.sources, **given.sources})
    needed = (
        "core_count", "clock_hz", "l2_bytes", "mem_bandwidth_bytes_per_s", "peak_fp32_flop_per_s",
        "peak_bf16_flop_per_s",
    )  # fmt: skip
    missing = [name for name in needed if getattr(given, name) is None]
    if missing:
        raise DeviceError(
            f"the driver does not report {', '.join(missing)} of this GPU. Copy them from its "
            "data sheet into a file like those in cdmpp/devices and give --device-spec FILE"
        )
    return given


def _summary(sweep: Sweep) -> list[list[str]]:
    rows = [["kernels", "measured", "failed", "median noise", "first failure"]]
    families = dict.fromkeys(
        [sweep_family(one.call) for one in sweep.calls]
        + [sweep_family(call) for call, _ in sweep.failed]
    )
    for family in families:
        noise = [one.noise for one in sweep.calls if sweep_family(one.call) == family]
        why = [reason for call, reason in sweep.failed if sweep_family(call) == family]
        middle = f"{100 * float(np.median(noise)):.1f} %" if noise else "-"
        rows.append([family, str(len(noise)), str(len(why)), middle, why[0][:60] if why else ""])
    return rows
