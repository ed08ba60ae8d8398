"""ReadReport: counters of read and skipped records, with the reasons."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cdmpp.text import counted

#: Maximum number of skipped lines that are listed; the others are only counted.
MAX_EXAMPLES = 20
_COUNTERS = ("files", "lines", "records", "failed", "unmeasured", "comments")


@dataclass(frozen=True)
class SkippedLine:
    """A line (or a whole file, line 0) that could not be used."""

    file: str
    line: int
    reason: str
    detail: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.reason}" + (f" ({self.detail})" if self.detail else "")


@dataclass
class ReadReport:
    """Counters of reading measure records; grows while files are read.

    Attributes:
        files: files opened.
        lines: lines that are neither comments nor blank.
        records: records read, including failed measurements.
        failed: records read whose program did not build or run.
        unmeasured: records without a measurement, read or skipped.
        comments: blank lines and lines that start with `#`.
        skipped: reason -> number of skipped lines (or files).
        notes: remark -> number of records read with this remark.
        examples: the first `MAX_EXAMPLES` skipped lines.
    """

    files: int = 0
    lines: int = 0
    records: int = 0
    failed: int = 0
    unmeasured: int = 0
    comments: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    examples: list[SkippedLine] = field(default_factory=list)

    @property
    def skipped_total(self) -> int:
        """Number of lines and files skipped."""
        return sum(self.skipped.values())

    def skip(self, file: str, line: int, reason: str, *, detail: str = "") -> None:
        """Counts a skipped line (line 0: the whole file)."""
        self.skipped[reason] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(SkippedLine(file, line, reason, detail))

    def add(self, other: ReadReport) -> None:
        """Adds the counters of another report."""
        for name in _COUNTERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.skipped.update(other.skipped)
        self.notes.update(other.notes)
        self.examples.extend(other.examples[: MAX_EXAMPLES - len(self.examples)])

    def summary(self) -> str:
        """Returns the report as lines of text."""
        text = [
            f"read {counted(self.records, 'record')} from {counted(self.files, 'file')} "
            f"({counted(self.failed, 'failed measurement')} kept with their error code, "
            f"{self.skipped_total} skipped)"
        ]
        text += [f"  skipped {count}: {reason}" for reason, count in self.skipped.most_common()]
        text += [f"  note {count}: {remark}" for remark, count in self.notes.most_common()]
        text += [f"    {example}" for example in self.examples]
        if self.skipped_total > len(self.examples):
            text.append(f"    and {self.skipped_total - len(self.examples)} more")
        return "\n".join(text)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            **vars(self),
            "skipped": dict(sorted(self.skipped.items())),
            "notes": dict(sorted(self.notes.items())),
            "examples": [vars(example) for example in self.examples],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ReadReport:
        """Returns the report that `to_json` converted to `value`."""
        return cls(
            **{name: int(value[name]) for name in _COUNTERS},
            skipped=Counter(value["skipped"]),
            notes=Counter(value["notes"]),
            examples=[SkippedLine(**example) for example in value["examples"]],
        )
