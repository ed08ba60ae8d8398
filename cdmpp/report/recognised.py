"""Rows of baselines that answer only what they recognise, beside the others on the same samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.report.tables import Table, metric_table

Lines = Mapping[str, Mapping[str, Any]]

_ORACLE = "oracle"


def judged_table(title: str, lines: Lines, recognised: Mapping[str, Lines], *, model: str) -> Table:
    """Returns a metric table with, for each baseline that recognises some samples, a row of it and
    of every other line on the same samples; these rows are out of competition.

    Args:
        lines: line -> metrics on all samples.
        recognised: baseline -> line -> metrics on what the baseline recognises; empty where that is
            nothing.
        model: the line that is the subject.
    """
    count = int(lines[model]["n"])
    parts: dict[str, Mapping[str, Any]] = {}
    for kind, own in recognised.items():
        own_count = int(own[kind]["n"]) if own else 0
        parts[f"{kind} ({own_count:,} of {count:,} samples)"] = own.get(kind, {"n": 0})
        others = {line: found for line, found in own.items() if line not in (kind, _ORACLE)}
        parts |= {f"{line} on those of {kind}": found for line, found in others.items()}
    every = {name: [found] for name, found in {**lines, **parts}.items()}
    return metric_table(title, every, model=model, references=(_ORACLE, *parts))


def on_device(recognised: Mapping[str, Lines], label: str) -> dict[str, Lines]:
    """Returns what `judged_table` takes, of one device.

    Args:
        recognised: baseline -> line -> metrics with `by_device`.
    """
    return {
        kind: {
            line: found["by_device"][label]
            for line, found in own.items()
            if label in found["by_device"]
        }
        for kind, own in recognised.items()
    }
