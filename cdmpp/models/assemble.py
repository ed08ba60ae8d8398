"""Samples for programs that are not in an extracted dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import IntArray, items_of
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.programs.compact_ast import (
    LEAF_FEATURE_COUNT,
    LEAF_SCHEMA_VERSION,
    CompactAst,
    leaf_extra_version,
)
from cdmpp.programs.native.binding import NativeBatch
from cdmpp.programs.work import WORK_COLUMNS, ProgramWork


@dataclass(frozen=True)
class AskedProgram:
    """A program whose latency on a device is to be predicted.

    Attributes:
        program_id: its sha256 id.
        task: `"<workload key>|<target kind>"`.
        ast: its compact AST.
        device: the requested device.
        measured_s: measured seconds; None if not measured.
        elsewhere_s: measured seconds on another device; None if not measured.
        schedule: canonical JSON of its transform steps; None if it has none.
        operator: name of its operator such as `conv2d+add+relu`; empty if unknown.
        work: its minimum work, counted on the program; None = derived from the features.
        doubts: why the features do not describe the whole program; `ast` is then that of the
            nearest program that features can describe.
    """

    program_id: str
    task: str
    ast: CompactAst
    device: DeviceSpec
    measured_s: float | None = None
    schedule: str | None = None
    operator: str = ""
    elsewhere_s: float | None = None
    work: ProgramWork | None = None
    doubts: tuple[str, ...] = ()


def assemble_samples(asked: Sequence[AskedProgram]) -> Samples:
    """Returns one sample per program, in the same order; unmeasured latencies are NaN."""
    tasks = sorted({program.task for program in asked})
    labels = sorted({program.device.name for program in asked})
    devices = {program.device.name: program.device for program in asked}
    counts = [len(program.ast.leaf_features) for program in asked]
    extra = asked[0].ast.leaf_extra.shape[1] if asked else 0
    schedules = [(program.schedule or "").encode() for program in asked]
    programs = ProgramArrays(
        program_id=np.array([program.program_id for program in asked], object),
        task_id=np.array([tasks.index(program.task) for program in asked], np.int64),
        tasks=np.array(tasks, object),
        operator=np.array([program.operator for program in asked], object),
        networks=[[] for _ in tasks],
        flop_count=np.full(len(asked), np.nan),
        leaf_offset=_offsets(counts),
        leaf_features=np.concatenate(
            [np.zeros((0, LEAF_FEATURE_COUNT), np.float32)]
            + [program.ast.leaf_features for program in asked]
        ),
        leaf_extra=np.concatenate(
            [np.zeros((0, extra), np.float32)] + [program.ast.leaf_extra for program in asked]
        ),
        leaf_position=np.concatenate(
            [np.zeros(0, np.int32)] + [program.ast.leaf_position for program in asked]
        ),
        data_hash="",
        feature_schema={"leaf": LEAF_SCHEMA_VERSION, "leaf_extra": leaf_extra_version(extra)},
        tree_offset=_offsets([len(program.ast.tree) for program in asked]),
        tree=np.concatenate([np.zeros(0, np.int32)] + [program.ast.tree for program in asked]),
        schedule_offset=_offsets([len(schedule) for schedule in schedules]),
        schedule=np.frombuffer(b"".join(schedules), np.uint8),
        work=_work(asked),
        is_doubtful=np.array([bool(program.doubts) for program in asked], bool),
    )
    measured = [np.nan if p.measured_s is None else p.measured_s for p in asked]
    return Samples(
        programs=programs,
        devices=tuple(devices[label] for label in labels),
        program=np.arange(len(asked), dtype=np.int64),
        device=np.array([labels.index(program.device.name) for program in asked], np.int64),
        latency_s=np.array(measured, np.float64),
        latency_std_s=np.full(len(asked), np.nan),
    )


def batch_samples(batch: NativeBatch, rows: IntArray, task: str, device: DeviceSpec) -> Samples:
    """Returns samples of one task's programs on a device, without latencies; the same as
    `assemble_samples` returns for the ASTs of the batch, without building them.

    Args:
        rows: int64 [S], the programs that become samples, in order; a program's id is its row.
    """
    count, extra = len(rows), batch.leaf_extra.shape[1]
    leaves, _ = items_of(batch.leaf_offset, rows)
    nodes, _ = items_of(batch.tree_offset, rows)
    unknown = np.full(count, np.nan)
    programs = ProgramArrays(
        program_id=np.array([str(row) for row in rows.tolist()], object),
        task_id=np.zeros(count, np.int64),
        tasks=np.array([task], object),
        operator=np.full(count, "", object),
        networks=[[]],
        flop_count=unknown,
        leaf_offset=_offsets(np.diff(batch.leaf_offset)[rows]),
        leaf_features=batch.leaf_features.take(leaves, axis=0),
        leaf_extra=batch.leaf_extra.take(leaves, axis=0),
        leaf_position=batch.leaf_position[leaves],
        data_hash="",
        feature_schema={"leaf": LEAF_SCHEMA_VERSION, "leaf_extra": leaf_extra_version(extra)},
        tree_offset=_offsets(np.diff(batch.tree_offset)[rows]),
        tree=batch.tree[nodes],
        schedule_offset=np.zeros(count + 1, np.int64),
        schedule=np.zeros(0, np.uint8),
        work=np.full((count, len(WORK_COLUMNS)), np.nan),
        is_doubtful=np.zeros(count, bool),
    )
    return Samples(
        programs=programs,
        devices=(device,),
        program=np.arange(count, dtype=np.int64),
        device=np.zeros(count, np.int64),
        latency_s=unknown,
        latency_std_s=unknown,
    )


def _work(asked: Sequence[AskedProgram]) -> NDArray[np.float64]:
    """Returns float64 [P, columns], see `ProgramArrays.work`."""
    found = np.full((len(asked), len(WORK_COLUMNS)), np.nan)
    for row, program in enumerate(asked):
        if program.work is not None:
            found[row] = [getattr(program.work, name) for name in WORK_COLUMNS]
    return found


def _offsets(lengths: Sequence[int] | IntArray) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
