"""Tables of the fast and the compiled tier for `cdmpp evaluate`, by measured time and operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cdmpp.report.tables import Table, plain_table
from cdmpp.text import percent_text
from cdmpp.training.tiers import COMPILED, FAST, FAST_OF_COMPILED

_NAMES = {
    FAST: "fast tier",
    COMPILED: "compiled tier",
    FAST_OF_COMPILED: "fast tier, those compiled",
}
#: Titles of `error_cells`.
ERRORS = ("MAPE", "median APE", "log error", "median ratio")
#: Titles of `interval_cells`.
INTERVALS = ("in their interval", "factor each way", "flagged")


def tier_tables(tiers: Mapping[str, Any]) -> list[Table]:
    """Returns the tables of a `judge_tiers` result: totals, and by measured time and operator."""
    known = {name: found for name, found in tiers.items() if found is not None}
    columns = [
        (f"{found['n']:,}", f"{found['tasks']:,}", *error_cells(found), *interval_cells(found))
        for found in known.values()
    ]  # fmt: skip
    titles = ("programs", "tasks", *ERRORS, *INTERVALS)
    rows = [list(row) for row in zip(titles, *columns, strict=True)]
    shown = {name: known[name] for name in (FAST, COMPILED) if name in known}
    header = ("measured, kind", "n", "MAPE", "log error", "inside", "each way")
    return [
        plain_table(("", *(_NAMES[name] for name in known)), rows,
                    title="tiers, with 95 % intervals over tasks (from six tasks)"),
        plain_table(header, _parts(shown), title=" / ".join(_NAMES[name] for name in shown)),
    ]  # fmt: skip


def error_cells(found: Mapping[str, Any]) -> list[str]:
    """Returns the cells of the errors in a `tier_figures` result."""
    mape, log_error = percent_text(found["mape"]), f"{found['mean_log_error']:.3f}"
    if found["mape_interval"] is not None:
        mape += " [{}, {}]".format(*map(percent_text, found["mape_interval"]))
        log_error += " [{:.3f}, {:.3f}]".format(*found["mean_log_error_interval"])
    return [mape, percent_text(found["median_ape"]), log_error, f"{found['median_ratio']:.2f}"]


def interval_cells(found: Mapping[str, Any]) -> list[str]:
    """Returns the cells of the intervals in a `tier_figures` result."""
    inside, flagged = (percent_text(found[n]) for n in ("inside_interval", "out_of_distribution"))
    return [inside, _factor(found), flagged]


def _parts(tiers: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yields a row per part; a cell has the values of every tier."""
    for key in ("by_time", "by_operator"):
        for name in tiers[FAST][key]:
            own = [tier[key].get(name) for tier in tiers.values()]
            yield [
                name,
                " / ".join(dict.fromkeys("0" if one is None else f"{one['n']:,}" for one in own)),
                *(
                    " / ".join("-" if one is None else text(one) for one in own)
                    for text in (_mape, _log_error, _inside, _factor)
                ),
            ]


def _mape(found: Mapping[str, Any]) -> str:
    return percent_text(found["mape"], 0)


def _log_error(found: Mapping[str, Any]) -> str:
    return f"{found['mean_log_error']:.3f}"


def _inside(found: Mapping[str, Any]) -> str:
    return percent_text(found["inside_interval"], 0)


def _factor(found: Mapping[str, Any]) -> str:
    return "-" if found["interval_factor"] is None else f"{found['interval_factor']:.2f}"
