"""Table rows of baselines that predict only the samples that they recognise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.report.tables import Table, metric_table

Lines = Mapping[str, Mapping[str, Any]]

_ORACLE = "oracle"


def judged_table(title: str, lines: Lines, recognised: Mapping[str, Lines], *, model: str) -> Table:
    """Returns a metric table that also compares every line with each partial baseline on the
    samples that the baseline recognises. These rows are never marked as best.

    Args:
        lines: line -> metrics on all samples.
        recognised: baseline -> line -> metrics on the samples that the baseline recognises; empty
            if it recognises none.
        model: line of the evaluated model.
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
    """Returns the metrics of one device, as the `recognised` of `judged_table`.

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
