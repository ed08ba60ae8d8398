"""The fallback `ansor`: the old TVM replays records that the native replay does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from cdmpp.errors import DataError, ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import MeasureRecord, TensetTask
from tvm_helper.legacy.ansor import featurise_by_ansor
from tvm_helper.legacy.client import shared_process

NAME = "ansor"

Replay: TypeAlias = Callable[
    [TensetTask, Sequence[MeasureRecord]], Sequence[CompactAst | ReplayError]
]


def featurise_with_ansor(
    task: TensetTask, records: Sequence[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    """Featurises records with `featurise_records`, and those that it cannot replay with Ansor.

    `CompactAst.fallback` of Ansor's results is `ansor`. If both fail, the record has the reason of
    the native replay.

    Raises:
        DataError: the task's computation cannot be read.
        UsageError: a record needs the side environment, which does not exist.
    """
    return with_fallback(featurise_records, _featurise_by_ansor, task, records)


def with_fallback(
    first: Replay, second: Replay, task: TensetTask, records: Sequence[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    """Featurises records with `first`, and those that fail with `second`.

    Raises:
        DataError: neither can read the task.
    """
    try:
        results = list(first(task, records))
    except DataError as error:
        results = [ReplayError(f"unreadable task: {error}")] * len(records)
    left = [n for n, result in enumerate(results) if isinstance(result, ReplayError)]
    if left:
        others = second(task, [records[number] for number in left])
        for number, other in zip(left, others, strict=True):
            if isinstance(other, CompactAst):
                results[number] = replace(other, fallback=NAME)
    return results


def _featurise_by_ansor(
    task: TensetTask, records: Sequence[MeasureRecord]
) -> list[CompactAst | ReplayError]:
    return featurise_by_ansor(shared_process(), task, records)
