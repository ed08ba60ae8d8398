"""Leave-one-device-out errors: the expected error of a model on devices without measurements."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cdmpp.report.page import Section
from cdmpp.report.recognised import judged_table
from cdmpp.report.tables import Table, keyed
from cdmpp.text import counted, listed, percent_text


def left_out_tables(metrics: dict[str, Any]) -> list[Table]:
    """Returns the table of the mean over left-out devices, then a table for each.

    Args:
        metrics: content of metrics.json of a run for devices without measurements.
    """
    facts, model = metrics["unmeasured"], metrics["model"]
    title = f"mean of {counted(len(facts['left_out']), 'device')}, each left out"
    groups = {title: (facts["mean"], facts.get("mean_recognised", {}))}
    groups |= {
        f"{name}, left out": (one["test"], one.get("recognised", {}))
        for name, one in facts["left_out"].items()
    }
    return [
        judged_table(title, lines, recognised, model=model)
        for title, (lines, recognised) in groups.items()
    ]


def left_out_sentence(metrics: dict[str, Any]) -> str:
    """Returns a sentence with the expected error and how it was computed."""
    facts, model = metrics["unmeasured"], metrics["model"]
    errors = {name: one["test"][model]["mape"] for name, one in facts["left_out"].items()}
    low, high = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    mean = facts["mean"][model]
    return (
        f"what to expect on {listed(facts['devices'])}: MAPE {percent_text(mean['mape'])}, "
        f"median {percent_text(mean['median_ape'])} (mean of {counted(len(errors), 'device')}; "
        f"MAPE from {percent_text(errors[low])} on {low} to {percent_text(errors[high])} on "
        f"{high}), from trainings on at most {facts['programs_per_device']:,} programs of each "
        "other device, without that device and without its test tasks"
    )


def left_out_intervals(metrics: dict[str, Any]) -> str:
    """Returns how intervals of new devices were made, and their leave-one-device-out coverage."""
    facts = metrics["unmeasured"]
    if facts["calibration_tasks"] is None:
        return "not its own, because of too few test tasks: the model's intervals, widened"
    made = (
        f"90 % nominal, wide enough for the worst-predicted device ({facts['calibration_tasks']} "
        "tasks)"
    )
    held = [
        f"{name} {100 * one['interval_coverage']:.0f} % (a factor "
        f"{math.exp(one['interval_log_width'] / 2):.1f} each way)"
        for name, one in facts["left_out"].items()
        if one["interval_coverage"] is not None
    ]
    if not held:
        return made
    return (
        f"{made}; calibrated on the other devices, their coverage of a task's programs is "
        f"{', '.join(held)}"
    )


def left_out_section(metrics: dict[str, Any]) -> Section:
    """Returns the page's section of leave-one-device-out results."""
    tables = left_out_tables(metrics)
    return Section(
        "Devices left out",
        f"For {listed(metrics['unmeasured']['devices'])}, a device without measurements:  "
        f"{left_out_sentence(metrics)}. Intervals: {left_out_intervals(metrics)}.",
        tables=[replace(tables[0], title=""), *keyed(tables[1:], metrics["model"])],
    )
