"""Explanations as text; a terminal shows the most expensive lines in colour."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdmpp.text import aligned, interval_text, percent_text, seconds_text, short_task, shortened

_BOLD, _RED, _YELLOW, _DIM, _PLAIN = "\033[1m", "\033[31m", "\033[33m", "\033[2m", "\033[0m"
#: Minimum shares of a line for red and for yellow.
_HOT, _WARM = 0.5, 0.1
#: Lines that only a parser needs.
_UNREAD = ("T.reads(", "T.writes(")
_CHANGES = 6
#: Source: docs/results/speed.md.
DOUBT = (
    "In measurements, four in five such changes of already scheduled programs made no difference."
)


@dataclass(frozen=True)
class ExplainedAnswer:
    """Explanation of a prediction; `print` shows it like `cdmpp explain`.

    Attributes:
        row: the explanation as JSON values, as printed by `cdmpp explain --json`
            (`docs/explanation/explanations.md`).
    """

    row: Mapping[str, Any]

    def text(self, *, is_painted: bool = False) -> str:
        """Returns the explanation as lines of text.

        Args:
            is_painted: whether to use colours and cut lines at the width of the terminal.
        """
        text = network_text if "kernels" in self.row else program_text
        return text(self.row, is_painted=is_painted)

    def __str__(self) -> str:
        return self.text()


def program_text(row: Mapping[str, Any], *, is_painted: bool) -> str:
    """Returns the text of an explained program.

    Args:
        row: as returned by `ExplainedProgram.row`.
        is_painted: whether to use colours and cut lines at the width of the terminal.
    """
    mark = " !" if row["out_of_distribution"] else ""
    title = f"{row['name']} on {row['device']}"
    if row["latency_s"] is None:
        return f"{title}: {row['reason']}"
    latency = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    parts = [f"{title}: {latency}{mark}"]
    if row["reason"]:
        parts[0] += f"\n  low confidence: {row['reason']}"
    if row["text"] is None:
        return f"{parts[0]}\nno store does any work"
    parts += [row["text"], _listing(row["lines"], is_painted), _leaves(row["leaves"])]
    if row["machine_code"] is not None:
        parts.append(f"compiled: {row['machine_code']['text']}")
    elif row["no_machine_code"] is not None:
        parts.append(f"not compiled: {row['no_machine_code']}")
    parts += [_near(row["nearest"]), _instead(row)]
    return "\n\n".join(part for part in parts if part)


def network_text(row: Mapping[str, Any], *, is_painted: bool) -> str:
    """Returns the text of an explained network: its kernels, then the most expensive programs.

    Args:
        row: as returned by `ExplainedNetwork.row`.
        is_painted: as in `program_text`.
    """
    latency = interval_text(row["latency_s"], row["low_s"], row["high_s"])
    kernels = [
        [
            percent_text(one["share"], 0), str(one["calls"]), seconds_text(one["in_network_s"]),
            shortened(one["name"], 40),
        ]
        for one in row["kernels"]
    ]  # fmt: skip
    table = aligned([["share", "calls", "time of one", "kernel"], *kernels], "rrrl", key=-1)
    parts = [f"{row['network']} on {row['device']}: {latency}", *row["reasons"], table]
    parts += [
        program_text(one["explanation"], is_painted=is_painted)
        for one in row["kernels"]
        if one["explanation"] is not None
    ]
    return "\n\n".join(parts)


def _listing(lines: Sequence[Mapping[str, Any]], is_painted: bool) -> str:
    width = shutil.get_terminal_size().columns
    found = []
    for line in lines:
        if line["text"].lstrip().startswith(_UNREAD):
            continue
        share = line["share"]
        place = "" if line["leaf"] is None else f"{percent_text(share, 0)} {line['leaf']:>3}"
        text = f"{place:>10} | {line['text']}"
        if is_painted:
            text = f"{_colour(share)}{shortened(text, width)}{_PLAIN}"
        found.append(text.rstrip())
    return "\n".join(found)


def _colour(share: float | None) -> str:
    if share is None:
        return _DIM
    return _BOLD + _RED if share >= _HOT else _YELLOW if share >= _WARM else ""


def _leaves(leaves: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(one["leaf"]), percent_text(one["share"], 0), seconds_text(one["seconds"]),
            one["buffer"], one["bound"], seconds_text(one["bound_s"]),
            "-" if one["ahead"] is None else f"{one['ahead']:.2g} x", one["fits"],
            loops_text(one["loops"]),
        ]
        for one in leaves
    ]  # fmt: skip
    titles = ["store", "share", "time", "to", "bound by", "its roofline", "the next", "data in",
              "loops around it"]  # fmt: skip
    return aligned([titles, *rows], "rrrllrrll", key=0)


def loops_text(loops: Sequence[Mapping[str, Any]]) -> str:
    """Returns loops as e.g. `i 64 parallel, j 16`; loops of one iteration are left out."""
    return ", ".join(
        f"{one['var']} {one['extent'] or '?'}"
        + ("" if one["kind"] == "serial" else f" {one['kind']}")
        for one in loops
        if one["extent"] != 1
    )


def _near(near: Sequence[Mapping[str, Any]]) -> str:
    if not near:
        return ""
    lines = ["most similar measured tasks:"]
    for one in near:
        differs = "; ".join(
            f"{part['column']} {part['here']:.3g} (there {part['there']:.3g})"
            for part in one["differs"]
        )
        name = short_task(one["task"], one["operator"], width=24)
        lines.append(f"  {name} at {one['distance']:.2f}: {differs}")
    return "\n".join(lines)


def _instead(row: Mapping[str, Any]) -> str:
    if row["no_counterfactual"] is not None:
        return f"no counterfactual applies: {row['no_counterfactual']}"
    rows = [
        [
            interval_text(one["latency_s"], one["low_s"], one["high_s"]), f"{one['ratio']:.2f} x",
            str(one["leaf"]), one["what"],
        ]
        for one in row["counterfactuals"][:_CHANGES]
    ]  # fmt: skip
    titles = ["predicted", "of now", "store", "change"]
    table = aligned([titles, *rows], "lrrl", key=0)
    doubt = f"\n{DOUBT}" if row["is_scheduled"] else ""
    return f"predicted after a change (--json has the programs):\n{table}{doubt}"
