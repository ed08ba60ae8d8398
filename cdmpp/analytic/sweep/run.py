"""Runs the sweep on a GPU. A journal has one line per call; a rerun skips measured calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.operators.device import hardware
from cdmpp.analytic.operators.intervals import packaged_operators
from cdmpp.analytic.roofline.floor import least_kernel_s
from cdmpp.analytic.sweep.calls import (
    TORCH,
    Fp32Operator,
    Move,
    SweepCall,
    call_json,
    sweep_calls,
)
from cdmpp.analytic.sweep.inputs import operators_of
from cdmpp.analytic.sweep.rules import corrected_family
from cdmpp.analytic.sweep.sweep_file import MeasuredCall, Sweep
from cdmpp.analytic.sweep.timers import Run, Timer, TimingMode, median_and_noise
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.write_file import device_file_text
from cdmpp.errors import CdmppError, DeviceError
from cdmpp.files.atomic import make_folder, write_text
from cdmpp.files.journal import LineJournal
from cdmpp.processes.campaign import (
    CampaignProgress,
    OnProgress,
    SameFailures,
    campaign_folder,
    show_nothing,
)
from cdmpp.text import counted

JOURNAL = "sweep.jsonl"
#: Repeats of a call: as many as fit into this time in seconds, within a minimum and a maximum.
_WANTED_S, _LEAST, _MOST = 0.05, 5, 25
#: Calls per graph: as many as fit into this time in seconds, up to a maximum.
_GRAPH_S, _MOST_CALLS = 5e-4, 20
#: Calls for warm-up, capture and one extra repeat; fixed cost of a call in seconds.
_WARMING, _SETUP_S = 4, 0.06
#: Calls that are expected to take longer than this in total, in seconds, are skipped.
_TOO_LONG_S = 4.0
_MOST_FAILURES = 60


class Launcher(Protocol):
    """Prepares functions that launch calls."""

    def prepare(self, call: SweepCall) -> Run:
        """Returns the function, with its operands allocated."""


@dataclass(frozen=True)
class Plan:
    """Measurement plan of one call.

    Attributes:
        mode: mode of the timer.
        repeats: number of repeats.
        calls: calls per repeat.
        seconds: expected total time.
    """

    mode: TimingMode
    repeats: int
    calls: int
    seconds: float


def plan_of(call: SweepCall, predicted_s: float) -> Plan:
    """Returns the measurement plan of a call from its predicted time."""
    if isinstance(call, Fp32Operator):
        mode: TimingMode = "call"
        calls = 1
    else:
        mode = "graph"
        calls = min(_MOST_CALLS, max(1, round(_GRAPH_S / predicted_s)))
    one_s = calls * predicted_s
    repeats = min(_MOST, max(_LEAST, round(_WANTED_S / one_s)))
    return Plan(mode, repeats, calls, (repeats + _WARMING) * one_s + _SETUP_S)


def expected_s(calls: Sequence[SweepCall], device: DeviceSpec) -> list[float]:
    """Returns the predicted seconds of each call.

    Raises:
        DeviceError: the registry lacks values of the device.
    """
    known = hardware(device)
    found = np.zeros(len(calls))
    places: dict[str, list[int]] = {}
    for place, call in enumerate(calls):
        if isinstance(call, Move):
            moved_s = call.moved_bytes / known.dram_bytes_per_s
            found[place] = max(moved_s, least_kernel_s(device))
        else:
            places.setdefault(corrected_family(call), []).append(place)
    for own in places.values():
        chosen = [calls[place] for place in own]
        if isinstance(chosen[0], Fp32Operator):
            operators = operators_of(chosen)  # type: ignore[arg-type]
            labels = np.full(len(operators), device.name)
            model = packaged_operators().model
            found[own] = model.predict(operators, labels, {device.name: known})
        else:
            times = GpuKernels.packaged().times(chosen, device)  # type: ignore[arg-type]
            found[own] = times.latency_s
    return [float(seconds) for seconds in found]


def run_sweep(
    device: DeviceSpec,
    folder: Path,
    kernels: Launcher,
    timer: Timer,
    *,
    minutes: float,
    about: Mapping[str, Any],
    calls: Sequence[SweepCall] | None = None,
    on_progress: OnProgress = show_nothing,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[DeviceSpec, Sweep, Path]:
    """Measures the reference kernels and writes a device file and a sweep file.

    Measurements of an earlier run in the folder are kept, and their time counts. Failed calls are
    repeated. Calls that do not fit into the time are skipped; families alternate in the list, so
    that all are measured.

    Args:
        device: the new device, with the values that the models need.
        folder: folder of the device; gets `devices/NAME.yaml` and `devices/NAME.sweep.json`.
        minutes: time limit for all calls.
        about: facts to store with the measurements.
        calls: calls to measure; None = `sweep_calls()`.
        clock: returns seconds.

    Returns:
        The device as described by its file, the sweep, and the path of the device file.

    Raises:
        DeviceError: the registry lacks values of the device, or no call could be measured.
        DataError: a file cannot be read or written.
    """
    wanted = list(sweep_calls() if calls is None else calls)
    predicted = expected_s(wanted, device)
    with campaign_folder(folder, what="device folder"):
        began = clock()
        with LineJournal(folder / JOURNAL) as journal:
            done = {_key(line["call"]): line for line in journal.entries}
            before_s = max((float(line["spent_s"]) for line in journal.entries), default=0.0)
            failures = SameFailures(_MOST_FAILURES, "")
            for place, (call, seconds) in enumerate(zip(wanted, predicted, strict=True)):
                spent_s = before_s + clock() - began
                if "latency_s" in done.get(_key(call_json(call)), {}):
                    continue
                if spent_s >= 60.0 * minutes:
                    break
                rest = zip(wanted[place:], predicted[place:], strict=True)
                left_s = sum(plan_of(*one).seconds for one in rest)
                on_progress(
                    CampaignProgress(
                        "measuring kernels", place, len(wanted),
                        seconds_left=min(left_s, 60.0 * minutes - spent_s),
                    )
                )  # fmt: skip
                line = _measured(call, plan_of(call, seconds), kernels, timer)
                failures.add(line.get("kind", ""), line.get("reason", ""))
                line["spent_s"] = round(before_s + clock() - began, 3)
                journal.append(line)
                done[_key(line["call"])] = line
        return _written(device, folder, wanted, done, about)


def _measured(call: SweepCall, plan: Plan, kernels: Launcher, timer: Timer) -> dict[str, Any]:
    value: dict[str, Any] = {"call": call_json(call)}
    if plan.seconds > _TOO_LONG_S:
        return {**value, "reason": f"would take {plan.seconds:.1f} s"}
    try:
        run = kernels.prepare(call)
        times = timer.times_s(run, plan.repeats, calls=plan.calls, mode=plan.mode)
        median_s, noise = median_and_noise(times)
    except CdmppError as error:
        return {**value, "reason": str(error)}
    except (RuntimeError, AttributeError, TypeError, ValueError, MemoryError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        return {**value, "reason": reason, "kind": type(error).__name__}
    return {**value, "latency_s": median_s, "noise": noise, "repeats": len(times)}


def _written(
    device: DeviceSpec,
    folder: Path,
    wanted: Sequence[SweepCall],
    done: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
) -> tuple[DeviceSpec, Sweep, Path]:
    measured, failed = [], []
    for call in wanted:
        line = done.get(_key(call_json(call)))
        if line is None:
            failed.append((call, "out of time"))
        elif "latency_s" in line:
            facts = float(line["latency_s"]), float(line["noise"]), int(line["repeats"])
            measured.append(MeasuredCall(call, *facts))
        else:
            failed.append((call, str(line["reason"])))
    if not measured:
        why = failed[0][1] if failed else "no calls"
        raise DeviceError(
            f"none of the {len(wanted)} reference kernels could be measured ({why}); see "
            f"{folder / JOURNAL}"
        )
    sweep = Sweep(device.name, TORCH, measured, failed, about)
    path = folder / "devices" / f"{device.name}.yaml"
    make_folder(path.parent, what="device file")
    name = f"{device.name}.sweep.json"
    sweep.save(path.parent / name)
    described = _described(device, sweep, name)
    comment = f"Measured by `cdmpp device add {device.name} --sweep`."
    write_text(path, device_file_text(described, comment=comment))
    return replace(described, kernel_sweep=str(path.absolute().parent / name)), sweep, path


def _described(device: DeviceSpec, sweep: Sweep, name: str) -> DeviceSpec:
    """Returns the device with its sweep, and with the sweep's smallest kernel time if the known
    value is missing or larger.
    """
    values: dict[str, tuple[Any, str]] = {
        "kernel_sweep": (
            name,
            f"{counted(len(sweep.calls), 'kernel')} measured by {sweep.software}",
        ),
    }
    least_s = min(one.latency_s for one in sweep.calls)
    if device.launch_s is None or least_s < device.launch_s:
        values["launch_s"] = (least_s, "smallest time of the sweep's kernels")
    told = {field: source for field, (_, source) in values.items()}
    return replace(
        device,
        sources={**device.sources, **told},
        **{field: value for field, (value, _) in values.items()},
    )


def _key(call: Mapping[str, Any]) -> str:
    return json.dumps(call, sort_keys=True)
