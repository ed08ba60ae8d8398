"""Random schedules similar to hand-written ones: tiles, vectors, packed operands, register sums."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tvm_helper.compat import Schedule, s_tir

_REDUCTION = 2  # kind of an iteration variable
_POWERS = tuple(1 << power for power in range(1, 9))
_MOST_UNROLLED = 64
#: Columns and rows of a tile of sums, and the maximum number of sums in a core's registers.
_COLUMNS = (4, 8, 16, 16, 32, 32, 64)
_ROWS = (1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 10, 12, 14, 16)
_MOST_SUMS = 448


def hand_schedules(module: Any, *, seed: int, threads: int, tries: int) -> Iterator[Schedule]:
    """Yields schedules of a module. Some may be equal; each changes the module.

    Args:
        module: an `IRModule` with an unscheduled `main`.
        seed: seed of the draws.
        threads: number of threads; with one thread, fewer outer loops are parallel.
        tries: maximum number of schedules.
    """
    chance = random.Random(seed)
    for _ in range(tries):
        schedule = s_tir.Schedule(module, error_render_level="none", debug_mask="none")
        _Hand(schedule, chance, threads).write()
        if len(schedule.trace.insts) > 0 and _changes(schedule.trace):
            yield schedule


def _changes(trace: Any) -> bool:
    return any(not str(one.kind.name).startswith("Get") for one in trace.insts)


@dataclass
class _Hand:
    """Writer of one schedule. Skips primitives that do not apply to the program."""

    schedule: Schedule
    chance: random.Random
    threads: int

    def write(self) -> None:
        blocks = self._blocks()
        if self._happens(0.7):
            blocks = self._inlined(blocks)
        style = self.chance.choice(("loops", "tiles", "tiles", "registers", "registers", "rows"))
        if style == "rows" and len(blocks) > 1:
            self._rows(blocks)
        for block in blocks:
            if self._is_reduction(block) and style == "tiles":
                self._tiles(block)
            elif self._is_reduction(block) and style == "registers":
                self._registers(block)
            else:
                self._loops(block)

    # Facts about the program.

    def _blocks(self) -> list[Any]:
        """Returns the blocks of the program; a program without blocks (a scan) has none."""
        blocks: list[Any] = []
        with suppress(Exception):
            root = self.schedule.get_sblock("root")
            blocks = list(self.schedule.get_child_blocks(root))
        return blocks

    def _is_reduction(self, block: Any) -> bool:
        return any(one.iter_type == _REDUCTION for one in self.schedule.get(block).iter_vars)

    def _axes(self, block: Any) -> tuple[list[Any], list[Any]]:
        """Returns the (spatial, reduction) loops of a block without scheduled loops."""
        loops, variables = self.schedule.get_loops(block), self.schedule.get(block).iter_vars
        spatial: list[Any] = []
        reduction: list[Any] = []
        if len(loops) == len(variables):
            for loop, variable in zip(loops, variables, strict=True):
                is_reduced = variable.iter_type == _REDUCTION
                (reduction if is_reduced else spatial).append(loop)
        return spatial, reduction

    def _extent(self, loop: Any) -> int:
        return int(self.schedule.get(loop).extent)

    # Random choices.

    def _happens(self, share: float) -> bool:
        return self.chance.random() < share

    def _tile(self, loop: Any, most: int = 64) -> int:
        """Returns a power of two, usually one that divides the loop's extent."""
        extent = self._extent(loop)
        fitting = [one for one in _POWERS if one <= min(extent, most)]
        dividing = [one for one in fitting if extent % one == 0]
        if dividing and self._happens(0.85):
            fitting = dividing
        return self.chance.choice(fitting) if fitting else 1

    # Primitives.

    def _try(self, primitive: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Returns the result of a primitive; None if it does not apply."""
        with suppress(Exception):  # TVM raises many types, and leaves the schedule unchanged
            return primitive(*arguments, **named)
        return None

    def _inlined(self, blocks: list[Any]) -> list[Any]:
        """Inlines element-wise blocks into their consumers; returns the remaining blocks."""
        left = []
        for block in blocks[:-1]:
            count = len(self.schedule.trace.insts)
            if not self._is_reduction(block) and self._happens(0.8):
                self._try(self.schedule.compute_inline, block)
            if len(self.schedule.trace.insts) == count:
                left.append(block)
        return [*left, *blocks[-1:]]

    def _rows(self, blocks: list[Any]) -> None:
        """Computes all blocks in the outer loops of the last one."""
        loops = self.schedule.get_loops(blocks[-1])
        if not loops:
            return
        depth = self.chance.randrange(min(len(loops), 2))
        for block in reversed(blocks[:-1]):
            self._try(self.schedule.compute_at, block, loops[depth])
        self._parallel(loops[: depth + 1])

    def _loops(self, block: Any) -> None:
        """Vectorizes the inner loop, parallelizes the outer loops, unrolls reductions."""
        schedule = self.schedule
        spatial, reduction = self._axes(block)
        if not spatial and not reduction:
            return
        if not reduction and len(spatial) > 1 and self._happens(0.3):
            fused = self._try(schedule.fuse, *spatial)
            spatial = spatial if fused is None else [fused]
        if not spatial or (reduction and self._happens(0.5)):
            self._sums(block, reduction)
        elif self._happens(0.85):
            inner = spatial.pop()
            pair = self._split(inner, self._tile(inner))
            spatial, inner = [*spatial, *pair[:-1]], pair[-1]
            if reduction:
                self._try(schedule.reorder, *spatial, *reduction, inner)
            elif spatial and self._happens(0.2):
                spatial = self._tiled_copy(spatial, inner)
            self._try(schedule.vectorize, inner)
        self._parallel(spatial)

    def _tiled_copy(self, spatial: list[Any], inner: Any) -> list[Any]:
        """Also tiles the loop around the inner one, for example in a transpose."""
        pair = self._split(spatial[-1], self._tile(spatial[-1]))
        if len(pair) == 2 and len(spatial) > 1:
            self._try(self.schedule.reorder, pair[0], spatial[-2], pair[1], inner)
            return [*spatial[:-2]]
        if self._happens(0.5) and self._extent(pair[-1]) <= _MOST_UNROLLED:
            self._try(self.schedule.unroll, pair[-1])
        return [*spatial[:-1], *pair[:-1]]

    def _sums(self, block: Any, reduction: list[Any]) -> None:
        """Splits a reduction into vectorized partial sums, or unrolls its inner loop."""
        schedule = self.schedule
        outer, *inner = self._split(reduction[-1], self._tile(reduction[-1], 32))
        if not inner:
            return
        if self._happens(0.5):
            partial = self._try(schedule.rfactor, inner[0], 0)
            if partial is not None:
                self._try(schedule.vectorize, schedule.get_loops(partial)[-1])
                return
        self._try(schedule.unroll, inner[0])
        if self._happens(0.3):
            self._try(schedule.decompose_reduction, block, outer)

    def _tiles(self, block: Any) -> None:
        """Tiles the last axes, with the reduction outside and vectors inside: a blocked product."""
        schedule = self.schedule
        spatial, reduction = self._axes(block)
        if not spatial or not reduction:
            return self._loops(block)
        packed = self._happens(0.3) and self._packed(block)
        cache = None
        if self._happens(0.4):
            cache = self._try(schedule.cache_write, block, 0, "global")
        count = min(len(spatial), self.chance.choice((1, 2, 2, 3)))
        outer, inner = spatial[: len(spatial) - count], []
        for number, loop in enumerate(spatial[len(spatial) - count :], 1):
            is_last = number == count
            pair = self._split(loop, packed if packed and is_last else self._tile(loop))
            outer += pair[:-1]
            inner.append(pair[-1])
        middle = list(reduction)
        if self._happens(0.7):
            pair = self._split(reduction[-1], self._tile(reduction[-1], 32))
            middle = [*reduction[:-1], *pair]
        *rows, vector = inner
        order = [*middle, *rows] if self._happens(0.6) else [*middle[:-1], *rows, middle[-1]]
        self._try(schedule.reorder, *outer, *order, vector)
        self._copied_out(cache, outer)
        if self._happens(0.85):
            self._try(schedule.vectorize, vector)
        self._unroll([*rows, middle[-1]])
        if self._happens(0.6):  # last: no loop of a decomposed reduction can be vectorized
            self._try(schedule.decompose_reduction, block, middle[0])
        self._parallel(outer)

    def _registers(self, block: Any) -> None:
        """Keeps a tile of sums in registers during the reduction: the fastest form if it fits."""
        schedule = self.schedule
        spatial, reduction = self._axes(block)
        if not spatial or not reduction:
            return self._loops(block)
        width = self._happens(0.4) and self._packed(block)
        width = width or self._fitting(spatial[-1], _COLUMNS)
        cache = self._try(schedule.cache_write, block, 0, "global") if self._happens(0.2) else None
        *outer, vector = [*spatial[:-1], *self._split(spatial[-1], width)]
        rows = []
        if len(spatial) > 1:
            place = self.chance.randrange(len(spatial) - 1)
            pair = self._split(spatial[place], self._fitting(spatial[place], _ROWS, width))
            outer[place : place + 1] = pair[:-1]
            rows = pair[-1:]
        order = list(reduction)
        if not self._happens(0.6):
            order[-1:] = self._split(order[-1], self._tile(order[-1], 16))
        self._try(schedule.reorder, *outer, *order, *rows, vector)
        self._copied_out(cache, outer)
        self._try(schedule.vectorize, vector)
        is_explicit = self._happens(0.6)
        if is_explicit and rows:
            self._try(schedule.unroll, rows[0])
        if len(order) > 1 and self._happens(0.6):
            self._unroll([order[-1]])
        if self._happens(0.9):
            self._try(schedule.decompose_reduction, block, order[0])
        if outer and not is_explicit:
            most, is_forced = self.chance.choice((16, 64, 512)), int(self._happens(0.5))
            self._try(schedule.annotate, outer[0], "pragma_auto_unroll_max_step", most)
            self._try(schedule.annotate, outer[0], "pragma_unroll_explicit", is_forced)
        self._parallel(outer)

    def _copied_out(self, cache: Any, outer: list[Any]) -> None:
        """Copies finished tiles of the result from the cache buffer, if there is one."""
        if cache is not None and outer:
            self._try(self.schedule.reverse_compute_at, cache, outer[-1])
            self._try(self.schedule.vectorize, self.schedule.get_loops(cache)[-1])

    def _fitting(self, loop: Any, sizes: tuple[int, ...], width: int = 1) -> int:
        """Returns a tile size along a loop, usually a divisor of the loop's extent."""
        extent = self._extent(loop)
        fitting = [one for one in sizes if one <= extent and one * width <= _MOST_SUMS]
        dividing = [one for one in fitting if extent % one == 0]
        return self.chance.choice((self._happens(0.85) and dividing) or fitting or [extent])

    def _packed(self, block: Any) -> int:
        """Copies an operand into a layout of panels; returns their width, 0 without a copy."""
        schedule = self.schedule
        reads = schedule.get(block).reads
        if len(reads) < 2:
            return 0
        extent = int(reads[-1].source.shape[-1])
        fitting = [one for one in _POWERS if 4 <= one <= 64 and extent % one == 0]
        if not fitting:
            return 0
        width = self.chance.choice(fitting)
        copy = self._try(schedule.cache_read, block, len(reads) - 1, "global")
        if copy is None:
            return 0

        def panels(*axes: Any) -> list[Any]:
            return [axes[-1] // width, *axes[:-1], axes[-1] % width]

        axes = [
            inspect.Parameter(f"a{number}", inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for number in range(len(reads[-1].source.shape))
        ]
        panels.__signature__ = inspect.Signature(axes)  # type: ignore[attr-defined]
        if self._try(schedule.transform_layout, copy, ("write", 0), panels) is None:
            self._loops(copy)
        return width

    def _split(self, loop: Any, size: int) -> list[Any]:
        """Returns the two loops of a split, or the loop itself if it cannot be split by `size`."""
        if size < 2 or size >= self._extent(loop):
            return [loop]
        pair = self._try(self.schedule.split, loop, [None, size])
        return [loop] if pair is None else list(pair)

    def _unroll(self, loops: list[Any]) -> None:
        unrolled = 1
        for loop in reversed(loops):
            unrolled *= self._extent(loop)
            if unrolled <= _MOST_UNROLLED and self._happens(0.5):
                self._try(self.schedule.unroll, loop)

    def _parallel(self, loops: list[Any]) -> None:
        if loops and self._happens(0.85 if self.threads > 1 else 0.4):
            fused = self._try(self.schedule.fuse, *loops) if self._happens(0.6) else None
            self._try(self.schedule.parallel, loops[0] if fused is None else fused)
