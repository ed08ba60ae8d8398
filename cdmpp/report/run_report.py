"""report.html of a training run."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.files.atomic import write_text
from cdmpp.metrics import absolute_percentage_error
from cdmpp.report.left_out import left_out_section
from cdmpp.report.page import Page, Section, page_html
from cdmpp.report.plots import (
    error_by_latency,
    error_distribution,
    predicted_against_measured,
    training_curve,
)
from cdmpp.report.recognised import judged_table, on_device
from cdmpp.report.tables import Row, Table, format_value
from cdmpp.text import listed
from cdmpp.training.run import ORACLE, RunResult

_NOTES = (
    "Every program was evaluated once, by a model that was not trained on its task (unless a "
    "warning above says otherwise).",
    "APE is |predicted - measured| / measured. MAPE is its mean, which a few tiny operators can "
    "dominate; the median APE is the typical error.",
    "Spearman is the rank correlation of predicted and measured latency among the programs of one "
    "task on one device, averaged over tasks with at least four programs.",
    "top-k is the summed latency of the best programs over that of the best among the k predicted "
    "fastest, weighted by how often the networks call each task; 1 is perfect.",
    "constant: median latency of the training part on that device. roofline: max(operations / "
    "peak, "
    "bytes / bandwidth) times one factor per device. gbdt: gradient-boosted trees on pooled "
    "leaf features.",
    "conv, embedding: the convolution and the embedding model times one factor per device, on "
    "the programs that they recognise, beside the other models on the same programs; only a "
    "reference.",
    "oracle uses the measured results: it predicts each test task's median latency on the "
    "device for all its schedules. It is only a reference.",
    "The best value of a column is coloured (without the oracle).",
)


def run_tables(metrics: dict[str, Any]) -> list[Table]:
    """Returns the test table of a run, all devices together first.

    Args:
        metrics: what metrics.json holds.
    """
    lines: dict[str, dict[str, Any]] = metrics["test"]
    model = metrics["model"]
    recognised = metrics.get("recognised", {})
    devices = list(lines[model]["by_device"])
    groups = []
    if len(devices) > 1:
        groups.append(judged_table("all devices", lines, recognised, model=model))
    groups += [
        judged_table(
            device,
            {name: line["by_device"][device] for name, line in lines.items()},
            on_device(recognised, device),
            model=model,
        )
        for device in devices
    ]
    return groups


def interval_sentence(metrics: dict[str, Any]) -> str:
    """Returns what the run's intervals are and how they did on the test part.

    Args:
        metrics: what metrics.json holds.
    """
    calibration = metrics.get("calibration")
    if calibration is None:
        return "none: too few validation tasks to calibrate them"
    values = metrics["test"][metrics["model"]]
    made = (
        f"{100 * calibration['coverage']:.0f} % nominal, measured on {calibration['tasks']} "
        "validation tasks"
    )
    if values.get("interval_coverage") is None:
        return made
    factor = math.exp(values["interval_log_width"] / 2.0)
    return (
        f"{made}; on the test part {100 * values['interval_coverage']:.1f} % of a task's "
        f"programs are in their interval, typically a factor {factor:.2f} each way"
    )


def prior_sentence(prior: dict[str, Any]) -> str:
    """Returns how many training samples each analytic model gave its time to, and why the others
    have the roofline's.

    Args:
        prior: what `CostModel.prior_facts` returns.
    """
    counts = ", ".join(f"{name} {n:,}" for name, n in prior["training_samples"].items() if n)
    reasons = ", ".join(f"{why} {n:,}" for why, n in prior["roofline_because"].items())
    text = f"{prior['model']}; training samples: {counts}"
    return f"{text}; the roofline because: {reasons}" if reasons else text


def write_run_report(result: RunResult, *, command: str) -> Path:
    """Writes report.html into the run folder and returns its path.

    Args:
        command: the command line that made the run, for the reader.
    """
    metrics = result.metrics
    model = metrics["model"]
    unmeasured = metrics.get("unmeasured")
    values = unmeasured["mean"][model] if unmeasured else metrics["test"][model]
    plots = Section("Plots", plots=_plots(result, model))
    page = Page(
        title=f"Latency prediction: {model}",
        lead=_lead(metrics),
        warnings=_warnings(metrics),
        tiles=[
            (format_value(values["median_ape"], "percent"), "median error"),
            (format_value(values["mape"], "percent"), "mean error (MAPE)"),
            (format_value(values["spearman_by_task"], "ratio"), "Spearman within a task"),
            (format_value(values["top5_score"], "ratio"), "top-5 score"),
        ],
        sections=[left_out_section(metrics), plots, _test_part(metrics)]
        if unmeasured
        else [_test_part(metrics), plots],
        notes=_NOTES,
        command=command,
        facts=_facts(metrics),
    )
    path = result.run_dir / "report.html"
    write_text(path, page_html(page))
    return path


def _lead(metrics: dict[str, Any]) -> str:
    parts = metrics["parts"]
    train, test = parts["train"], parts["test"]
    learned = f"Trained on {train['samples']:,} measured programs"
    if "unmeasured" in metrics:
        facts = metrics["unmeasured"]
        return (
            f"{learned} of {train['tasks']:,} tasks on {listed(facts['sources'])}, for "
            f"{listed(facts['devices'])}; evaluated on each of these devices while it was left "
            "out."
        )
    if metrics["split"]["leaks"]:
        return f"{learned}, evaluated on {test['samples']:,} others of the same tasks."
    return (
        f"{learned} of {train['tasks']:,} tasks, evaluated on {test['samples']:,} of "
        f"{test['tasks']:,} other tasks."
    )


def _warnings(metrics: dict[str, Any]) -> list[str]:
    found = []
    if "unmeasured" in metrics:
        names = listed(metrics["unmeasured"]["devices"])
        found.append(
            f"It has no measurement of {names}: the model only uses the description of {names}."
        )
    if metrics["split"]["leaks"]:
        found.append(
            "This split leaks: programs of the same task are in the training and the test part, "
            "so the errors are no estimate for new tasks."
        )
    return found


def _test_part(metrics: dict[str, Any]) -> Section:
    note = f"Split {metrics['split']['description']}."
    tables = [_in_one(metrics)]
    if "unmeasured" not in metrics:
        return Section("Test part", note, tables=tables)
    names = listed(metrics["unmeasured"]["devices"])
    note += f" These devices were trained on: this is not the error on {names}."
    return Section("New tasks on the devices that were trained on", note, tables=tables)


def _in_one(metrics: dict[str, Any]) -> Table:
    """Returns the tables of a run below each other."""
    tables = run_tables(metrics)
    rows = (row for one in tables for row in (Row(one.title, "group", ()), *one.rows))
    return Table("", "", tables[0].header, tuple(rows))


def _plots(result: RunResult, model: str) -> list[tuple[str, str]]:
    test = result.test
    errors = {
        name: absolute_percentage_error(test.latency_s, predicted)
        for name, predicted in result.predicted_s.items()
        if name != ORACLE and np.isfinite(predicted).all()
    }
    labels = [spec.name for spec in test.devices]
    plots = [
        (
            "Every test program; the band is a factor of two.",
            predicted_against_measured(
                test.latency_s, result.predicted_s[model], test.device, labels
            ),
        ),
        ("Share of programs by error.", error_distribution(errors)),
        (
            "Median error by measured latency.",
            error_by_latency(test.latency_s, errors),
        ),
    ]
    if result.history:
        plots.append(
            ("Training; its loss includes the order term.", training_curve(result.history))
        )
    return plots


def _facts(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("split", f"by {metrics['split']['kind']}, fractions {metrics['split']['fractions']}"),
        ("seed", str(metrics["seed"])),
        ("data hash", metrics["data_hash"]),
        ("training time", f"{metrics['training_s']:.1f} s"),
    ]
    if metrics["samples_per_s"]:
        facts.append(("training speed", f"{metrics['samples_per_s']:,.0f} samples/s"))
    if "prior" in metrics:
        facts.append(("analytic prior", prior_sentence(metrics["prior"])))
    facts.append(("intervals", interval_sentence(metrics)))
    facts.append(("prediction speed", f"{metrics['predictions_per_s']:,.0f} programs/s"))
    facts.append(("versions", ", ".join(f"{k} {v}" for k, v in metrics["versions"].items())))
    facts.append(("machine", f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}"))
    return facts
