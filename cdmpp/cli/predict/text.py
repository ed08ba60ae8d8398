"""Output of `cdmpp predict` for programs and records."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdmpp.api.predictions import Predictions
from cdmpp.devices.registry import find_device
from cdmpp.devices.spec import DeviceSpec, same_architecture
from cdmpp.predict.cpu_rules import ERF, ONE_THREAD, SAME_SET
from cdmpp.predict.prediction import NO_CODE, Prediction
from cdmpp.predict.saved_model import ModelCard
from cdmpp.serve.client import Client
from cdmpp.text import agreed, aligned, interval_text, seconds_text, short_task


def print_predictions(
    found: Predictions,
    facts: Callable[[], ModelFacts],
    *,
    measured_on: str | None = None,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints the predictions for a file of programs or records.

    Args:
        facts: returns the facts about the model that the notes need.
        measured_on: see `Model.records`.
    """
    if not is_quiet:
        for note in found.notes:
            print(f"cdmpp: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    if all(one.is_record for one in found):
        _print_records(found, measured_on)
    else:
        _print_programs(found)
    if not is_quiet:
        _print_notes(found, facts())


def _print_programs(found: Sequence[Prediction]) -> None:
    devices = list(dict.fromkeys(one.device for one in found))
    by_name: dict[str, list[Prediction]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    rows = [
        [name, ones[0].operator or "?", *(_cell(one) for one in ones)]
        for name, ones in by_name.items()
    ]
    print(aligned([["program", "operator", *devices], *rows]))
    for name, ones in by_name.items():
        for note, noted in _by_note(ones).items():
            print(f"\n{name} on {', '.join(noted)}: {note}")
        if any(map(_is_as_written, ones)):
            print(
                f"\n{name} is not scheduled: it has no parallel, vectorised, unrolled or "
                "thread-bound loop; this is its latency without a schedule"
            )
        explained = [
            f"{name} on {one.device}: {one.explanation.text(one.latency_s)}"
            for one in ones
            if one.latency_s is not None and one.explanation is not None
        ]
        if explained:
            print("", *explained, sep="\n")


def _is_as_written(one: Prediction) -> bool:
    """Whether a program was predicted without a schedule and no note names one."""
    said = (NO_CODE, ERF)
    notes = {note for note in one.note.split("; ") if note and not note.startswith(said)}
    return not (one.is_scheduled or notes - {ONE_THREAD, SAME_SET} or one.latency_s is None)


def _by_note(ones: Sequence[Prediction]) -> dict[str, list[str]]:
    """Returns note -> devices of the predictions with this note."""
    found: dict[str, list[str]] = {}
    for one in ones:
        if one.note:
            found.setdefault(one.note, []).append(one.device)
    return found


def _print_records(programs: Sequence[Prediction], measured_on: str | None) -> None:
    has_measured = any(one.measured_s is not None for one in programs)
    has_devices = len({one.device for one in programs}) > 1
    headings = ["     ", "predicted", *(["measured", "error"] if has_measured else [])]
    elsewhere = [] if measured_on is None else [f"on {measured_on}"]
    rows = [[*headings, *elsewhere, *(["device"] if has_devices else []), "program"]]
    for rank, one in enumerate(programs, 1):
        assert one.latency_s is not None
        assert one.program_id is not None
        error = one.latency_s / one.measured_s - 1 if one.measured_s else None
        measured = [seconds_text(one.measured_s), "-" if error is None else f"{100 * error:+.1f} %"]
        rows.append([
            str(rank), interval_text(one.latency_s, one.low_s, one.high_s),
            *(measured if has_measured else []),
            *([seconds_text(one.elsewhere_s)] if elsewhere else []),
            *([one.device] if has_devices else []),
            one.program_id[:12] + (" !" if one.out_of_distribution else ""),
        ])  # fmt: skip
    print(aligned(rows, "rl" + "rr" * has_measured + "r" * len(elsewhere) + "l", key=-1))


def _cell(one: Prediction) -> str:
    """Returns a latency with its interval, marked `!` if out of distribution; `?` if unknown."""
    mark = " !" if one.out_of_distribution and one.latency_s is not None else ""
    return f"{interval_text(one.latency_s, one.low_s, one.high_s)}{mark}"


def _without_code(found: Sequence[Prediction]) -> str:
    """Returns the predictions without machine code; a device alone stands for all its programs."""
    without: list[str] = []
    for device in dict.fromkeys(one.device for one in found):
        own = [one for one in found if one.device == device and one.latency_s is not None]
        names = [one.name for one in own if not one.is_compiled]
        if names:
            is_all = len(names) == len(own)
            without.append(device if is_all else f"{', '.join(names)} on {device}")
    return f", not: {'; '.join(without)}" if without else ""


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model for the notes below its predictions.

    Attributes:
        trained_on: labels of the training devices.
        has_intervals: whether the model has intervals.
        has_new_intervals: whether its intervals are calibrated on devices left out of training.
        devices: descriptions of the training devices; empty for a server's model.
    """

    trained_on: Sequence[str]
    has_intervals: bool
    has_new_intervals: bool
    devices: Sequence[DeviceSpec] = ()

    @classmethod
    def of(cls, card: ModelCard) -> ModelFacts:
        """Returns the facts of a local model."""
        names = [spec.name for spec in card.devices]
        return cls(
            names, card.calibration is not None, card.of_new_devices is not None, card.devices
        )

    @classmethod
    def of_served(cls, client: Client, name: str | None) -> ModelFacts:
        """Returns the facts of a server's model; None = its first."""
        one = next(one for one in client.models() if name in (None, one["name"]))
        return cls(one["devices"], one["has_intervals"], one["has_new_intervals"])


def _print_notes(found: Sequence[Prediction], model: ModelFacts) -> None:
    """Prints the meaning of the marks, and why a program has no latency."""
    if not model.has_intervals:
        print(
            "cdmpp: no intervals: the model was calibrated on too few tasks, or by an older "
            "version; retrain with more tasks in the validation part",
            file=sys.stderr,
        )
    strange = sum(bool(one.out_of_distribution) for one in found)
    if strange:
        is_measured = model.has_new_intervals and not any(one.is_far for one in found)
        why = "; their intervals are widened, and may be too narrow" if model.has_intervals else ""
        if is_measured:
            why = "; their intervals are calibrated on devices left out of training"
        print(f"\n! {strange} of {len(found)} {agreed(strange, 'are')} out of distribution{why}")
    trained_on = ", ".join(model.trained_on)
    for device in dict.fromkeys(one.device for one in found if one.is_new_device):
        spec = find_device(device) if model.devices else None
        akin = same_architecture(spec, model.devices) if spec else []
        of_these = f"; same architecture: {', '.join(akin)}" if akin else ""
        print(f"  unseen device {device}: the model was trained on {trained_on}{of_these}")
    strangers: dict[str, Prediction] = {}
    for one in found:
        if one.is_far:
            strangers.setdefault(one.name, one)
    for name, one in strangers.items():
        if one.reasons:  # printed below
            continue
        near = "; ".join(
            f"{short_task(task.task, task.operator)} at {task.distance:.2f}" for task in one.nearest
        )
        print(f"  {name} is out of distribution\n    nearest: {near}")
    floors = sum(one.is_floor for one in found)
    if floors:
        least = "raised to the lower bound of the device"
        print(f"\n{floors} of {len(found)} {agreed(floors, 'are')} {least}")
    compiled = sum(one.is_compiled for one in found)
    if compiled:
        verb = agreed(compiled, "were")
        others = "" if all(one.is_record for one in found) else _without_code(found)
        print(
            f"\n{compiled} of {len(found)} {verb} compiled and predicted with machine code{others}"
        )
    doubts = [(one.name, one.device, why) for one in found for why in one.reasons]
    answered = {(one.name, one.device) for one in found if one.latency_s is not None}
    guesses = dict.fromkeys(doubt for doubt in doubts if doubt[:2] in answered)
    missing = dict.fromkeys(doubt for doubt in doubts if doubt[:2] not in answered)
    if guesses:
        print("\nlow confidence")
    for name, device, reason in guesses:
        print(f"  {name} on {device}: {reason}")
    if missing:
        print("\n? no latency")
    for name, device, reason in missing:
        print(f"  {name} on {device}: {reason}")
