"""`cdmpp predict --network FILE`: a network's tasks and their sum, device by device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.predict.text import cell, print_notes, program_row
from cdmpp.errors import DataError
from cdmpp.text import aligned, interval_text, percent_text
from tvm_helper.predict.answers import NetworkPrediction, Total

if TYPE_CHECKING:  # it imports TVM
    from tvm_helper.predict.predictor import Predictor


def predict_network(path: Path, predictor: Predictor, *, as_json: bool, is_quiet: bool) -> None:
    """Prints the latencies of a network's tasks, and their sum.

    Raises:
        DataError: none of them can be predicted.
    """
    found = predictor.network(path)
    if all(total.latency_s is None for total in found.totals()):
        missing = ", ".join(found.totals()[0].missing)
        raise DataError(
            f"no task of {path} can be predicted: {missing}; expected operators that TVM "
            "turns into tensor programs of constant shape"
        )
    if as_json:
        print(json.dumps(_rows(found), allow_nan=False))
        return
    _print(found)
    if not is_quiet:
        every = [one for _, predictions in found.tasks for one in predictions]
        print_notes(every, predictor.trained.card)


def _rows(found: NetworkPrediction) -> list[dict[str, Any]]:
    """Returns one row a task and device, one an unknown operator, and a `total` a device."""
    rows: list[dict[str, Any]] = []
    for task, predictions in found.tasks:
        own = {"task": task.name, "weight": task.weight, "shapes": list(task.shapes)}
        rows += [
            {
                **program_row(prediction),
                **own,
                "mean_s": prediction.mean_s,
                "schedule": found.schedule,
            }
            for prediction in predictions
        ]
    for name, calls in sorted(found.unknown.items()):
        rows += [
            {**_no_program(device), "task": name, "weight": calls, "reason": "unknown operator"}
            for device in found.devices
        ]
    for total in found.totals():
        rows.append(
            {
                **_no_program(total.device),
                "task": "total",
                "weight": None,
                "latency_s": total.latency_s,
                "low_s": total.low_s,
                "high_s": total.high_s,
                "missing": list(total.missing),
                "schedule": found.schedule,
            }
        )
    return rows


def _no_program(device: str) -> dict[str, Any]:
    values = ("program_id", "latency_s", "low_s", "high_s", "measured_s", "out_of_distribution")
    return {**dict.fromkeys(values), "device": device, "reason": None}


def _print(found: NetworkPrediction) -> None:
    print(f"schedule: {found.schedule}\n")
    rows = [
        [
            str(task.weight),
            task.name,
            task.operator,
            " ".join(task.shapes),
            *(cell(one) for one in predictions),
        ]
        for task, predictions in found.tasks
    ]
    rows += [
        [str(calls), name, "unknown operator", "", *("?" for _ in found.devices)]
        for name, calls in sorted(found.unknown.items())
    ]
    totals = found.totals()
    rows.append(["", "total", "", "", *(_total(total) for total in totals)])
    print(aligned([["calls", "task", "operator", "shapes", *found.devices], *rows]))
    for total in totals:
        if total.missing:
            print(
                f"\nthe total on {total.device} is only what could be predicted; it leaves out "
                f"{', '.join(total.missing)}"
            )
    print()
    for place, total in enumerate(totals):
        if total.latency_s is None:
            continue
        task, predictions = max(
            found.tasks, key=lambda pair: pair[0].weight * (pair[1][place].mean_s or 0.0)
        )
        one = predictions[place]
        assert one.latency_s is not None
        assert one.mean_s is not None
        share = task.weight * one.mean_s / total.latency_s
        why = f": {one.explanation.text(one.latency_s)}" if one.explanation else ""
        print(f"{total.device}: {percent_text(share, 0)} is {task.name}{why}")


def _total(total: Total) -> str:
    text = interval_text(total.latency_s, total.low_s, total.high_s)
    return f"at least {text}" if total.missing and total.latency_s is not None else text
