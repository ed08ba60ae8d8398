"""Paired differences of the variants of an ablation to its subject, seed by seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdmpp.report.page import Section
from cdmpp.report.tables import Cell, Row, Table, format_value, plain_table
from lab.suites.leaderboard.board import Board, Seeds, family_scores, model_scores
from lab.suites.leaderboard.difference import LEAST_SEEDS, METRICS, Metric, difference
from lab.suites.leaderboard.matrix import matrix_table
from lab.suites.leaderboard.verdict import Verdict
from lab.suites.plan import REFERENCES

TITLE = "Paired differences"
_METRICS = (*METRICS[:2], METRICS[2]._replace(title="Spearman within a task"))


def paired_section(board: Board) -> tuple[Section, list[Verdict]]:
    """Returns the section with the differences of every variant, and what follows from them."""
    subject = board.suite.subject
    by_split, left_out = _by_split(board), _left_out(board)
    places = {**by_split, **left_out}
    variants = [line for line in board.lines() if line not in (subject, *REFERENCES)]
    findings = [_finding(line, subject, by_split, left_out) for line in variants]
    tables = [_table(places, subject, variants, metric) for metric in _METRICS]
    if left_out:
        tables.append(
            matrix_table(
                "Devices left out",
                "MAPE ± 95 % interval / Spearman of lines that were trained on the other devices "
                "of the family and measured nothing on this one; half of its tasks are tested.",
                [subject, *variants],
                left_out,
                subject=subject,
            )
        )
    if (sources := _source_table(board, variants)) is not None:
        tables.append(sources)
    note = (
        f"Difference to {subject} of the same seed, mean ± half width of the 95 % interval "
        "(Student's t), number of seeds in brackets. Below zero is better for errors, above for "
        f"Spearman. Settings of all lines: {', '.join(board.suite.settings) or 'the defaults'}."
    )
    verdict = [finding.text for finding in findings]
    return Section(TITLE, note, verdict, tables=tables), findings


def _by_split(board: Board) -> dict[str, dict[str, Seeds]]:
    """Returns title -> line -> seed -> metrics, mean over devices."""
    return {
        f"{scores.dataset}, by {scores.split}": scores.device("mean")
        for scores in model_scores(board)
    }


def _left_out(board: Board) -> dict[str, dict[str, Seeds]]:
    return {
        f"{scores.dataset}, without {target}": {
            line: found for line in scores.results if (found := scores.of_target(line, target, 0))
        }
        for scores in family_scores(board)
        for target in scores.family.targets
    }


def _source_table(board: Board, variants: list[str]) -> Table | None:
    """Returns how many training samples got which analytic model's time, and why the others have
    the roofline's; None where no variant has an analytic prior.
    """
    counted: dict[str, dict[tuple[int, str], dict[str, int]]] = {}
    for result in board.finished():
        cell, prior = result.cell, result.value.get("prior")
        if prior is None or cell.line not in variants:
            continue
        place = f"by {cell.split}" if not cell.target else f"without {cell.target}"
        reasons = {f"roofline: {why}": n for why, n in prior["roofline_because"].items()}
        # Lines of one seed have the same training part: the last one stands for all.
        of_place = counted.setdefault(f"{cell.dataset}, {place}", {})
        of_place[cell.seed, prior["model"]] = {**prior["training_samples"], **reasons}
    if not counted:
        return None
    names = dict.fromkeys(name for seeds in counted.values() for n in seeds.values() for name in n)
    rows = []
    for name in names:
        totals = [sum(n.get(name, 0) for n in seeds.values()) for seeds in counted.values()]
        if any(totals):
            rows.append([name, *(f"{total:,}" for total in totals)])
    note = (
        "Training samples, added up over the finished seeds. What has a reason for the roofline is "
        "counted in its first line too."
    )
    return plain_table(["", *counted], rows, title="Where the prior is from", note=note)


def _table(
    places: Mapping[str, Mapping[str, Seeds]],
    subject: str,
    variants: list[str],
    metric: Metric,
) -> Table:
    key, unit = metric.key, metric.unit
    first = []
    for found in places.values():
        values = [m[key] for m in found.get(subject, {}).values() if m.get(key) is not None]
        text = "-" if not values else format_value(sum(values) / len(values), unit)
        first.append(Cell(text))
    rows = [Row(subject, "model", tuple(first))]
    for line in variants:
        cells = []
        for found in places.values():
            gap = difference(found.get(line, {}), found.get(subject, {}), key)
            cells.append(Cell("-" if gap is None else gap.text(unit)))
        rows.append(Row(line, "baseline", tuple(cells)))
    note = f"The first line is {subject} itself, the others are differences to it."
    return Table(metric.title, note, ("", *places), tuple(rows))


def _finding(
    line: str,
    subject: str,
    by_split: Mapping[str, Mapping[str, Seeds]],
    left_out: Mapping[str, Mapping[str, Seeds]],
) -> Verdict:
    """Returns whether a variant gains MAPE beyond the interval on every data set by its split, and
    where it gains on left-out devices.
    """
    gained: dict[str, bool] = {}
    values: dict[str, Any] = {}
    parts = []
    for place, found in {**by_split, **left_out}.items():
        gap = difference(found.get(line, {}), found.get(subject, {}), "mape")
        if gap is None:
            continue
        gained[place] = gap.is_gain(is_low_good=True)
        values[place] = {"mape_difference": gap.mean, "half_width": gap.half, "seeds": gap.seeds}
        parts.append(f"{place} {gap.text('percent')}")
    on_splits = [gained.get(place, False) for place in by_split]
    is_met = bool(on_splits) and all(on_splits)
    text = (
        f"{line} against {subject}, MAPE: {'; '.join(parts) or 'nothing finished'}. "
        f"A gain beyond the interval ({LEAST_SEEDS} seeds or more) on "
        f"{sum(gained.values())} of {len(gained)}"
        f"{'; on every split by task or network' if is_met else ''}."
    )
    return Verdict(text, is_met, values)
