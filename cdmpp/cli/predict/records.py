"""`cdmpp predict --records FILE`: the programs of a record file, best first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdmpp.cli.predict.text import ModelFacts, print_notes
from cdmpp.errors import DataError
from cdmpp.pretrained import model_folder
from cdmpp.text import aligned, interval_text, seconds_text
from cdmpp.training.asked_device import asked_devices
from cdmpp.training.estimates import load_trained
from tvm_helper.predict.answers import Prediction
from tvm_helper.predict.records import RecordPredictions, predict_records


def predict_record_file(
    path: Path,
    model: Path,
    *,
    labels: Sequence[str],
    descriptions: Sequence[Path],
    network_info: Path | None,
    measured_on: str | None,
    compiles: bool,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints the latencies of a record file's programs beside the measured ones.

    Raises:
        DataError: as `print_records`.
    """
    trained = load_trained(model_folder(model), with_code=compiles)
    is_named = bool(labels or descriptions)
    devices = asked_devices(labels, descriptions, trained.card) if is_named else ()
    found = predict_records(
        trained, path, devices=devices, network_info=network_info, measured_on=measured_on,
        compiles=compiles,
    )  # fmt: skip
    print_records(
        path, found, lambda: ModelFacts.of(trained.card), measured_on=measured_on,
        as_json=as_json, is_quiet=is_quiet,
    )  # fmt: skip


def print_records(
    path: Path,
    found: RecordPredictions,
    facts: Callable[[], ModelFacts],
    *,
    measured_on: str | None = None,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints predictions of a record file.

    Args:
        facts: gives what the notes say of the model.

    Raises:
        DataError: there are none.
    """
    if not is_quiet:
        if found.report.skipped_total:
            print(f"cdmpp: {found.report.summary()}", file=sys.stderr)
        for reason, count in sorted(found.failures.items(), key=lambda pair: -pair[1]):
            print(f"cdmpp: {count} programs cannot be predicted: {reason}", file=sys.stderr)
    if not found.programs:
        reasons = ", ".join([*found.report.skipped, *found.failures])
        raise DataError(
            f"no program of {path} can be predicted{f' ({reasons})' if reasons else ''}; expected "
            "Tenset measure records, one JSON object a line, whose tasks are in the folder given "
            "with --network-info"
        )
    if as_json:
        print(json.dumps([_row(one) for one in found.programs], allow_nan=False))
        return
    _print(found.programs, measured_on)
    if not is_quiet:
        print_notes(found.programs, facts())


def _row(one: Prediction) -> dict[str, Any]:
    row = one.record_json()
    unknown = {"out_of_distribution": None, "nearest_tasks": None}
    return row if one.is_far is not None else {**row, **unknown}


def _print(programs: tuple[Prediction, ...], measured_on: str | None) -> None:
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
