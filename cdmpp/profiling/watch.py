"""Utilisation while a command runs: GPUs by NVML, CPU load by psutil."""

from __future__ import annotations

import math
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil  # type: ignore[import-untyped]

from cdmpp.errors import DeviceError, UsageError
from cdmpp.profiling.nvml import GpuSample, Nvml

_STOP_S = 5.0


@dataclass(frozen=True)
class WatchSample:
    """Measurements at one moment.

    Attributes:
        at_s: seconds since the start of the command.
        cpu_cores: mean busy cores of the command and its children since the last sample.
        machine_share: load of the whole machine, 0 to 1.
        memory_bytes: resident memory of the command and its children.
        gpus: empty without NVML.
    """

    at_s: float
    cpu_cores: float
    machine_share: float
    memory_bytes: int
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True)
class Watched:
    """A watched command.

    Attributes:
        command: its words.
        exit_code: negative = killed by that signal.
        wall_s: run time.
        samples: in order of time; the last one may be shortly before the end.
        gpu_note: why there are no GPU samples; empty = there are.
        units: units of sampled values.
    """

    command: tuple[str, ...]
    exit_code: int
    wall_s: float
    samples: tuple[WatchSample, ...]
    gpu_note: str = ""
    units: dict[str, str] = field(
        default_factory=lambda: {"cpu_cores": "cores", "machine_share": "0 to 1"}
    )

    def summary(self) -> dict[str, float | None]:
        """Returns means and peaks; None without samples."""
        cores = [sample.cpu_cores for sample in self.samples]
        gpus = [
            gpu.busy_share for sample in self.samples for gpu in sample.gpus
            if gpu.busy_share is not None
        ]  # fmt: skip
        return {
            "cpu_cores_mean": statistics.fmean(cores) if cores else None,
            "cpu_cores_max": max(cores, default=None),
            "machine_share_mean": statistics.fmean(s.machine_share for s in self.samples)
            if self.samples else None,
            "memory_bytes_max": max((s.memory_bytes for s in self.samples), default=None),
            "gpu_busy_share_mean": statistics.fmean(gpus) if gpus else None,
        }  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Returns all values as JSON values."""
        return {**asdict(self), "summary": self.summary()}


def watch(command: Sequence[str], *, interval_s: float = 0.2, quiet: bool = False) -> Watched:
    """Runs a command and samples until it ends. After an interrupt, the command is stopped too.

    Args:
        interval_s: seconds between samples.
        quiet: redirects the command's standard output to standard error, to keep ours clean.

    Raises:
        UsageError: no command, an invalid interval, or a command that cannot be started.
    """
    if not command or not 0.0 < interval_s < math.inf:
        raise UsageError(
            f"--watch with {len(command)} words every {interval_s} s; expected a command and an "
            "interval above 0, e.g. cdmpp profile --watch python train.py"
        )
    nvml, note = _open_nvml()
    try:
        process = subprocess.Popen(list(command), stdout=2 if quiet else None)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--watch: cannot start {command[0]!r} ({why}); expected a program that is on the PATH"
        ) from None
    began = time.perf_counter()
    samples: list[WatchSample] = []
    meter = _CpuMeter(process.pid)
    psutil.cpu_percent(None)
    try:
        while True:
            try:
                process.wait(timeout=interval_s)
                break
            except subprocess.TimeoutExpired:
                now = time.perf_counter() - began
                cores, memory = meter.read()
                gpus = tuple(nvml.sample()) if nvml is not None else ()
                load = psutil.cpu_percent(None) / 100.0
                samples.append(WatchSample(now, cores, load, memory, gpus))
    except KeyboardInterrupt:
        _stop(process)
        raise
    finally:
        if nvml is not None:
            nvml.close()
    wall = time.perf_counter() - began
    return Watched(tuple(command), process.returncode, wall, tuple(samples), note)


class _CpuMeter:
    """CPU time and memory of a process and its children between two readings."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, float] = {}
        self._at = time.perf_counter()

    def read(self) -> tuple[float, int]:
        """Returns (busy cores since the last reading, resident bytes)."""
        now = time.perf_counter()
        used, memory = 0.0, 0
        for process in self._processes():
            try:
                times = process.cpu_times()
                memory += process.memory_info().rss
            except psutil.Error:
                continue  # ended between two calls
            total = times.user + times.system
            # A process that started since the last reading used all of its time in the interval.
            used += max(total - self._seen.get(process.pid, 0.0), 0.0)
            self._seen[process.pid] = total
        span, self._at = now - self._at, now
        return used / span if span > 0 else 0.0, memory

    def _processes(self) -> list[psutil.Process]:
        try:
            root = psutil.Process(self._pid)
            return [root, *root.children(recursive=True)]
        except psutil.Error:
            return []


def _open_nvml() -> tuple[Nvml | None, str]:
    try:
        return Nvml(), ""
    except DeviceError as error:
        return None, str(error)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a command, which the terminal may have interrupted already."""
    try:
        process.wait(timeout=_STOP_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
