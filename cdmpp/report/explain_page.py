"""HTML page of explained programs and networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.predict.explained import DOUBT
from cdmpp.report.page import ListingLine, Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import interval_text, percent_text, seconds_text, short_task

_STEPS = 10
_NOTES = (
    "A share is the part of the predicted time that the model assigns to a store.",
    "`bound by` is the limit that takes longest at the device's rates; `the next` is the ratio "
    "to the second-longest limit.",
    f"Changed programs are predicted, not measured; TVM's schedule accepts them as legal. {DOUBT}",
)


def explain_page(rows: Sequence[Mapping[str, Any]], source: Path) -> Page:
    """Returns the page of explanations.

    Args:
        rows: output of `cdmpp explain --json`.
        source: the explained file.
    """
    sections: list[Section] = []
    for row in rows:
        if "kernels" not in row:
            sections += _program(row)
            continue
        sections.append(_network(row))
        for kernel in row["kernels"]:
            if kernel["explanation"] is not None:
                sections += _program(kernel["explanation"], is_folded=len(sections) > 1)
    devices = ", ".join(dict.fromkeys(row["device"] for row in rows))
    return Page(
        title=f"{source.name}: where the time goes", lead=f"Predicted for {devices}; not measured.",
        sections=sections, notes=_NOTES,
    )  # fmt: skip


def heat(share: float | None) -> int:
    """Returns the colour intensity of a line, 0 to 10."""
    return 0 if share is None else min(_STEPS, round(_STEPS * share))


def _network(row: Mapping[str, Any]) -> Section:
    table = plain_table(
        ["kernel", "share", "calls", "time of one"],
        [[one["name"], percent_text(one["share"]), str(one["calls"]),
          seconds_text(one["in_network_s"])] for one in row["kernels"]],
    )  # fmt: skip
    latency = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    note = "; ".join([f"{latency}, {row['schedule']}", *row["reasons"]])
    return Section(f"{row['network']} on {row['device']}", note, tables=[table])


def _program(row: Mapping[str, Any], *, is_folded: bool = False) -> list[Section]:
    title = f"{row['name']} on {row['device']}"
    if row["latency_s"] is None or row["text"] is None:
        return [Section(title, row["reason"] or "no store does any work")]
    points = [row["text"]]
    if row["machine_code"] is not None:
        points.append(f"compiled: {row['machine_code']['text']}")
    if row["no_counterfactual"] is not None:
        points.append(f"no counterfactual applies: {row['no_counterfactual']}")
    lines = [
        ListingLine(
            "" if line["share"] is None else percent_text(line["share"], 0), line["text"],
            heat(line["share"]),
        )
        for line in row["lines"]
    ]  # fmt: skip
    tables = [
        plain_table(
            ["store", "share", "time", "bound by", "its roofline", "the next", "data in"],
            [[f"{one['leaf']} to {one['buffer']}", percent_text(one["share"]),
              seconds_text(one["seconds"]), one["bound_text"], seconds_text(one["bound_s"]),
              "-" if one["ahead"] is None else f"{one['ahead']:.3g} x", one["fits"]]
             for one in row["leaves"]],
        ),
    ]  # fmt: skip
    if row["counterfactuals"]:
        tables.append(plain_table(
            ["predicted after a change", "predicted", "of now", "store"],
            [[one["what"], interval_text(one["latency_s"], one["low_s"], one["high_s"]),
              f"{one['ratio']:.2f} x", str(one["leaf"])] for one in row["counterfactuals"]],
        ))  # fmt: skip
    if row["nearest"]:
        tables.append(plain_table(
            ["similar measured task", "distance", "largest differences"],
            [[short_task(one["task"], one["operator"]), f"{one['distance']:.2f}",
              ", ".join(part["column"] for part in one["differs"])] for one in row["nearest"]],
        ))  # fmt: skip
    note = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    if row["out_of_distribution"]:
        note += "; the program or device is out of distribution"
    return [Section(title, note, points=points, painted=lines, tables=tables,
                    is_folded=is_folded)]  # fmt: skip
