"""Samples: measured programs as flat arrays, for training and evaluation of models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cdmpp.devices.spec import DeviceSpec

_Standardised = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True)
class UnlikeColumns:
    """Leaves without constant columns; most columns of one task's programs are constant.

    Attributes:
        values: float32 [L, C], the columns that vary.
        columns: int64 [C], their indices.
        first: float32 [F], all columns of the first leaf.
        standardised: results of `Normalisation.apply_unlike`, by its statistics.
    """

    values: NDArray[np.float32]
    columns: NDArray[np.int64]
    first: NDArray[np.float32]
    standardised: dict[bytes, _Standardised] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @classmethod
    def of(cls, *parts: NDArray[np.float32]) -> UnlikeColumns:
        """Drops the constant columns of leaves, float32 [L, F], L ≥ 1.

        Args:
            parts: columns of the leaves; they are not joined, because that takes longer.
        """
        varying = [np.flatnonzero((part != part[0]).any(axis=0)) for part in parts]
        starts = np.cumsum([0, *(part.shape[1] for part in parts[:-1])])
        # `take` returns a C-contiguous array, `part[:, columns]` a Fortran-contiguous one.
        values = [part.take(own, axis=1) for part, own in zip(parts, varying, strict=True)]
        return cls(
            np.concatenate(values, axis=1),
            np.concatenate([own + start for own, start in zip(varying, starts, strict=True)]),
            np.concatenate([part[0] for part in parts]),
        )


@dataclass(frozen=True)
class ProgramArrays:
    """Compact ASTs of P programs, leaves stacked.

    Attributes:
        program_id: object [P], sha256 hex ids.
        task_id: int64 [P], index into `tasks` (one per distinct (workload key, target kind)).
        tasks: object [T], `"<workload_key>|<target kind>"`.
        operator: object [P], operator name such as `conv2d+add+relu`.
        networks: T lists of (network name, weight); empty if the task is in no network.
        flop_count: float64 [P], NaN = unknown.
        leaf_offset: int64 [P + 1]; leaves of program p are rows leaf_offset[p]:leaf_offset[p + 1].
        leaf_features: float32 [L, 164] (possibly memory-mapped).
        leaf_extra: float32 [L, E].
        leaf_position: int32 [L].
        data_hash: hex digest of the Parquet data of these arrays.
        feature_schema: {"leaf": version, "leaf_extra": version}.
        tree_offset: int64 [P + 1]; the serialised tree of program p is
            tree[tree_offset[p]:tree_offset[p + 1]].
        tree: int32, concatenated serialised trees (possibly memory-mapped).
        schedule_offset: int64 [P + 1], offsets into `schedule`, as `tree_offset`.
        schedule: uint8, UTF-8 of the programs' schedules, see `schedule_text` (possibly
            memory-mapped).
        work: float64 [P, 11], minimum work of each program (`cdmpp.programs.work.WORK_COLUMNS`),
            NaN if it was not counted; None = not counted for any program.
        is_doubtful: bool [P], whether the features do not cover the whole program; None = no
            program is doubtful.
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
        """All leaves, features and extra columns; copies them, so only for few programs."""
        return UnlikeColumns.of(self.leaf_features, self.leaf_extra)

    def schedule_text(self, row: int) -> str | None:
        """Returns the canonical JSON of a program's transform steps; None if there is none.

        Only programs of Tenset records have it: `[[code, argument, ...], ...]` without white space.
        """
        start, stop = int(self.schedule_offset[row]), int(self.schedule_offset[row + 1])
        return self.schedule[start:stop].tobytes().decode() if stop > start else None


@dataclass(frozen=True)
class Samples:
    """N (program, device, latency) triples over shared program arrays.

    Attributes:
        programs: the programs.
        devices: the devices, in label order.
        program: int64 [N], row in `programs`.
        device: int64 [N], index into `devices`.
        latency_s: float64 [N], mean measured latency in seconds (NaN = not measured).
        latency_std_s: float64 [N], population std of the repeats in seconds (NaN = unknown).
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
