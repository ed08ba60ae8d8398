"""What an extracted dataset of AutoTVM logs covers, and a random sample of what it leaves out.

`python -m tests.benchmarks.autotvm_coverage --logs DIR --extracted DIR [--count 1000] [--json]`
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.datasets.autotvm.logs import autotvm_program_id, find_logs, read_autotvm_log, task_of
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.program_rows import reason_group
from cdmpp.datasets.read_report import ReadReport
from cdmpp.errors import CdmppError, ReplayError
from cdmpp.records import MeasureRecord
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
            "left_out": self.left_out,
            "programs": self.programs,
            "valid": self.valid,
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
        return {
            "programs": self.programs,
            "featurised": self.featurised,
            "valid": self.valid,
            "rejected": dict(self.rejected.most_common()),
        }


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


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the check from the command line and returns the exit code."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.autotvm_coverage", description=__doc__)
    parser.add_argument("--logs", type=Path, required=True, metavar="DIR")
    parser.add_argument("--extracted", type=Path, required=True, metavar="DIR")
    parser.add_argument("--count", type=int, default=1000, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    args = parser.parse_args(argv)
    try:
        devices = device_coverage(args.extracted)
        rest = check_rest(find_logs(args.logs), args.extracted, count=args.count)
    except CdmppError as error:
        print(f"coverage: error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json:
        value = {device: one.to_json() for device, one in devices.items()}
        print(json.dumps({"devices": value, "rest": rest.to_json()}))
        return 0
    for device, one in devices.items():
        print(
            f"{device}: {one.programs} programs, {one.featurised} with features, {one.valid} valid"
        )
        for reason, times in one.rejected.most_common():
            print(f"  rejected {times}: {reason}")
    print(
        f"{rest.programs} of {rest.left_out} programs left out: {rest.valid} valid, "
        f"{rest.rejected.total()} rejected, {rest.failed.total()} without features "
        f"({rest.seconds:.0f} s)"
    )
    for title, counts in (("rejected", rest.rejected), ("failed", rest.failed)):
        for (device, reason), times in counts.most_common():
            print(f"  {title} {times}: {device}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
