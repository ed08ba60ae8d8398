"""The report of an audit as text."""

from __future__ import annotations

from typing import Any

from cdmpp.text import aligned, counted, percent_text

_MARKS = {"error": "ERROR", "warning": "warning", "note": "note"}


def audit_text(report: dict[str, Any]) -> str:
    """Returns the result of `cdmpp.datasets.audit.audit.audit` as tables and lines."""
    head = (
        f"{counted(report['programs'], 'program')} of {counted(report['tasks'], 'task')}, "
        f"{counted(report['measurements'], 'measurement')} ({report['layout']})"
    )
    return "\n".join(
        [head, "", _noise_table(report), "", _split_table(report), "", *_lines(report)]
    )


def _noise_table(report: dict[str, Any]) -> str:
    rows = [
        ["device", "records", "with repeats", "median", "90 %", "max/min 90 %", "outliers",
         "re-measured", "differing", "above peak"]
    ]  # fmt: skip
    for label, device in report["devices"].items():
        noise, repeated = device["noise"], device["repeated"]
        above = device["units"]["above_peak"]
        rows.append([
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
        ])  # fmt: skip
    title = "noise floor: spread of the repeats of one record (std / mean)"
    return f"{title}\n{aligned(rows, 'lr')}"


def _split_table(report: dict[str, Any]) -> str:
    rows = [
        ["split", "seed", "train", "validation", "test", "tasks", "programs", "test features seen"]
    ]
    for entry in report["splits"]:
        if "impossible" in entry:
            rows.append([entry["kind"], str(entry["seed"]), "not possible", *[""] * 5])
            continue
        seen = entry["test_samples_seen_in_training"]
        rows.append([
            entry["kind"] + (" (leaks)" if entry["leaks"] else ""),
            str(entry["seed"]),
            *(str(entry["sizes"][part]) for part in ("train", "validation", "test")),
            str(entry["tasks_in_two_parts"]),
            str(entry["programs_in_two_parts"]),
            "-" if seen is None else str(seen),
        ])  # fmt: skip
    return f"found in two parts of a split\n{aligned(rows, 'lr')}"


def _lines(report: dict[str, Any]) -> list[str]:
    networks = report["networks"]
    lines = [
        f"{counted(networks['networks'], 'network')}: "
        f"{counted(networks['tasks_in_one_network'], 'task')} in one, "
        f"{networks['tasks_in_several_networks']} in several, "
        f"{networks['tasks_in_no_network']} in none"
    ]
    for finding in report["findings"]:
        lines.append(f"{_MARKS[finding['severity']]}: {finding['text']}")
        lines += [f"    {example}" for example in finding["examples"]]
    if not report["findings"]:
        lines.append("nothing found")
    return lines
