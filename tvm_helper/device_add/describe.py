"""Description of a new device: facts from the system, measured bandwidth and peak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.devices.device_file import load_device_spec
from cdmpp.devices.probe import probe_cpu, usable_cpus
from cdmpp.devices.probe_gpu import check_not_known, nvidia_smi, probe_nvidia
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.this_machine import check_is_here
from cdmpp.devices.write_file import device_file_text
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.text import counted
from tvm_helper.device_add.benchmarks import Benchmarks, run_benchmarks
from tvm_helper.device_add.options import DeviceAddOptions
from tvm_helper.measure.options import TrialOptions
from tvm_helper.measure.target import (
    MeasureTarget,
    check_present,
    code_bits,
    measure_target,
    target_text,
)

DEVICES_FOLDER = "devices"
RunBenchmarks = Callable[[DeviceSpec, Mapping[str, Any]], Benchmarks]


def described(
    options: DeviceAddOptions,
    folder: Path,
    *,
    root: Path = Path("/"),
    benchmarks: RunBenchmarks = run_benchmarks,
) -> tuple[DeviceSpec, MeasureTarget]:
    """Returns the device and its compile target; probes the device once, then reads its file.

    Args:
        folder: run folder; the device file is `devices/NAME.yaml` in it.
        root: folder with `proc` and `sys`.
        benchmarks: measures bandwidth and peak.

    Raises:
        UsageError: the machine does not support the threads or the target.
        DeviceError: the machine cannot be described, or a micro-benchmark fails.
    """
    path = folder / DEVICES_FOLDER / f"{options.name}.yaml"
    if path.is_file():
        spec = load_device_spec(path, options.name)
        return spec, _target(options, spec, folder / DEVICES_FOLDER)
    make_folder(path.parent, what="device file")
    if options.use_known:
        spec = _known(options, root)
        target = _target(options, spec, None)
        check_present(options.name, target.tvm_target())
    else:
        spec = _told(options, root)
        target = _target(options, spec, None)
        check_present(options.name, target.tvm_target())
        spec = with_measured(spec, benchmarks(spec, target.options))
    write_text(
        path, device_file_text(spec, comment=f"Probed by `cdmpp device add {options.name}`.")
    )
    return spec, target


def with_measured(spec: DeviceSpec, measured: Benchmarks) -> DeviceSpec:
    """Returns the device with the measured rates and, for missing fields, the driver's values."""
    threads = f", {spec.threads} thread{'s' * (spec.threads > 1)}" if spec.threads else ""
    size = measured.array_bytes >> 20
    values: dict[str, tuple[Any, str]] = {
        "mem_bandwidth_bytes_per_s": (
            measured.bandwidth_bytes_per_s,
            f"measured: c = a + b, three arrays of {size} MiB counted{threads}",
        ),
        "peak_fp32_flop_per_s": (
            measured.peak_flop_per_s,
            f"measured: multiply-adds in registers, two operations each{threads}",
        ),
    }
    for name, value in measured.driver.items():
        if getattr(spec, name) is None:
            values[name] = (value, "driver, by TVM's runtime")
    return replace(
        spec,
        sources={**spec.sources, **{name: source for name, (_, source) in values.items()}},
        **{name: value for name, (value, _) in values.items()},
    )


def _told(options: DeviceAddOptions, root: Path) -> DeviceSpec:
    if options.target is not None and "cuda" in options.target:
        line = nvidia_smi()
        check_not_known(line)
        return probe_nvidia(options.name, line)
    spec = probe_cpu(options.name, threads=options.threads, root=root)
    if options.target is None:
        return spec
    target = measure_target(
        TrialOptions(device=options.name, target=options.target, threads=spec.threads)
    )
    if target.kind != "llvm":
        raise UsageError(
            f"--target {options.target!r} is of kind {target.kind}; expected llvm (this CPU) or "
            "cuda (this machine's GPU)"
        )
    bits = code_bits(target.tvm_target())
    if spec.simd_bits is not None and bits > spec.simd_bits:
        raise UsageError(
            f"--target {options.target!r} generates {bits}-bit vector code, the processor has "
            f"{spec.simd_bits} bits; leave --target out, or give a supported one"
        )
    sources = {**spec.sources, "simd_bits": f"--target {options.target}"}
    return replace(spec, simd_bits=bits, sources=sources)


def _known(options: DeviceAddOptions, root: Path) -> DeviceSpec:
    """Returns the description of a known label, under the requested name.

    Raises:
        DeviceError: it does not describe this machine; with `force`, only the number of threads
            is checked.
    """
    spec = replace(get_device(options.name), name=options.name)
    if not options.force:
        check_is_here(spec, root=root)
    if spec.kind != "cpu":
        return spec
    usable = usable_cpus(root)
    if spec.threads is not None and spec.threads > usable.cores:
        raise DeviceError(
            f"{spec.name} has {spec.threads} threads, but only "
            f"{counted(usable.cores, 'core', 'are')} usable ({usable.source}); this machine is not "
            "that device"
        )
    return spec


def _target(options: DeviceAddOptions, spec: DeviceSpec, folder: Path | None) -> MeasureTarget:
    text = options.target or target_text(spec)
    asked = TrialOptions(device=options.name, target=text, threads=spec.threads)
    return measure_target(asked, [folder] if folder else [])
