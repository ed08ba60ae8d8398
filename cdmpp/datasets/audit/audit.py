"""`audit`: finds faults of a dataset before a model is trained on it.

It checks for leakage between the parts of a split, duplicates, costs in wrong units and outliers,
and computes the noise floor of each device, below which no model's error can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.audit.facts import (
    EXAMPLE_COUNT,
    OUTLIER_RATIO,
    Facts,
    RepeatFacts,
    collect_facts,
)
from cdmpp.datasets.audit.quantiles import Quantiles
from cdmpp.datasets.audit.splits import audit_splits
from cdmpp.devices.registry import find_device
from cdmpp.text import agreed, counted

#: Latencies outside of this range are reported as a wrong unit.
SHORTEST_S = 1e-7
LONGEST_S = 100.0
#: A rate above the device's peak times this factor is reported as a wrong unit or flop count.
PEAK_MARGIN = 1.5
#: Measurements of one program differ if their ratio exceeds this, or 1 + three times the noise.
DIFFERENT_RATIO = 1.1

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One kind of fault.

    Attributes:
        severity: `error` (results would be wrong), `warning` (should be checked) or `note`.
        what: stable name.
        count: number of cases.
        text: one sentence, with the next step.
        examples: some of the cases.
    """

    severity: Severity
    what: str
    count: int
    text: str
    examples: list[str] = field(default_factory=list)


def audit(
    dataset_dir: Path,
    *,
    network_info: Path | None = None,
    seeds: Iterable[int] = (0,),
) -> dict[str, Any]:
    """Returns the results of the audit as JSON values.

    Keys: `layout`, `programs`, `tasks`, `measurements`, `devices` (label -> `noise`, `units`,
    `repeated`), `duplicates`, `networks`, `splits` (one entry per kind and seed, drawn as for
    training), `read` and `findings` (see `Finding`, most severe first).

    Args:
        network_info: folder of the tasks, for a folder in Tenset's layout; None = inside it.
        seeds: seeds of the splits to check, for every kind of split.

    Raises:
        DataError: the folder is not a dataset, or its files cannot be read.
    """
    facts = collect_facts(dataset_dir, network_info=network_info)
    findings: list[Finding] = []
    devices = {
        label: {
            "noise": _noise(label, facts.repeats[label], findings),
            "units": _units(facts, number, label, findings),
        }
        for number, label in sorted(enumerate(facts.devices), key=lambda pair: pair[1])
    }
    repeated = _repeated(facts, devices, findings)
    for label, value in repeated.items():
        devices[label]["repeated"] = value
    duplicates = _duplicates(facts, findings)
    splits = audit_splits(facts, tuple(seeds))
    for entry in splits:
        _judge_split(entry, findings)
    read = facts.read
    skipped = sum(read["skipped"].values())
    if skipped:
        text = f"lines or files that could not be read: {skipped}; `read` lists them"
        findings.append(Finding("warning", "unreadable", skipped, text))
    order = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.severity])
    return {
        "layout": facts.layout,
        "programs": len(facts.task),
        "tasks": len(facts.tasks),
        "measurements": len(facts.program),
        "devices": devices,
        "duplicates": duplicates,
        "networks": _networks(facts),
        "splits": splits,
        "read": read,
        "findings": [asdict(finding) for finding in findings],
    }


def _noise(label: str, repeats: RepeatFacts, findings: list[Finding]) -> dict[str, Any]:
    """Returns the noise floor: the spread of the repeats of one record."""
    ratios = repeats.max_over_min
    outliers = [entry for entry in sorted(repeats.worst, reverse=True) if entry[0] > OUTLIER_RATIO]
    if repeats.records and repeats.single == repeats.records:
        text = f"{label}: every record has only one cost, so the noise floor is unknown"
        findings.append(Finding("note", "no repeats", repeats.single, text))
    count = repeats.outliers
    if outliers:
        examples = [
            f"program {identity[:12]}: slowest of {costs} repeats {ratio:.1f} x the fastest"
            for ratio, identity, costs in outliers
        ]
        text = (
            f"{label}: {count} of {counted(repeats.records, 'record')} {agreed(count, 'have')} a "
            f"repeat that takes more than {OUTLIER_RATIO:g} times the fastest one; the mean of "
            "such a record is unreliable"
        )
        findings.append(Finding("warning", "outliers", count, text, examples))
    return {
        "records": repeats.records,
        "with_repeats": repeats.records - repeats.single,
        "spread_median": repeats.spread.quantile(0.5),
        "spread_p90": repeats.spread.quantile(0.9),
        "max_over_min_median": ratios.quantile(0.5),
        "max_over_min_p90": ratios.quantile(0.9),
        "max_over_min_largest": ratios.largest if ratios.count else None,
        "outliers": count,
    }


def _units(facts: Facts, device: int, label: str, findings: list[Finding]) -> dict[str, Any]:
    """Returns the numbers of implausible latencies and arithmetic rates of a device."""
    chosen = (facts.device == device) & np.isfinite(facts.latency_s)
    latency_s, program = facts.latency_s[chosen], facts.program[chosen]
    flops = np.array(
        [np.nan if task.flop_count is None else task.flop_count for task in facts.tasks] or [np.nan]
    )
    known = program >= 0
    rate = np.full(len(program), np.nan)
    rate[known] = flops[facts.task[program[known]]] / latency_s[known]
    spec = find_device(label)
    peak = spec.peak_fp32_flop_per_s if spec is not None else None
    too_fast = rate > PEAK_MARGIN * peak if peak is not None else np.zeros(len(rate), bool)
    short, long = latency_s < SHORTEST_S, latency_s > LONGEST_S
    for what, mask, text in (
        ("latency too short", short, f"below {SHORTEST_S * 1e9:g} ns"),
        ("latency too long", long, f"above {LONGEST_S:g} s"),
    ):
        if mask.any():
            examples = [
                f"program {facts.program_hex(program[row])[:12]}: {latency_s[row]:.3g} s"
                for row in np.flatnonzero(mask & known)[:EXAMPLE_COUNT]
            ]
            count = int(mask.sum())
            sentence = (
                f"{label}: {counted(count, 'measurement', 'are')} {text}; costs must be in seconds"
            )
            findings.append(Finding("error", what, count, sentence, examples))
    if peak is None:
        text = f"{label}: its arithmetic peak is unknown, so rates are not checked against it"
        findings.append(Finding("note", "unknown peak", 1, text))
    if too_fast.any():
        findings.append(_above_peak(facts, label, peak or 0.0, program, rate, too_fast))
    return {
        "measured": len(latency_s),
        "below_shortest": int(short.sum()),
        "above_longest": int(long.sum()),
        "peak_flop_per_s": peak,
        "above_peak": int(too_fast.sum()) if peak is not None else None,
        "highest_flop_per_s": float(np.nanmax(rate)) if np.isfinite(rate).any() else None,
    }


def _above_peak(
    facts: Facts,
    label: str,
    peak: float,
    program: NDArray[np.int64],
    rate: NDArray[np.float64],
    mask: NDArray[np.bool_],
) -> Finding:

    def operator_of(row: int) -> str:
        return facts.tasks[int(facts.task[program[row]])].operator

    operators = Counter(operator_of(int(row)) for row in np.flatnonzero(mask))
    names = ", ".join(f"{name} {count}" for name, count in operators.most_common(3))
    count = int(mask.sum())
    is_few = count < 0.01 * len(rate)
    worst = np.argsort(np.where(mask, -rate, np.inf))[: min(EXAMPLE_COUNT, count)]
    examples = [
        f"program {facts.program_hex(program[row])[:12]} ({operator_of(row)}): "
        f"{rate[row] / peak:.3g} x the peak"
        for row in worst
    ]
    text = (
        f"{label}: {counted(count, 'measurement', 'are')} faster than {PEAK_MARGIN:g} times the "
        f"device's peak of {peak / 1e9:.4g} GFLOP/s ({names}); costs in another unit, a flop count "
        "that is not executed (Winograd), or a peak that is too low"
    )
    return Finding("warning" if is_few else "error", "above peak", count, text, examples)


def _repeated(
    facts: Facts, devices: dict[str, dict[str, Any]], findings: list[Finding]
) -> dict[str, dict[str, Any]]:
    """Returns, by device, the number of programs with several measurements, and their ratios."""
    order = np.lexsort((facts.program, facts.device))
    order = order[(facts.program[order] >= 0) & np.isfinite(facts.latency_s[order])]
    device, program, latency_s = facts.device[order], facts.program[order], facts.latency_s[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (device[1:] != device[:-1]) | (program[1:] != program[:-1])
    starts = np.flatnonzero(is_new)
    result: dict[str, dict[str, Any]] = {}
    if not len(starts):
        return {label: {"programs": 0, "differing": 0} for label in devices}
    ratio = np.maximum.reduceat(latency_s, starts) / np.minimum.reduceat(latency_s, starts)
    count = np.diff(np.append(starts, len(order)))
    for label in devices:
        number = facts.devices.index(label)
        rows = np.flatnonzero((device[starts] == number) & (count > 1))
        spread = devices[label]["noise"]["spread_p90"] or 0.0
        threshold = max(DIFFERENT_RATIO, 1 + 3 * spread)
        far = rows[ratio[rows] > threshold]
        values = Quantiles()
        values.add(ratio[rows])
        result[label] = {
            "programs": len(rows),
            "ratio_median": values.quantile(0.5),
            "ratio_p90": values.quantile(0.9),
            "ratio_largest": values.largest if values.count else None,
            "threshold": threshold,
            "differing": len(far),
        }
        if len(far):
            far = far[np.argsort(-ratio[far])]
            examples = [
                f"program {facts.program_hex(program[starts[row]])[:12]}: {count[row]} "
                f"measurements, slowest {ratio[row]:.3g} x the fastest"
                for row in far[:EXAMPLE_COUNT]
            ]
            text = (
                f"{label}: {counted(len(far), 'program', 'were')} measured more than once with "
                f"latencies more than {threshold:.3g} times apart; training averages them"
            )
            findings.append(Finding("warning", "differing duplicates", len(far), text, examples))
    return result


def _duplicates(facts: Facts, findings: list[Finding]) -> dict[str, Any]:
    """Returns the numbers of duplicate programs, by id and by content."""
    rows = np.flatnonzero(facts.content)
    rows = rows[np.argsort(facts.content[rows], kind="stable")]
    content = facts.content[rows]
    is_new = np.ones(len(rows), bool)
    is_new[1:] = content[1:] != content[:-1]
    starts = np.flatnonzero(is_new)
    ends = np.append(starts[1:], len(rows))
    groups = np.flatnonzero(ends - starts > 1)
    across: list[list[int]] = []
    within = 0
    for group in groups:
        members = rows[starts[group] : ends[group]].tolist()
        if len({facts.tasks[facts.task[row]].workload_key for row in members}) > 1:
            across.append(members)
        else:
            within += len(members)
    is_steps = facts.layout == "tenset"
    same = "steps" if is_steps else "features"
    if across:
        count = sum(map(len, across))
        examples = [
            ", ".join(sorted({facts.tasks[facts.task[row]].name[:60] for row in members})[:3])
            for members in sorted(across, key=len, reverse=True)[:EXAMPLE_COUNT]
        ]
        text = f"{counted(count, 'program', 'have')} the same {same} as one of another workload" + (
            "" if is_steps else "; a split by task may put them in different parts (see `splits`)"
        )
        findings.append(Finding("note", f"same {same}, other workload", count, text, examples))
    if within:
        text = f"{counted(within, 'program', 'have')} the same {same} as another of their task"
        findings.append(Finding("note", f"same {same}, same task", within, text))
    if facts.repeated_programs:
        count = facts.repeated_programs
        text = f"{counted(count, 'program', 'are')} stored twice; merge with: cdmpp dataset merge"
        findings.append(Finding("note", "programs stored twice", count, text))
    orphans = int((facts.program < 0).sum())
    if orphans:
        text = f"{counted(orphans, 'measurement', 'belong')} to programs missing from the dataset"
        findings.append(Finding("error", "measurements without program", orphans, text))
    return {
        "compared": same,
        "same_in_other_workload": sum(map(len, across)),
        "same_in_same_task": within,
        "programs_stored_twice": facts.repeated_programs,
        "measurements_without_program": orphans,
    }


def _networks(facts: Facts) -> dict[str, Any]:
    """Returns the numbers of tasks that are shared between networks."""
    shared = [task for task in facts.tasks if len(task.networks) > 1]
    names = Counter(name for task in facts.tasks for name, _ in task.networks)
    return {
        "networks": len(names),
        "tasks_in_no_network": sum(not task.networks for task in facts.tasks),
        "tasks_in_one_network": sum(len(task.networks) == 1 for task in facts.tasks),
        "tasks_in_several_networks": len(shared),
        "tasks_by_network": dict(sorted(names.items())),
    }


def _judge_split(entry: dict[str, Any], findings: list[Finding]) -> None:
    """Adds the leaks of a split to the findings."""
    name = f"split by {entry['kind']}, seed {entry['seed']}"
    if "impossible" in entry:
        text = f"{name}: {entry['impossible']}"
        findings.append(Finding("note", "split not possible", 1, text))
        return
    promised = {"task": ("tasks", "programs"), "network": ("tasks", "programs", "networks")}
    for what in promised.get(entry["kind"], ("programs",)):
        count = entry[f"{what}_in_two_parts"]
        if count:
            text = (
                f"{name}: {counted(count, what[:-1], 'are')} in two parts; its test errors are too "
                "optimistic"
            )
            findings.append(Finding("error", f"{what} in two parts", count, text))
    count = entry["test_samples_seen_in_training"] or 0
    if count and entry["kind"] != "record":
        text = (
            f"{name}: {count} of {counted(entry['sizes']['test'], 'test sample')} "
            f"{agreed(count, 'have')} the same features as a training sample of another task; "
            "evaluate without them, or expect errors that are too optimistic"
        )
        findings.append(Finding("warning", "test features seen in training", count, text))
