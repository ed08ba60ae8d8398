"""`cdmpp predict --program FILE.py`: programs that nobody measured, side by side on devices."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from cdmpp.cli.predict.text import ModelFacts, cell, print_notes
from cdmpp.text import aligned
from tvm_helper.predict.answers import Prediction


def print_programs(
    found: Sequence[Prediction], facts: Callable[[], ModelFacts], *, as_json: bool, is_quiet: bool
) -> None:
    """Prints the latencies of a Python file's programs.

    Args:
        facts: gives what the notes say of the model.
    """
    if as_json:
        print(json.dumps([prediction.to_json() for prediction in found], allow_nan=False))
        return
    _print(found)
    if not is_quiet:
        print_notes(found, facts())


def _print(found: Sequence[Prediction]) -> None:
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
