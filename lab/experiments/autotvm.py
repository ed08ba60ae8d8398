"""What an extracted dataset of AutoTVM logs covers, and a random sample of what it leaves out."""

from __future__ import annotations

import hashlib
import heapq
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.datasets.autotvm.logs import autotvm_program_id, find_logs, read_autotvm_log, task_of
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.program_rows import reason_group
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import ReplayError
from cdmpp.records import ERROR_CODE_NAMES, MeasureRecord
from cdmpp.text import markdown_table
from lab.pages import filled, write_page
from lab.paths import ROOT, SHARED_DATA
from lab.shell import cdmpp
from lab.stamp import stamp
from tvm_helper.legacy.client import LegacyTvm
from tvm_helper.legacy.featurise import features_of


@dataclass
class RestCheck:
    """What became of the sample.

    Attributes:
        left_out: programs that ran and are not in the extracted dataset.
        programs: drawn ones.
        valid: those with features whose program is not rejected.
        rejected: (device, reason) -> programs with features that AutoTVM would refuse to build.
        failed: (device, reason) -> programs without features.
        seconds: wall time of featurising.
    """

    left_out: int = 0
    programs: int = 0
    valid: int = 0
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the counters as JSON values."""
        return {
            **vars(self),
            "rejected": [[*key, count] for key, count in self.rejected.most_common()],
            "failed": [[*key, count] for key, count in self.failed.most_common()],
            "seconds": round(self.seconds, 1),
        }


@dataclass
class DeviceCoverage:
    """Distinct programs of one device in the extracted dataset.

    Attributes:
        programs: those that it measured.
        featurised: those with features.
        valid: those of them that AutoTVM would build.
        rejected: reason -> programs that are not valid.
    """

    programs: int = 0
    featurised: int = 0
    valid: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, Any]:
        """Returns the counters as JSON values."""
        return {**vars(self), "rejected": dict(self.rejected.most_common())}


def device_coverage(extracted_dir: Path) -> dict[str, DeviceCoverage]:
    """Returns what the extracted dataset holds by device.

    Raises:
        DataError: it cannot be read.
    """
    programs: dict[str, tuple[bool, str | None]] = {}
    columns = ["program_id", "leaf_position", "reject_reason"]
    for table in read_table(extracted_dir, "programs", columns):
        lengths = table["leaf_position"].combine_chunks().value_lengths().to_pylist()
        identities, reasons = (table[c].to_pylist() for c in ("program_id", "reject_reason"))
        for identity, length, reason in zip(identities, lengths, reasons, strict=True):
            programs[identity] = bool(length), reason
    pairs = {
        pair
        for table in read_table(extracted_dir, "measurements", ["device", "program_id"])
        for pair in zip(table["device"].to_pylist(), table["program_id"].to_pylist(), strict=True)
    }
    result: dict[str, DeviceCoverage] = {}
    for device, identity in sorted(pairs):
        has_features, reason = programs[identity]
        coverage = result.setdefault(device, DeviceCoverage())
        coverage.programs += 1
        coverage.featurised += has_features
        coverage.valid += reason is None
        if reason is not None:
            coverage.rejected[reason_group(reason)] += 1
    return result


def verdicts(extracted_dir: Path) -> Counter[tuple[str, str]]:
    """Returns (what the log says, our verdict) -> records of an extraction of whole logs.

    Raises:
        DataError: it cannot be read.
    """
    reasons: dict[str, str] = {}
    for table in read_table(extracted_dir, "programs", ["program_id", "reject_reason"]):
        for row in table.to_pylist():
            reason = row["reject_reason"]
            reasons[row["program_id"]] = "valid" if reason is None else reason_group(reason)
    found: Counter[tuple[str, str]] = Counter()
    for table in read_table(extracted_dir, "measurements", ["program_id", "error_code"]):
        for row in table.to_pylist():
            found[ERROR_CODE_NAMES[row["error_code"]], reasons[row["program_id"]]] += 1
    return found


def check_rest(logs: Iterable[Path], extracted_dir: Path, *, count: int) -> RestCheck:
    """Draws programs by a hash, the same ones every time, and featurises them.

    Raises:
        DataError: a log or the extracted dataset cannot be read.
        UsageError: there is no side environment.
    """
    tables = read_table(extracted_dir, "programs", ["program_id"])
    known = {identity for table in tables for identity in table["program_id"].to_pylist()}
    result = RestCheck()
    groups: dict[tuple[str, str], list[MeasureRecord]] = {}
    for record in _draw(logs, known, count, result):
        groups.setdefault((record.workload_key, record.target_kind), []).append(record)
    started = time.monotonic()
    with LegacyTvm() as tvm:
        for records in groups.values():
            features = features_of(tvm, task_of(records[0]), records)
            for record, program in zip(records, features.programs, strict=True):
                result.programs += 1
                if isinstance(program, ReplayError):
                    result.failed[record.device, program.reason] += 1
                elif program.valid:
                    result.valid += 1
                else:
                    result.rejected[record.device, reason_group(str(program.reject_reason))] += 1
    result.seconds = time.monotonic() - started
    return result


def _draw(
    logs: Iterable[Path], known: set[str], count: int, result: RestCheck
) -> list[MeasureRecord]:
    """Returns the programs with the lowest digests; one that several devices measured counts once.

    The digest is not the one that `--per-task` draws by.
    """
    seen: set[str] = set()
    heap: list[tuple[int, str, MeasureRecord]] = []
    for log in logs:
        for record in read_autotvm_log(log, ReadReport()):
            identity = autotvm_program_id(record) if record.is_ok else ""
            if not identity or identity in known or identity in seen:
                continue
            seen.add(identity)
            rank = -int(hashlib.sha256(f"rest {identity}".encode()).hexdigest(), 16)
            if len(heap) < count:
                heapq.heappush(heap, (rank, identity, record))
            elif rank > heap[0][0]:
                heapq.heapreplace(heap, (rank, identity, record))
    result.left_out = len(seen)
    return [record for _, _, record in sorted(heap, reverse=True)]


def page(
    devices: Mapping[str, DeviceCoverage], rest: RestCheck, whole: Mapping[tuple[str, str], int]
) -> str:
    """Returns the counts as Markdown."""
    rows = [
        [device, f"{one.programs:,}", f"{one.featurised:,}", f"{one.valid:,}"]
        for device, one in devices.items()
    ]
    failed = [
        f"- {device}, {times} without features or rejected: {reason}"
        for device, one in devices.items()
        for reason, times in one.rejected.most_common()
    ]
    judged = [[log, said, f"{times:,}"] for (log, said), times in sorted(whole.items())]
    counts = {
        "count": sum(one.programs for one in devices.values()), "left_out": rest.left_out,
        "rest": rest.programs, "rest_valid": rest.valid,
        "rest_rejected": rest.rejected.total(), "rest_failed": rest.failed.total(),
    }  # fmt: skip
    return filled(
        "autotvm", **{name: f"{value:,}" for name, value in counts.items()},
        devices=markdown_table(["device", "programs", "with features", "valid"], rows, "lrrr"),
        failed="\n".join(failed) or "None is without features.",
        verdicts=markdown_table(["the log says", "our verdict", "records"], judged, "llr"),
    )  # fmt: skip


def experiment(
    logs: Path = SHARED_DATA / "autotvm",
    extracted: Path = ROOT / "cache" / "autotvm",
    whole: Path = ROOT / "cache" / "autotvm-t4",
    count: int = 1000,
    per_task: int = 100,
) -> None:
    """Extracts the logs where they are not yet, checks a sample of the rest, and writes the page.

    Args:
        whole: an extraction of every record of the T4's log: what became of programs that did not
            run.
        count: programs of the sample.
        per_task: programs of a workload and device in the dataset.
    """
    if not (extracted / "manifest.json").is_file():
        cdmpp("dataset extract", dataset=logs, per_task=per_task, out=extracted)
    if not (whole / "manifest.json").is_file():
        cdmpp("dataset extract", dataset=logs / "t4.json.gz", out=whole)
    devices = device_coverage(extracted)
    rest = check_rest(find_logs(logs), extracted, count=count)
    log = verdicts(whole)
    values = {
        "devices": {device: one.to_json() for device, one in devices.items()},
        "rest": rest.to_json(),
        "whole": [[*pair, times] for pair, times in sorted(log.items())],
    }
    found = stamp("python -m lab run autotvm", schemas=["leaf", "leaf_extra"])
    print(write_page("autotvm", page(devices, rest, log), values, found))
