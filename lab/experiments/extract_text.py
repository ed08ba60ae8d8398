"""The page that `extract_speed.py` writes."""

from __future__ import annotations

from typing import Any

#: Records of a device of the full Tenset.
FULL_RECORDS = 200 * 4000


def report_text(result: dict[str, Any], stamp: dict[str, Any]) -> str:
    """Returns the Markdown page of a result."""
    machine = stamp["machine"]
    lines = [
        "# Extraction speed",
        "",
        "Measure-record files to Parquet: gunzip, JSON and checks, program ids, replay, lowering, "
        "leaf vectors, writing. Native",
        f"featuriser, {machine['processor']}, {machine['cores']} cores, load "
        f"{result['load_before']:.1f} before the run. Command: `{stamp['command']}`.",
        "",
        "| dataset | records | programs | with features | cores | wall s | CPU s | records/s | "
        "records per CPU s | peak MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["datasets"]:
        for jobs in (1, 2):
            run = row[f"jobs_{jobs}"]
            lines.append(
                f"| {row['dataset']} | {run['records']:,} | {run['programs']:,} | "
                f"{run['featurised']:,} | {jobs} | {run['wall_s']:.1f} | {run['cpu_s']:.1f} | "
                f"{run['records'] / run['wall_s']:,.0f} | {run['records'] / run['cpu_s']:,.0f} | "
                f"{run['peak_mb']:.0f} |"
            )
    lines += [
        "",
        "Start-up (tasks of `network_info`, compiler cache, worker processes) is in all of it.",
        "",
        "## Where the time goes",
        "",
        "Microseconds of CPU time a record on one core, every part in a pass of its own; `tasks` "
        "and `task set-up` are",
        "seconds for the whole dataset, which do not grow with the records of a task.",
        "",
        "| dataset | gunzip | read, parse, check | program id | replay | lower | walk | calls and "
        "rows | write | sum | floor | tasks s | task set-up s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["datasets"]:
        found = row["phases"]
        each = {name: 1e6 * s / found["records"] for name, s in found["seconds"].items()}
        names = (
            "gunzip", "read and parse", "program ids", "replay", "lower", "walk",
            "calls and rows", "write",
        )  # fmt: skip
        cells = [each[name] for name in names]
        lines.append(
            f"| {row['dataset']} | "
            + " | ".join(f"{cell:.1f}" for cell in [*cells, sum(cells)])
            + f" | {each['gunzip'] + each['write']:.1f} | {found['seconds']['tasks']:.2f} | "
            f"{found['seconds'].get('task set-up', 0.0):.2f} |"
        )
    grown = result["memory"]
    full = result["full_tenset_device"]
    lines += [
        "",
        "The floor is what remains when everything between the files is free: gunzip and the "
        "Parquet writer.",
        "",
        f"A device of the full Tenset (200 tasks of 4,000 records, {FULL_RECORDS:,} in all) takes",
        f"{full['minutes_1_core']:.1f} minutes on one core and {full['minutes_2_cores']:.1f} on "
        f"two, extrapolated from the {full['from']} rows above.",
        "",
        f"Peak memory at {grown['1x']['records']:,} records: "
        f"{grown['1x']['peak_bytes'] / 1e6:.0f} MB, at {grown['10x']['records']:,}: "
        f"{grown['10x']['peak_bytes'] / 1e6:.0f} MB, {grown['ratio']:.2f} times as much.",
        "",
    ]
    return "\n".join(lines)


def outcomes_text(row: dict[str, Any], stamp: dict[str, Any]) -> str:
    """Returns the Markdown page about what became of a dataset's records."""
    run, two = row["jobs_1"], row["jobs_2"]
    by_device: dict[str, dict[str, int]] = run["outcomes"]
    featurised = sum(
        count
        for outcomes in by_device.values()
        for name, count in outcomes.items()
        if not name.startswith("failed")
    )
    lines = [
        f"# Records of {row['dataset']}",
        "",
        f"{featurised:,} of {run['records']:,} records are featurised, "
        f"{featurised / run['records']:.2%} ({run['programs']:,} programs, {run['valid']:,} of "
        "them valid).",
        f"One core: {run['wall_s']:.1f} s, {run['peak_mb']:.0f} MB; two cores: {two['wall_s']:.1f} "
        f"s, {two['peak_mb']:.0f} MB (the largest process).",
        f"Command: `{stamp['command']}`, {stamp['machine']['processor']}.",
        "",
        "| device | what became of the record | records |",
        "|---|---|---|",
    ]
    lines += [
        f"| {device} | {name} | {count:,} |"
        for device, outcomes in by_device.items()
        for name, count in outcomes.items()
    ]
    lines += [
        "",
        "Flagged records are in the dataset with `valid` = false and the reason that the original "
        "compiler's check",
        "gives (the hardware parameters of the task); they were measured all the same, and are "
        "samples.",
        "",
    ]
    return "\n".join(lines)
