"""The report of an audit for people."""

from __future__ import annotations

from typing import Any

from cdmpp.text import percent_text

_MARKS = {"error": "ERROR", "warning": "warning", "note": "note"}


def audit_table(report: dict[str, Any]) -> Any:
    """Returns what `cdmpp.datasets.audit.audit.audit` gave as a rich group of tables and lines."""
    from rich.console import Group
    from rich.text import Text

    head = (
        f"{report['programs']} programs of {report['tasks']} tasks, "
        f"{report['measurements']} measurements ({report['layout']})"
    )
    return Group(
        Text(head), _noise_table(report), _split_table(report), Text("\n".join(_lines(report)))
    )


def _noise_table(report: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="noise floor: spread of the repeats of one record (std / mean)")
    table.add_column("device")
    for name in (
        "records", "with repeats", "median", "90 %", "max/min 90 %", "outliers", "re-measured",
        "differing", "above peak",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    for label, device in report["devices"].items():
        noise, repeated = device["noise"], device["repeated"]
        above = device["units"]["above_peak"]
        table.add_row(
            label,
            str(noise["records"]),
            str(noise["with_repeats"]),
            percent_text(noise["spread_median"], 2),
            percent_text(noise["spread_p90"], 2),
            "-" if noise["max_over_min_p90"] is None else f"{noise['max_over_min_p90']:.2f}",
            str(noise["outliers"]),
            str(repeated["programs"]),
            str(repeated["differing"]),
            "-" if above is None else str(above),
        )
    return table


def _split_table(report: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title="what is in two parts of a split")
    for name in ("split", "seed"):
        table.add_column(name)
    for name in ("train", "validation", "test", "tasks", "programs", "test features seen"):
        table.add_column(name, justify="right")
    for entry in report["splits"]:
        if "impossible" in entry:
            table.add_row(entry["kind"], str(entry["seed"]), "not possible")
            continue
        seen = entry["test_samples_seen_in_training"]
        table.add_row(
            entry["kind"] + (" (leaks)" if entry["leaks"] else ""),
            str(entry["seed"]),
            *(str(entry["sizes"][part]) for part in ("train", "validation", "test")),
            str(entry["tasks_in_two_parts"]),
            str(entry["programs_in_two_parts"]),
            "-" if seen is None else str(seen),
        )
    return table


def _lines(report: dict[str, Any]) -> list[str]:
    networks = report["networks"]
    lines = [
        f"{networks['networks']} networks: {networks['tasks_in_one_network']} tasks in one, "
        f"{networks['tasks_in_several_networks']} in several, "
        f"{networks['tasks_in_no_network']} in none"
    ]
    for finding in report["findings"]:
        lines.append(f"{_MARKS[finding['severity']]}: {finding['text']}")
        lines += [f"    {example}" for example in finding["examples"]]
    if not report["findings"]:
        lines.append("nothing found")
    return lines
