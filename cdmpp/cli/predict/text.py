"""Predictions of programs as JSON and as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from cdmpp.text import interval_text, short_task
from cdmpp.training.run_folder import ModelCard
from tvm_helper.predict.answers import Prediction


def row(one: Prediction) -> dict[str, Any]:
    """Returns the values that every `predict --json` has."""
    return {
        "program_id": one.program_id,
        "device": one.device,
        "latency_s": one.latency_s,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "measured_s": one.measured_s,
        "out_of_distribution": one.out_of_distribution,
        "is_floor": one.is_floor,
        "is_compiled": one.is_compiled,
        "nearest_tasks": [
            {"task": near.task, "operator": near.operator, "distance": near.distance}
            for near in one.nearest
        ],
    }


def program_row(one: Prediction) -> dict[str, Any]:
    """Returns those of a program of one's own."""
    found = one.explanation
    return {
        **row(one),
        "name": one.name,
        "operator": one.operator,
        "mean_s": one.mean_s,
        "is_scheduled": one.is_scheduled,
        "is_new_device": one.is_new_device,
        "reason": one.reason,
        "explanation": None
        if found is None or one.latency_s is None
        else {
            "buffer": found.buffer,
            "leaf": found.leaf,
            "leaves": found.leaves,
            "share": found.share,
            "bound": found.bound,
            "roofline_s": found.roofline_s,
            "unknown_rates": list(found.assumed),
            "text": found.text(one.latency_s),
        },
    }


def cell(one: Prediction) -> str:
    """Returns a latency with its interval, `!` where it is out of distribution, `?` without one."""
    mark = " !" if one.out_of_distribution and one.latency_s is not None else ""
    return f"{interval_text(one.latency_s, one.low_s, one.high_s)}{mark}"


def print_notes(found: Sequence[Prediction], card: ModelCard) -> None:
    """Says what the marks mean, and why something has no latency."""
    if card.calibration is None:
        print(
            "cdmpp: no intervals: the model was calibrated on too few tasks, or by an older "
            "version; train again with more tasks in the validation part",
            file=sys.stderr,
        )
    strange = sum(bool(one.out_of_distribution) for one in found)
    if strange:
        is_measured = card.of_new_devices is not None and not any(one.is_far for one in found)
        why = "; their intervals are widened, and may be too narrow" if card.calibration else ""
        if is_measured:
            why = "; their intervals are those of devices that were left out of trainings"
        print(f"\n! {strange} of {len(found)} are out of distribution{why}")
    floors = sum(one.is_floor for one in found)
    if floors:
        least = "what the device needs at the least: the model says less"
        print(f"\n{floors} of {len(found)} are {least}")
    compiled = sum(one.is_compiled for one in found)
    if compiled:
        print(f"\n{compiled} of {len(found)} are compiled: their machine code counts in")
    trained_on = ", ".join(spec.name for spec in card.devices)
    for device in dict.fromkeys(one.device for one in found if one.is_new_device):
        print(f"  device {device} was not trained on; the model knows {trained_on}")
    strangers: dict[str, Prediction] = {}
    for one in found:
        if one.is_far:
            strangers.setdefault(one.name, one)
    for name, one in strangers.items():
        near = "; ".join(
            f"{short_task(task.task, task.operator)} at {task.distance:.2f}" for task in one.nearest
        )
        print(f"  {name} is unlike all training tasks\n    nearest: {near}")
    missing = dict.fromkeys((one.name, one.device, one.reason) for one in found if one.reason)
    if missing:
        print("\n? no latency")
    for name, device, reason in missing:
        print(f"  {name} on {device}: {reason}")
