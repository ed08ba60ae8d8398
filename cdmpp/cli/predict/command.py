"""`cdmpp predict`: latencies of the programs in a record file, best first; of a user's own programs
(`predict_program.py`) and of networks (`predict_network.py`, `predict_torch.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.cli.predict.torch import add_torch_options, check_no_torch_options
from cdmpp.cli.shared.options import add_output_options

if TYPE_CHECKING:
    from cdmpp.datasets.read_report import ReadReport
    from cdmpp.devices.spec import DeviceSpec
    from cdmpp.models.assemble import AskedProgram
    from cdmpp.records import MeasureRecord, TensetTask
    from cdmpp.training.estimates import BoolArray, Estimates, TrainedModel
    from cdmpp.training.run_folder import ModelCard


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.description = (
        "Predicts every program of a Tenset record file (measured or not) and prints the "
        "latencies, best first, beside the measured one when the record has it; or the tensor "
        "programs of a Python file; or a whole network, task by task, with the first valid "
        "MetaSchedule sample of each task (seed 0) as its schedule. Nothing is measured."
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="RUN",
        help="run folder, or pretrained (the default with --torch; else it must be given)",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--records", type=Path, metavar="FILE", help="record file, .json or .json.gz"
    )
    source.add_argument(
        "--program",
        type=Path,
        metavar="FILE.py",
        help="Python file with TVMScript, PrimFuncs or IRModules; it is run",
    )
    source.add_argument(
        "--network",
        type=Path,
        metavar="FILE",
        help="ONNX file, or .pt2 as torch.export.save writes it",
    )
    source.add_argument(
        "--torch",
        metavar="MODULE:FACTORY",
        help="function that makes a torch network: time, memory and utilisation, infer and train; "
        "its module is imported",
    )
    parser.add_argument(
        "--network-info",
        type=Path,
        metavar="DIR",
        help="folder of the tasks (default: that of the file's dataset, else the shipped)",
    )
    parser.add_argument(
        "--device",
        action="append",
        metavar="LABEL",
        help="device to predict for (default: that of each record); programs and networks take "
        "several, side by side",
    )
    parser.add_argument(
        "--device-spec",
        action="append",
        type=Path,
        metavar="YAML",
        help="hardware that nobody measured, described as in cdmpp/devices (programs and networks)",
    )
    parser.add_argument(
        "--machine-code",
        action="store_true",
        help="compile the programs, half a second each, where the model can read their machine "
        "code: it errs less (programs and networks)",
    )
    add_torch_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from cdmpp.errors import UsageError

    if args.machine_code and args.program is None and args.network is None:
        raise UsageError("--machine-code compiles what --program or --network names; give one")
    if args.torch is not None:
        from cdmpp.cli.predict.torch import run_torch

        return run_torch(args)
    check_no_torch_options(args)
    if args.program is not None:
        from cdmpp.cli.predict.program import run_program

        return run_program(args)
    if args.network is not None:
        from cdmpp.cli.predict.network import run_network

        return run_network(args)
    return _run_records(args)


def _run_records(args: argparse.Namespace) -> int:
    from cdmpp.datasets.read_report import ReadReport
    from cdmpp.datasets.tenset.record_file import read_records
    from cdmpp.errors import DataError
    from cdmpp.pretrained import model_folder
    from cdmpp.training.estimates import load_trained

    trained = load_trained(model_folder(args.model))
    report = ReadReport()
    records = list(read_records(args.records, report, keep_unmeasured=True))
    failures: Counter[str] = Counter()
    asked = _featurise(args, records, trained.card, failures) if records else []
    _say_what_is_missing(args, report, failures)
    if not asked:
        reasons = [*report.skipped, *failures]
        raise DataError(
            f"no program of {args.records} can be predicted"
            + (f" ({', '.join(reasons)})" if reasons else "")
            + "; expected Tenset measure records, one JSON object a line, whose tasks are in the "
            "folder given with --network-info"
        )
    from cdmpp.models.assemble import assemble_samples

    estimates = trained.estimate(assemble_samples(asked))
    order = sorted(range(len(asked)), key=lambda index: float(estimates.latency_s[index]))
    if args.json:
        rows = [_json_row(asked[index], estimates, index) for index in order]
        print(json.dumps(rows, allow_nan=False))
        return 0
    _print(asked, estimates, order)
    if not getattr(args, "quiet", False):
        _print_notes(asked, estimates, trained)
    return 0


def _featurise(
    args: argparse.Namespace,
    records: list[MeasureRecord],
    card: ModelCard,
    failures: Counter[str],
) -> list[AskedProgram]:
    """Returns the programs that have features; counts the others by reason."""
    from cdmpp.datasets.tenset.task_index import load_tasks
    from cdmpp.errors import ReplayError
    from cdmpp.models.assemble import AskedProgram
    from cdmpp.records import program_id_of_text
    from tvm_helper.featurise import featurise_records

    asked_label = _asked_label(args)
    tasks = load_tasks(_network_info(args))
    groups: dict[tuple[str, str], list[MeasureRecord]] = {}
    for record in records:
        groups.setdefault((record.workload_key, record.target_kind), []).append(record)
    specs: dict[str, DeviceSpec] = {}
    asked = []
    for (workload_key, target_kind), members in groups.items():
        task = tasks.find(workload_key, target_kind)
        if task is None:
            failures["its task is not in network_info"] += len(members)
            continue
        operator = _operator(task)
        for record, ast in zip(members, featurise_records(task, members), strict=True):
            if isinstance(ast, ReplayError):
                failures[ast.reason] += 1
                continue
            if not ast.valid:
                failures[ast.reject_reason or "invalid program"] += 1
                continue
            label = asked_label or _record_device(record, card)
            if label not in specs:
                specs[label] = _device_spec(label, target_kind, card)
            asked.append(
                AskedProgram(
                    program_id=program_id_of_text(
                        "tenset", workload_key, record.schedule, target_kind
                    ),
                    task=f"{workload_key}|{target_kind}",
                    ast=ast,
                    device=specs[label],
                    # What was measured elsewhere is no measurement of the asked device.
                    measured_s=record.latency_s if record.device == label else None,
                    schedule=record.schedule,
                    operator=operator,
                )
            )
    return asked


def _asked_label(args: argparse.Namespace) -> str | None:
    """Returns the label of --device, None without one.

    Raises:
        UsageError: records are asked for on several devices, or on described ones.
    """
    from cdmpp.errors import UsageError

    labels: list[str] = args.device or []
    if len(labels) > 1 or args.device_spec:
        raise UsageError(
            "the programs of records are predicted for one device that has a label, got "
            f"{', '.join([*labels, *map(str, args.device_spec or ())])}; expected one --device"
        )
    return labels[0] if labels else None


def _operator(task: TensetTask) -> str:
    """Returns the name that the task has in an extracted dataset."""
    from cdmpp.datasets.tenset.json_graph import JsonGraph
    from cdmpp.datasets.tenset.operator_name import operator_name

    return operator_name(JsonGraph(task.dag_json))


def _network_info(args: argparse.Namespace) -> Path:
    """Returns the given folder, else the one of the dataset that the file is in, else the shipped
    one.
    """
    from cdmpp.datasets.tenset.folder import default_dataset_dir

    if args.network_info:
        return Path(args.network_info)
    records: Path = args.records
    for parent in records.resolve().parents:
        if parent.name in ("measure_records", "to_measure_programs"):
            beside = parent.parent / "network_info"
            if beside.is_dir():
                return beside
    return default_dataset_dir() / "network_info"


def _record_device(record: MeasureRecord, card: ModelCard) -> str:
    """Returns the label of the record where it is known, else the model's only device.

    Raises:
        UsageError: the device cannot be told.
    """
    from cdmpp.devices.registry import find_device
    from cdmpp.errors import UsageError

    trained = [spec.name for spec in card.devices]
    if record.device in trained or find_device(record.device) is not None:
        return record.device
    if len(trained) == 1:
        return trained[0]
    raise UsageError(
        f"the record's device {record.device!r} is not known; choose one with --device LABEL; "
        f"the model was trained on {', '.join(trained)}"
    )


def _device_spec(label: str, target_kind: str, card: ModelCard) -> DeviceSpec:
    from dataclasses import replace

    from cdmpp.devices.registry import find_device, unknown_device

    trained = {spec.name: spec for spec in card.devices}
    found = trained.get(label) or find_device(label)
    if found is not None:
        return replace(found, name=label)
    spec, warning = unknown_device(label, target_kind)
    print(f"cdmpp: warning: {warning}", file=sys.stderr)
    return spec


def _say_what_is_missing(
    args: argparse.Namespace, report: ReadReport, failures: Counter[str]
) -> None:
    if getattr(args, "quiet", False):
        return
    if report.skipped_total:
        print(f"cdmpp: {report.summary()}", file=sys.stderr)
    for reason, count in failures.most_common():
        print(f"cdmpp: {count} programs cannot be predicted: {reason}", file=sys.stderr)


def _json_row(program: AskedProgram, estimates: Estimates, index: int) -> dict[str, Any]:
    flags = estimates.out_of_distribution
    nearest = estimates.nearest
    return {
        "program_id": program.program_id,
        "device": program.device.name,
        "latency_s": float(estimates.latency_s[index]),
        "low_s": _number(estimates.low_s[index]),
        "high_s": _number(estimates.high_s[index]),
        "measured_s": program.measured_s,
        "out_of_distribution": None if flags is None else bool(flags[index]),
        "nearest_tasks": None
        if nearest is None
        else [
            {"task": near.task, "operator": near.operator, "distance": near.distance}
            for near in nearest[index]
        ],
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _print(asked: list[AskedProgram], estimates: Estimates, order: list[int]) -> None:
    from cdmpp.text import interval_text, seconds_text

    ends = zip(
        estimates.latency_s.tolist(),
        estimates.low_s.tolist(),
        estimates.high_s.tolist(),
        strict=True,
    )
    predicted = [interval_text(*values) for values in ends]
    width = max(len("predicted"), *(len(text) for text in predicted))
    flags = _flags(estimates)
    has_measured = any(program.measured_s is not None for program in asked)
    devices = {program.device.name for program in asked}
    device_width = max(len("device"), *(len(name) for name in devices)) if len(devices) > 1 else 0
    measured_heading = f"  {'measured':>10}  {'error':>8}" if has_measured else ""
    device_heading = f"  {'device':<{device_width}}" if device_width else ""
    print(f"{'':>5}  {'predicted':<{width}}{measured_heading}{device_heading}  program")
    for rank, index in enumerate(order, 1):
        program = asked[index]
        text = f"{rank:>5}  {predicted[index]:<{width}}"
        if has_measured and program.measured_s is not None:
            error = estimates.latency_s[index] / program.measured_s - 1
            text += f"  {seconds_text(program.measured_s):>10}  {100 * error:>+6.1f} %"
        elif has_measured:
            text += f"  {'-':>10}  {'-':>8}"
        if device_width:
            text += f"  {program.device.name:<{device_width}}"
        print(f"{text}  {program.program_id[:12]}{' !' if flags[index] else ''}")


def _flags(estimates: Estimates) -> list[bool]:
    """Returns which programs get a mark: strange ones, as far as the model can tell."""
    flags = estimates.out_of_distribution
    chosen = estimates.is_new_device if flags is None else flags
    return [bool(flag) for flag in chosen]


def _indices(mask: BoolArray) -> list[int]:
    return [index for index, is_set in enumerate(mask.tolist()) if is_set]


def _print_notes(asked: list[AskedProgram], estimates: Estimates, trained: TrainedModel) -> None:
    """Says what the marks mean and what the flagged programs are nearest to."""
    from cdmpp.text import short_task

    flags = _flags(estimates)
    calibration = trained.card.calibration
    if calibration is None:
        print(
            "cdmpp: no intervals: the model was calibrated on too few tasks, or by an older "
            "version; train again with more tasks in the validation part",
            file=sys.stderr,
        )
    if not any(flags):
        return
    widened = "" if calibration is None else "; their intervals are widened, and may be too narrow"
    print(f"\n! {sum(flags)} of {len(flags)} are out of distribution{widened}")
    trained_on = ", ".join(spec.name for spec in trained.card.devices)
    new = {asked[index].device.name for index in _indices(estimates.is_new_device)}
    for label in sorted(new):
        print(f"  device {label} was not trained on; the model knows {trained_on}")
    if estimates.is_far is None or estimates.nearest is None:
        return
    said = set()
    for index in _indices(estimates.is_far):
        program = asked[index]
        if program.task in said:
            continue
        said.add(program.task)
        near = "; ".join(
            f"{short_task(task.task, task.operator)} at {task.distance:.2f}"
            for task in estimates.nearest[index]
        )
        print(f"  {short_task(program.task, program.operator)} is unlike all training tasks")
        print(f"    nearest: {near}")
