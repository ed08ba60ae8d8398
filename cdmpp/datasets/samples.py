"""Samples: measured programs as flat arrays, the form in which models are trained and judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.devices.spec import DeviceSpec


@dataclass(frozen=True)
class UnlikeColumns:
    """Leaves without the columns in which all of them are alike, as in most where they are of
    programs of one task.

    Attributes:
        values: float32 [L, C], the columns that differ.
        columns: int64 [C], which those are.
        first: float32 [F], all columns of the first.
    """

    values: NDArray[np.float32]
    columns: NDArray[np.int64]
    first: NDArray[np.float32]

    @classmethod
    def of(cls, leaves: NDArray[np.float32]) -> UnlikeColumns:
        """Returns those of float32 [L, F], L ≥ 1."""
        columns = np.flatnonzero((leaves != leaves[0]).any(axis=0))
        # `take` leaves rows in one piece, `leaves[:, columns]` columns.
        return cls(leaves.take(columns, axis=1), columns, leaves[0].copy())


@dataclass(frozen=True)
class ProgramArrays:
    """Compact ASTs of P programs, leaves stacked.

    Attributes:
        program_id: object [P], sha256 hex ids.
        task_id: int64 [P], index into `tasks` (one per distinct (workload key, target kind)).
        tasks: object [T], `"<workload_key>|<target kind>"`.
        operator: object [P], operator name such as `conv2d+add+relu`.
        networks: list of T lists of (network name, weight); empty when the task is in no network.
        flop_count: float64 [P], NaN where unknown.
        leaf_offset: int64 [P + 1]; leaves of program p are rows leaf_offset[p]:leaf_offset[p + 1].
        leaf_features: float32 [L, 164] (possibly memory-mapped).
        leaf_extra: float32 [L, E].
        leaf_position: int32 [L].
        data_hash: hex digest of the Parquet data these arrays came from.
        feature_schema: {"leaf": version, "leaf_extra": version}.
        tree_offset: int64 [P + 1]; the serialised tree of program p is
            tree[tree_offset[p]:tree_offset[p + 1]].
        tree: int32, serialised trees one after another (possibly memory-mapped).
        schedule_offset: int64 [P + 1]; likewise for `schedule`.
        schedule: uint8, UTF-8 of the programs' schedules, see `schedule_text` (possibly
            memory-mapped).
        work: float64 [P, 9], the least that each does (`cdmpp.programs.work.WORK_COLUMNS`), NaN
            where it was not counted; None = of none.
        is_doubtful: bool [P], whether a model cannot see all of it; None = none is.
    """

    program_id: NDArray[np.object_]
    task_id: NDArray[np.int64]
    tasks: NDArray[np.object_]
    operator: NDArray[np.object_]
    networks: list[list[tuple[str, int]]]
    flop_count: NDArray[np.float64]
    leaf_offset: NDArray[np.int64]
    leaf_features: NDArray[np.float32]
    leaf_extra: NDArray[np.float32]
    leaf_position: NDArray[np.int32]
    data_hash: str
    feature_schema: dict[str, int]
    tree_offset: NDArray[np.int64]
    tree: NDArray[np.int32]
    schedule_offset: NDArray[np.int64]
    schedule: NDArray[np.uint8]
    work: NDArray[np.float64] | None = None
    is_doubtful: NDArray[np.bool_] | None = None

    @cached_property
    def unlike_columns(self) -> UnlikeColumns:
        """All leaves, features beside extra columns; for programs few enough."""
        return UnlikeColumns.of(np.concatenate([self.leaf_features, self.leaf_extra], axis=1))

    def schedule_text(self, row: int) -> str | None:
        """Returns the canonical JSON of a program's transform steps, None where there is none.

        Only programs of Tenset records have it: `[[code, argument, ...], ...]` without white space.
        """
        start, stop = int(self.schedule_offset[row]), int(self.schedule_offset[row + 1])
        return self.schedule[start:stop].tobytes().decode() if stop > start else None


@dataclass(frozen=True)
class Samples:
    """N (program, device, latency) triples over shared program arrays.

    Attributes:
        programs: the programs referred to.
        devices: the devices referred to, in label order.
        program: int64 [N], row in `programs`.
        device: int64 [N], index into `devices`.
        latency_s: float64 [N], mean measured latency in seconds (NaN where not measured).
        latency_std_s: float64 [N], population std of the repeats in seconds (NaN where unknown).
    """

    programs: ProgramArrays
    devices: tuple[DeviceSpec, ...]
    program: NDArray[np.int64]
    device: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    latency_std_s: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.program)

    @property
    def task_id(self) -> NDArray[np.int64]:
        """int64 [N], task of each sample."""
        return self.programs.task_id[self.program]

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Samples:
        """Returns the chosen samples; the program arrays are shared, not copied."""
        return replace(
            self,
            program=self.program[index],
            device=self.device[index],
            latency_s=self.latency_s[index],
            latency_std_s=self.latency_std_s[index],
        )
