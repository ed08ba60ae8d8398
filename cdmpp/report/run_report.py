"""Report (report.html) of a training run."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.files.atomic import write_text
from cdmpp.metrics import absolute_percentage_error
from cdmpp.report.left_out import left_out_section
from cdmpp.report.page import Page, Section, page_html
from cdmpp.report.plots import (
    MOST_POINTS,
    error_by_latency,
    error_distribution,
    predicted_against_measured,
    training_curve,
)
from cdmpp.report.recognised import judged_table, on_device
from cdmpp.report.tables import COLUMNS, Table, format_value, keyed, plain_table
from cdmpp.text import counted, listed, percent_text, shortened, task_words
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
    """Returns the test tables of a run: all devices together if there are several, then each.

    Args:
        metrics: content of metrics.json.
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
    """Returns how the run's intervals were calibrated and their coverage on the test part.

    Args:
        metrics: content of metrics.json.
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
    """Returns the number of training samples per analytic model of the prior, and the reasons for
    falling back to the roofline.

    Args:
        prior: result of `CostModel.prior_facts`.
    """
    counts = ", ".join(f"{name} {n:,}" for name, n in prior["training_samples"].items() if n)
    reasons = ", ".join(f"{why} {n:,}" for why, n in prior["roofline_because"].items())
    text = f"{prior['model']}; training samples: {counts}"
    return f"{text}; the roofline because: {reasons}" if reasons else text


def write_run_report(result: RunResult, *, command: str) -> Path:
    """Writes report.html into the run folder and returns its path.

    Args:
        command: command line of the run.
    """
    metrics = result.metrics
    model = metrics["model"]
    unmeasured = metrics.get("unmeasured")
    values = unmeasured["mean"][model] if unmeasured else metrics["test"][model]
    sections = _test_part(metrics, _plots(result, model))
    if unmeasured:
        sections.insert(0, left_out_section(metrics))
    if result.history:
        curve = ("The loss includes the order term.", training_curve(result.history))
        sections.append(Section("Training", plots=[curve]))
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
        sections=sections,
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
            f"{learned} of {counted(train['tasks'], 'task')} on {listed(facts['sources'])}, for "
            f"{listed(facts['devices'])}; evaluated on each of these devices while it was left "
            "out."
        )
    if metrics["split"]["leaks"]:
        return f"{learned}, evaluated on {test['samples']:,} others of the same tasks."
    return (
        f"{learned} of {counted(train['tasks'], 'task')}, evaluated on {test['samples']:,} of "
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


def _test_part(metrics: dict[str, Any], plots: list[tuple[str, str]]) -> list[Section]:
    first, *others = run_tables(metrics)
    title = "How good it is"
    note = _verdict(metrics)
    if "unmeasured" in metrics:
        title = "New tasks on the devices that were trained on"
        names = listed(metrics["unmeasured"]["devices"])
        note += f" These devices were trained on: this is not the error on {names}."
    found = [Section(title, note, plots=plots, tables=[replace(first, title="")])]
    if others:
        model = metrics["model"]
        found.append(
            Section("Device by device", tables=[_by_device(metrics), *keyed(others, model)])
        )
    return found


def _verdict(metrics: dict[str, Any]) -> str:
    """Returns the median errors of the model and of the best baseline."""
    lines, model = metrics["test"], metrics["model"]
    half = percent_text(lines[model]["median_ape"])
    text = f"Half of the predictions are within {half} of the measured latency"
    rivals = {name: one["median_ape"] for name, one in lines.items() if name not in (model, ORACLE)}
    if not rivals:
        return f"{text}."
    best = min(rivals, key=rivals.__getitem__)
    return f"{text} ({best}, the best baseline: {percent_text(rivals[best])})."


def _by_device(metrics: dict[str, Any]) -> Table:
    """Returns the metrics of the model on every device, largest error first."""
    devices = metrics["test"][metrics["model"]]["by_device"]
    ordered = sorted(devices, key=lambda name: -devices[name]["median_ape"])
    rows = [
        [name, *(format_value(devices[name].get(one.key), one.unit) for one in COLUMNS)]
        for name in ordered
    ]
    return plain_table(["device", *(one.title for one in COLUMNS)], rows)


def _plots(result: RunResult, model: str) -> list[tuple[str, str]]:
    test = result.test
    errors = {
        name: absolute_percentage_error(test.latency_s, predicted)
        for name, predicted in result.predicted_s.items()
        if name != ORACLE and np.isfinite(predicted).all()
    }
    labels = [spec.name for spec in test.devices]
    shown = "Every test program"
    if len(test) > MOST_POINTS:
        shown = f"{MOST_POINTS:,} of {len(test):,} test programs, drawn at random"
    used, first, which = np.unique(test.task_id, return_index=True, return_inverse=True)
    words = [_words(test, task, row) for task, row in zip(used, first, strict=True)]
    plots = [
        (
            f"{shown}; the band is a factor of two.",
            predicted_against_measured(
                test.latency_s,
                result.predicted_s[model],
                test.device,
                labels,
                which=which,
                words=words,
            ),
        ),
        ("Share of programs by error.", error_distribution(errors)),
        (
            "Median error by measured latency.",
            error_by_latency(test.latency_s, errors),
        ),
    ]
    return plots


def _words(samples: Samples, task: int, row: int) -> str:
    """Returns the readable name of a task and its networks; `row` is any sample of the task."""
    programs = samples.programs
    text = task_words(programs.tasks[task], programs.operator[samples.program[row]])
    names = [name for name, _ in programs.networks[task]]
    return f"{text}\n{shortened(', '.join(names), 60)}" if names else text


def _facts(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("split", f"{metrics['split']['description']}; fractions {metrics['split']['fractions']}"),
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
