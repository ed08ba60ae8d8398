"""HTML report of a study: history, importance, parallel coordinates, Pareto front, all trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.autotune.plots import (
    front_plot,
    history_plot,
    importance_plot,
    parallel_plot,
    varied_settings,
)
from cdmpp.autotune.trial_rows import TrialRow, importances, trial_rows
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_text
from cdmpp.machine import versions
from cdmpp.report.page import Page, Section, page_html
from cdmpp.report.tables import Cell, Row, Table, format_value
from cdmpp.text import counted, percent_text, seconds_text

if TYPE_CHECKING:
    import optuna

_HEADER = (
    "trial", "state", "value", "MAPE", "median APE", "Spearman", "prediction", "parameters",
    "epochs", "steps", "CPU s", "reason",
)  # fmt: skip
_NOTES = (
    "All values are errors on the validation part. The best trial was selected on it, so its "
    "value is too optimistic: quote the error on the test part, which is used once, when the "
    "best settings are trained.",
    "The first trial has the settings given to the study; the improvement is measured against it.",
    "MAPE is the mean of |predicted - measured| / measured; Spearman is the rank correlation "
    "within tasks, averaged.",
    "A trial that was stopped early shows its last value, after fewer epochs than the others.",
    "Importance (PED-ANOVA) shows in which settings the good trials differ from all trials. "
    "With few trials this is a correlation, not a proof.",
    "Failed trials are not results: their worker died or was stopped, and they were rerun under "
    "another number.",
)
_WHAT = {
    "mape": "validation MAPE",
    "error-and-order": "validation error and order",
    "error-and-time": "validation MAPE",
}


def write_study_report(study: optuna.Study, path: Path, *, command: str, preset: str = "") -> Path:
    """Writes the report and returns its path.

    Args:
        preset: text of the winner's YAML file; empty = not written yet.

    Raises:
        DataError: no trial has started, or the report cannot be written.
    """
    rows = trial_rows(study)
    if not rows:
        raise DataError(
            f"the study {study.study_name!r} has no trial yet; run `cdmpp autotune` first"
        )
    write_text(path, page_html(study_page(study, rows, command=command, preset=preset)))
    return path


def study_page(
    study: optuna.Study, rows: Sequence[TrialRow], *, command: str, preset: str = ""
) -> Page:
    """Returns the report of a study's trials."""
    options: dict[str, Any] = study.user_attrs.get("options", {})
    what = _WHAT[options.get("objective", {}).get("kind", "mape")]
    note = "A file for configs/models; settings that are not listed have their defaults."
    best = [Section("Best settings", note, code=preset)] if preset else []
    return Page(
        title=f"Study {study.study_name}",
        lead=_lead(rows, what),
        sections=[
            *best,
            *_plots(study, rows, what),
            Section("Trials", _counts(rows), tables=[_table(rows)]),
        ],
        warnings=_warnings(rows),
        tiles=_tiles(rows, what) if any(row.is_done for row in rows) else (),
        notes=_NOTES,
        command=command,
        facts=_facts(options, rows),
    )


def _plots(study: optuna.Study, rows: Sequence[TrialRow], what: str) -> list[Section]:
    plots = []
    if any(row.values for row in rows):
        plots.append(("The trials in order.", history_plot(rows, what)))
    shares = importances(study)
    if shares:
        caption = "Importance of the settings that all finished trials have."
        plots.append((caption, importance_plot(shares)))
    if any(row.is_done and row.predict_s for row in rows):
        caption = "Error against the time of a prediction: left and down is better."
        plots.append((caption, front_plot(rows, what)))
    names = sorted(shares, key=lambda name: -shares[name])
    sections = [Section("Plots", plots=plots)] if plots else []
    if len(varied_settings(rows, names)) >= 2:
        caption = "Settings of the finished trials; the best fifth is coloured."
        sections.append(Section("Settings", plots=[(caption, parallel_plot(rows, names))]))
    return sections


def _lead(rows: Sequence[TrialRow], what: str) -> str:
    done = [row for row in rows if row.is_done]
    if not done:
        return "No trial finished."
    best = min(done, key=lambda row: row.values[0])
    first = next((row for row in rows if row.number == 0 and row.is_done), None)
    text = f"Trial {best.number} has the lowest {what}: {best.values[0]:.4g}"
    if first is None or not first.values[0]:
        return f"{text}. The trial with the initial settings did not finish."
    gain = 1.0 - best.values[0] / first.values[0]
    return f"{text}, {100 * gain:.1f} % less than the initial {first.values[0]:.4g}."


def _tiles(rows: Sequence[TrialRow], what: str) -> list[tuple[str, str]]:
    best = min((row for row in rows if row.is_done), key=lambda row: row.values[0])
    tiles = [
        (f"{best.values[0]:.4g}", f"best {what}"),
        (str(sum(row.is_done for row in rows)), "trials finished"),
        (str(sum(row.state == "pruned" for row in rows)), "ended early"),
        (f"{sum(row.cpu_s for row in rows) / 60:.1f}", "CPU minutes"),
        (f"{sum(row.steps for row in rows):,}", "optimiser steps"),
    ]
    if best.predict_s is not None:
        tiles.append((seconds_text(best.predict_s), "a prediction of the best"))
    return tiles


def _warnings(rows: Sequence[TrialRow]) -> list[str]:
    running = sum(row.state == "running" for row in rows)
    return [f"{counted(running, 'trial')} still running."] if running else []


def _counts(rows: Sequence[TrialRow]) -> str:
    states = Counter(row.state for row in rows)
    # The part of a reason before the colon is the same for all trials that end in the same way.
    reasons = Counter(
        row.reason.partition(":")[0] if ":" in row.reason else row.reason.lstrip("0123456789.e+- ")
        for row in rows
        if row.reason
    )
    text = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    if reasons:
        text += "; not finished: " + ", ".join(f"{n} {why}" for why, n in reasons.most_common(6))
    return f"{text}. Best first."


def _table(rows: Sequence[TrialRow]) -> Table:
    ordered = sorted(
        rows, key=lambda row: (not row.is_done, row.values[0] if row.values else 1e30, row.number)
    )
    lines = []
    for index, row in enumerate(ordered):
        texts = (
            row.state,
            " ".join(f"{value:.4g}" for value in row.values) or "-",
            percent_text(row.mape),
            percent_text(row.median_ape),
            format_value(row.spearman_by_task, "ratio"),
            seconds_text(row.predict_s),
            format_value(row.parameters, "count"),
            str(row.epochs),
            f"{row.steps:,}",
            f"{row.cpu_s:.1f}",
            row.reason,
        )
        role = "model" if row.is_done and index == 0 else "baseline"
        lines.append(Row(str(row.number), role, tuple(map(Cell, texts))))
    return Table("", "", _HEADER, tuple(lines))


def _facts(options: dict[str, Any], rows: Sequence[TrialRow]) -> list[tuple[str, str]]:
    train = options.get("train", {})
    facts = [
        ("models", ", ".join(sorted({row.model for row in rows if row.model}))),
        ("objective", str(options.get("objective", {}).get("kind", ""))),
        ("sampler, seed", f"{options.get('sampler', '')}, {options.get('seed', '')}"),
        ("pruner", str(options.get("pruner", {}).get("kind", ""))),
        ("data", str(train.get("dataset") or "tenset-cpu (shipped)")),
        ("split, seed", f"{train.get('split', '')}, {train.get('seed', '')}"),
        ("most parameters", str(options.get("most_parameters") or "no limit")),
        ("most CPU s a trial", str(options.get("most_trial_cpu_s") or "no limit")),
    ]
    return facts + [(name, str(value)) for name, value in versions().items()]
