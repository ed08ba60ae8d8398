"""`cdmpp predict --records FILE`: the programs of a record file, best first."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence

from cdmpp.cli.predict.text import ModelFacts, print_notes
from cdmpp.text import aligned, interval_text, seconds_text
from tvm_helper.predict.answers import Prediction


def print_records(
    programs: Sequence[Prediction],
    notes: Iterable[str],
    facts: Callable[[], ModelFacts],
    *,
    measured_on: str | None = None,
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints predictions of a record file.

    Args:
        notes: what was not predicted, and why.
        facts: gives what the notes below them say of the model.
    """
    if not is_quiet:
        for note in notes:
            print(f"cdmpp: {note}", file=sys.stderr)
    if as_json:
        print(json.dumps([one.of_record_json() for one in programs], allow_nan=False))
        return
    _print(programs, measured_on)
    if not is_quiet:
        print_notes(programs, facts())


def _print(programs: Sequence[Prediction], measured_on: str | None) -> None:
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
