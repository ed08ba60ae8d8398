"""Writes a campaign's journal as a data set of networks, with the repeatability of its samples."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.errors import DataError
from cdmpp.files.journal import read_lines
from cdmpp.networks.architectures.generator import GeneratedNetwork
from cdmpp.networks.architectures.spec import ArchitectureSpec
from cdmpp.networks.campaign.labels import median_interval
from cdmpp.networks.campaign.machine_speed import SpeedCorrection, fit_correction
from cdmpp.networks.dataset.rows import GraphRow, LabelRow
from cdmpp.networks.dataset.store import check_replaced, write_dataset
from cdmpp.networks.graph.execution import MODES
from cdmpp.processes.campaign import JOURNAL_FILE, read_campaign
from cdmpp.text import counted

COMMAND = "cdmpp networks measure"
SOURCE = "generated"
#: Minimum utilisation of an undisturbed sample of one thread.
_LEAST_SHARE = 0.9
_VALUES = (
    "time_s", "low_s", "high_s", "memory_bytes", "allocated_bytes", "process_bytes", "utilisation",
)  # fmt: skip


@dataclass(frozen=True)
class NetworksReport:
    """Summary of a campaign's folder.

    Attributes:
        folder: the data set.
        device: device label.
        architectures: number of architectures.
        graphs: number of (network, batch size).
        samples: number of (graph, mode).
        outcomes: outcome -> number of samples.
        before: number of samples before this run of the campaign; None without a run.
        seconds_per_sample: mean seconds per sample of this run, overhead included; None if it
            measured nothing.
        repeatability: statistics of the samples measured twice, None if there are none: their
            number `samples`; median and 90th percentile of |second / first - 1| of time and memory;
            for each mode and both quantities the mean and median of
            |second - first| / (second + first), the error of the mean of two measurements.
    """

    folder: Path
    device: str
    architectures: int
    graphs: int
    samples: int
    outcomes: dict[str, int]
    repeatability: dict[str, float] | None
    before: int | None = None
    seconds_per_sample: float | None = None

    def summary(self) -> str:
        """Returns the report as lines of text."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        text = (
            f"{self.folder}: {counted(self.samples, 'sample')} ({outcomes}) of "
            f"{counted(self.architectures, 'architecture')}, {counted(self.graphs, 'graph')}, on "
            f"{self.device}"
        )
        if (found := self.repeatability) is not None:
            text += (
                f"\nmeasured twice: {found['samples']:.0f}; they differ by "
                f"{found['time_median']:.1%} in time and {found['memory_median']:.1%} in memory "
                f"(medians; 90th percentiles {found['time_p90']:.1%} and {found['memory_p90']:.1%})"
            )
        if self.before is not None:
            rate = self.seconds_per_sample
            took = "" if rate is None else f", {rate:.2f} s a sample"
            text += f"\n{counted(self.before, 'sample', 'were')} there before{took}"
        return text

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        values = {**asdict(self), "folder": str(self.folder)}
        if self.before is None:
            del values["before"], values["seconds_per_sample"]
        return values


def write_tables(folder: Path) -> NetworksReport:
    """Writes the data set of the samples that a campaign has measured so far.

    Raises:
        DataError: the folder has no campaign or no samples, or a file cannot be read or written.
    """
    folder = Path(folder)
    campaign = read_campaign(folder, COMMAND)
    entries = read_lines(folder / JOURNAL_FILE)
    measured = _rounds(entries, has_one_thread=campaign["threads"] == 1)
    correction = _correction(measured)
    as_timed = _repeatability(measured)
    if correction is not None:
        measured = [
            {number: at_usual_speed(entry, correction) for number, entry in rounds.items()}
            for rounds in measured
        ]
    samples = [_joined(rounds) for rounds in measured if 0 in rounds]
    if not samples:
        raise DataError(f"{folder}: nothing is measured yet; run cdmpp networks measure")
    specs: dict[str, ArchitectureSpec] = {}
    for entry in entries:
        if entry["kind"] == "network":
            spec = ArchitectureSpec.from_text(json.dumps(entry["spec"]))
            specs[spec.architecture_id] = spec
    wanted = sorted({(sample["architecture"], sample["batch"]) for sample in samples})
    rows = {key: graph_row(specs[key[0]], batch=key[1]) for key in wanted}
    labels, seen = [], set()
    for sample in samples:
        row = rows[sample["architecture"], sample["batch"]]
        key = (row.graph.graph_id, sample["mode"])
        if key not in seen:  # two architectures may have the same graph
            seen.add(key)
            labels.append(_label(row, sample, campaign))
    repeatability = as_timed if correction is None else _repeatability(measured)
    note = {
        "command": COMMAND,
        "config": {name: value for name, value in campaign.items() if name != "machine"},
        "machine": campaign.get("machine"), "repeatability": repeatability,
        "speed_correction": None if correction is None else correction.to_json(),
        "repeatability_as_timed": None if correction is None else as_timed,
    }  # fmt: skip
    write_dataset(folder, rows.values(), labels, note=note)
    return NetworksReport(
        folder=folder,
        device=campaign["device"],
        architectures=len({architecture for architecture, _ in wanted}),
        graphs=len({row.graph.graph_id for row in rows.values()}),
        samples=len(labels),
        outcomes=dict(Counter(label.outcome for label in labels)),
        repeatability=repeatability,
    )


def at_usual_speed(entry: Mapping[str, Any], correction: SpeedCorrection) -> Mapping[str, Any]:
    """Returns a measurement corrected to the campaign's usual speed; unchanged without works."""
    if not entry.get("works_s"):
        return entry
    (slowdown,) = correction.slowdown([np.median(entry["works_s"], axis=0)])
    times = (np.array(entry["times_s"]) / slowdown).tolist()
    median, low, high = median_interval(times)
    (of_operators,) = correction.slowdown([entry["operators_works_s"]])
    operators = (np.array(entry["operators_s"]) / of_operators).tolist()
    return {
        **entry, "times_s": times, "time_s": median, "low_s": low, "high_s": high,
        "operators_s": operators,
    }  # fmt: skip


def write_graphs(
    folder: Path, networks: Iterable[GeneratedNetwork], *, note: Mapping[str, Any]
) -> tuple[int, int]:
    """Writes a data set of graphs without labels; returns the numbers of architectures and graphs.

    Raises:
        UsageError: the folder has measurements.
        DataError: a file cannot be written.
    """
    check_replaced(folder, note)
    rows, architectures = [], 0
    for network in networks:
        architectures += 1
        rows += [graph_row(network.spec, batch=batch) for batch in network.batches]
    write_dataset(folder, rows, [], note=note)
    return architectures, len({row.graph.graph_id for row in rows})


def graph_row(spec: ArchitectureSpec, *, batch: int) -> GraphRow:
    """Returns the row of a generated network at a batch size."""
    from cdmpp.networks.architectures.generated_graph import generated_graph

    return GraphRow(
        graph=generated_graph(spec, batch=batch),
        architecture=spec.architecture_id,
        source=SOURCE,
        spec=spec.to_text(),
        resolution=spec.resolution,
    )


def _label(row: GraphRow, sample: Mapping[str, Any], campaign: Mapping[str, Any]) -> LabelRow:
    return LabelRow(
        graph_id=row.graph.graph_id,
        device=campaign["device"],
        mode=sample["mode"],
        times_s=tuple(sample.get("times_s", ())),
        operators_s=tuple(sample.get("operators_s", ())),
        outcome=sample["outcome"],
        note=sample.get("note", ""),
        threads=campaign["threads"],
        torch_version=campaign["torch_version"],
        measured_at=sample["measured_at"],
        **{name: sample.get(name) for name in _VALUES},
    )


def _rounds(
    entries: Iterable[Mapping[str, Any]], *, has_one_thread: bool
) -> list[dict[int, Mapping[str, Any]]]:
    """Returns for each sample round -> measurement, in the order of the journal.

    `is_disturbed` marks a sample of one thread that did not get the core all the time. Samples of
    several threads are never marked, because their threads wait for each other.
    """
    found: dict[tuple[str, int, str], dict[int, Mapping[str, Any]]] = {}
    for entry in entries:
        if entry["kind"] == "sample":
            key = entry["architecture"], entry["batch"], entry["mode"]
            share = entry.get("utilisation")
            is_disturbed = has_one_thread and share is not None and share < _LEAST_SHARE
            found.setdefault(key, {})[entry["round"]] = {**entry, "is_disturbed": is_disturbed}
    return list(found.values())


def _joined(rounds: Mapping[int, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns one sample from its rounds: the median of all repeats and the mean of other values.

    Failed rounds are ignored, and so are disturbed ones if there is an undisturbed round. A sample
    whose first round failed stays failed.
    """
    first = rounds[0]
    good = [rounds[number] for number in sorted(rounds) if rounds[number]["outcome"] == "ok"]
    if first["outcome"] != "ok":
        return first
    good = [entry for entry in good if not entry["is_disturbed"]] or good
    if first["is_disturbed"]:
        first = {**first, "operators_s": ()}
    times = [time for entry in good for time in entry["times_s"]]
    median, low, high = median_interval(times)
    means = {
        name: statistics.fmean(entry[name] for entry in good)
        for name in ("memory_bytes", "allocated_bytes", "process_bytes", "utilisation")
        if all(entry.get(name) is not None for entry in good)
    }
    return {**first, **means, "times_s": times, "time_s": median, "low_s": low, "high_s": high}


def _correction(measured: Iterable[Mapping[int, Mapping[str, Any]]]) -> SpeedCorrection | None:
    """Returns the speed correction; None if too few samples have timed works."""
    return fit_correction(
        [
            [
                (entry["time_s"], np.median(entry["works_s"], axis=0).tolist())
                for entry in rounds.values()
                if entry["outcome"] == "ok" and entry.get("works_s") and not entry["is_disturbed"]
            ]
            for rounds in measured
        ]
    )


def _repeatability(
    measured: Iterable[Mapping[int, Mapping[str, Any]]],
) -> dict[str, float] | None:
    pairs = [
        (found[0], found[1])
        for found in measured
        if {0, 1} <= set(found)
        and all(e["outcome"] == "ok" and not e["is_disturbed"] for e in found.values())
    ]
    if not pairs:
        return None
    result: dict[str, float] = {"samples": float(len(pairs))}
    for name, column in (("time", "time_s"), ("memory", "memory_bytes")):
        both = [(first, second) for first, second in pairs if first[column] and second[column]]
        if not both:
            continue
        apart = sorted(abs(second[column] / first[column] - 1.0) for first, second in both)
        result[f"{name}_median"] = statistics.median(apart)
        result[f"{name}_p90"] = apart[math.ceil(0.9 * len(apart)) - 1]
        for mode in MODES:
            halves = [
                abs(second[column] - first[column]) / (second[column] + first[column])
                for first, second in both
                if first["mode"] == mode
            ]
            if halves:
                result[f"{mode}_{column}_half_mean"] = statistics.fmean(halves)
                result[f"{mode}_{column}_half_median"] = statistics.median(halves)
    return result
