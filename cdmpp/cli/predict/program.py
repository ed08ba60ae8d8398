"""`cdmpp predict --program FILE.py`: programs that nobody measured, side by side on devices."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from cdmpp.text import aligned, interval_text

if TYPE_CHECKING:
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.training.estimates import TrainedModel
    from tvm_helper.predict.answers import Prediction
    from tvm_helper.predict.predictor import Predictor


def run_program(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.errors import DataError

    predictor = predictor_for(args)
    found = predictor.programs(args.program)
    if all(prediction.latency_s is None for prediction in found):
        reasons = sorted({f"{one.name} on {one.device}: {one.reason}" for one in found})
        raise DataError(
            f"no program of {args.program} can be predicted ({'; '.join(reasons)}); expected "
            "programs that the named devices can run"
        )
    if args.json:
        print(json.dumps([json_row(prediction) for prediction in found], allow_nan=False))
        return 0
    _print(found)
    if not getattr(args, "quiet", False):
        print_notes(found, predictor)
    return 0


def predictor_for(args: argparse.Namespace) -> Predictor:
    """Returns the model with the devices of the command `predict`.

    Raises:
        UsageError: see `new_predictor`; or machine code is asked for, and the model cannot read it.
    """
    from cdmpp.errors import UsageError

    predictor = new_predictor(args, compiles=args.machine_code)
    if args.machine_code and not any(map(predictor.reads_code_of, predictor.devices)):
        names = ", ".join(device.name for device in predictor.devices)
        code = predictor.trained.code
        can = "of no device" if code is None else f"of {code.device}"
        raise UsageError(
            f"--machine-code: {args.model} reads the machine code {can}, not of {names}; leave it "
            "out, or train one that does with `cdmpp train-code`"
        )
    return predictor


def new_predictor(args: argparse.Namespace, *, compiles: bool = False) -> Predictor:
    """Returns the model with the devices of --device and --device-spec.

    Args:
        compiles: see `Predictor`.

    Raises:
        UsageError: no device is named and the model was trained on several.
    """
    from cdmpp.pretrained import model_folder
    from cdmpp.training.estimates import load_trained
    from tvm_helper.predict.predictor import Predictor

    trained = load_trained(model_folder(args.model), with_code=compiles)
    return Predictor(trained, _devices(args, trained), compiles=compiles)


def _devices(args: argparse.Namespace, trained: TrainedModel) -> list[DeviceSpec]:
    from cdmpp.errors import UsageError
    from cdmpp.training.asked_device import asked_device, described_devices

    labels = [label for given in args.device or () for label in given.split(",") if label]
    specs = [asked_device(label, trained.card) for label in dict.fromkeys(labels)]
    for path in args.device_spec or ():
        specs += described_devices(path, trained.card)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise UsageError(f"a device is named twice: {', '.join(names)}; expected different labels")
    if specs:
        return specs
    known = [spec.name for spec in trained.card.devices]
    if len(known) != 1:
        raise UsageError(
            f"choose devices with --device LABEL or --device-spec FILE; the model was trained on "
            f"{', '.join(known)}"
        )
    return list(trained.card.devices)


def json_row(prediction: Prediction) -> dict[str, Any]:
    """Returns a prediction as the values that every `predict --json` has, and its own."""
    found = prediction.explanation
    return {
        "program_id": prediction.program_id,
        "device": prediction.device,
        "latency_s": prediction.latency_s,
        "low_s": prediction.low_s,
        "high_s": prediction.high_s,
        "measured_s": None,
        "out_of_distribution": prediction.out_of_distribution,
        "nearest_tasks": [
            {"task": near.task, "operator": near.operator, "distance": near.distance}
            for near in prediction.nearest
        ],
        "name": prediction.name,
        "operator": prediction.operator,
        "is_scheduled": prediction.is_scheduled,
        "is_new_device": prediction.is_new_device,
        "reason": prediction.reason,
        "explanation": None
        if found is None or prediction.latency_s is None
        else {
            "buffer": found.buffer,
            "leaf": found.leaf,
            "leaves": found.leaves,
            "share": found.share,
            "bound": found.bound,
            "roofline_s": found.roofline_s,
            "unknown_rates": list(found.assumed),
            "text": found.text(prediction.latency_s),
        },
    }


def cell(prediction: Prediction) -> str:
    """Returns a latency with its interval, `!` where it is out of distribution, `?` without one."""
    mark = " !" if prediction.latency_s is not None and prediction.out_of_distribution else ""
    return interval_text(prediction.latency_s, prediction.low_s, prediction.high_s) + mark


def print_notes(found: list[Prediction], predictor: Predictor) -> None:
    """Says what the marks mean, and why something has no latency."""
    card = predictor.trained.card
    if card.calibration is None:
        print(
            "cdmpp: no intervals: the model was calibrated on too few tasks; train again with more "
            "tasks in the validation part",
            file=sys.stderr,
        )
    if any(one.out_of_distribution for one in found):
        widened = "" if card.calibration is None else ": wider intervals, which may be too narrow"
        print(f"\n! out of distribution{widened}")
    trained_on = ", ".join(spec.name for spec in card.devices)
    for device in dict.fromkeys(one.device for one in found if one.is_new_device):
        print(f"  device {device} was never measured; the model knows {trained_on}")
    for name in dict.fromkeys(one.name for one in found if one.is_far):
        one = next(one for one in found if one.is_far and one.name == name)
        near = "; ".join(f"{task.operator} at {task.distance:.2f}" for task in one.nearest)
        print(f"  {name} is unlike all training tasks; nearest: {near}")
    missing = dict.fromkeys((one.name, one.device, one.reason) for one in found if one.reason)
    if missing:
        print("\n? no latency")
    for name, device, reason in missing:
        print(f"  {name} on {device}: {reason}")


def _print(found: list[Prediction]) -> None:
    devices = list(dict.fromkeys(one.device for one in found))
    by_name: dict[str, list[Prediction]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    rows = [
        [name, ones[0].operator or "?", *(cell(one) for one in ones)]
        for name, ones in by_name.items()
    ]
    print(aligned([["program", "operator", *devices], *rows]))
    for name, ones in by_name.items():
        if not all(one.is_scheduled for one in ones):
            print(
                f"\n{name} is not scheduled: it has no parallel, vectorised, unrolled or "
                "thread-bound loop; this is its latency as it stands"
            )
        print()
        for one in ones:
            if one.latency_s is not None and one.explanation is not None:
                print(f"{name} on {one.device}: {one.explanation.text(one.latency_s)}")
