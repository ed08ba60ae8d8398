"""Counterfactual programs: one loop of a program changed by a schedule primitive of TVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ReplayError
from cdmpp.programs.loops.loop_tree import Allocation, Loop, Node, stores_with_path
from tvm_helper.compat import Schedule, ScheduleError, tirx
from tvm_helper.tir.features import featurise_modules
from tvm_helper.tir.loop_tree import loop_tree_from_tir

_FLOAT_BITS = 32
#: Lanes if the device's vector width is unknown: 128 bits.
_LANES = 4
_UNROLLED = (4, 16)
#: Iterations up to which a whole loop is unrolled or vectorised.
_MOST_UNROLLED = 32
_TILES = ((4, 16), (8, 32), (16, 64))
_PARALLEL_ITERATIONS = 2


@dataclass(frozen=True)
class Counterfactual:
    """An equivalent program with another schedule.

    Attributes:
        name: the change in a word.
        what: the change in a sentence.
        module: an `IRModule` with `main`.
    """

    name: str
    what: str
    module: Any


@dataclass(frozen=True)
class _Nest:
    """Loops around a block in a schedule that may be changed."""

    schedule: Any
    block: Any
    loops: list[Any]

    def extent(self, loop: Any) -> int:
        """Returns the extent of a loop; 0 if it is not constant."""
        extent = self.schedule.get(loop).extent
        return int(extent) if isinstance(extent, tirx.IntImm) else 0

    def name(self, loop: Any) -> str:
        return str(self.schedule.get(loop).loop_var.name)

    def serial(self) -> list[Any]:
        """Returns the serial loops with more than one iteration."""
        found = []
        for loop in self.loops:
            made = self.schedule.get(loop)
            is_plain = int(made.kind) == 0 and made.thread_binding is None
            if is_plain and self.extent(loop) > 1:
                found.append(loop)
        return found


def counterfactuals(module: Any, block: str, device: DeviceSpec) -> list[Counterfactual]:
    """Returns programs in which a loop around a block is vectorised, unrolled, tiled or parallel.
    They are legal in TVM, and their features differ from each other and from the program's.

    Args:
        module: an `IRModule` with `main`; not changed.
        block: name of the block.
        device: device with the vector width and the number of threads.
    """
    seen = [_features(module)]
    found = []
    for change in _changes(device):
        schedule = Schedule(module, debug_mask="none", error_render_level="none")
        try:
            around = schedule.get_sblock(block)
            said = change(_Nest(schedule, around, list(schedule.get_loops(around))))
            features = None if said is None else _features(schedule.mod)
        except ScheduleError:  # the change is not legal
            continue
        if said is None or features is None or features in seen:
            continue
        seen.append(features)
        found.append(Counterfactual(*said, schedule.mod))
    return found


_Change = Callable[[_Nest], tuple[str, str] | None]


def _changes(device: DeviceSpec) -> Iterator[_Change]:
    lanes = max((device.simd_bits or 0) // _FLOAT_BITS, 0) or _LANES
    if device.kind == "cpu":
        yield lambda nest: _vectorised_inner(nest, lanes)
        yield lambda nest: _vectorised_moved(nest, lanes)
    for factor in _UNROLLED:
        yield lambda nest, factor=factor: _unrolled(nest, factor)  # type: ignore[misc]
    for tile in _TILES:
        yield lambda nest, tile=tile: _tiled(nest, *tile)  # type: ignore[misc]
    if device.kind == "cpu" and (device.threads or device.core_count or 1) > 1:
        yield _parallel


def _vectorised_inner(nest: _Nest, lanes: int) -> tuple[str, str] | None:
    """Vectorises the innermost loop or a part of it."""
    loop = nest.loops[-1]
    if loop not in nest.serial():
        return None
    name, extent = nest.name(loop), nest.extent(loop)
    if extent > lanes:
        if extent % lanes:
            return None
        _, loop = nest.schedule.split(loop, [None, lanes])
    nest.schedule.vectorize(loop)
    return "vectorised", f"{name}, the innermost loop, is vectorised, {min(lanes, extent)} lanes"


def _vectorised_moved(nest: _Nest, lanes: int) -> tuple[str, str] | None:
    """Vectorises a part of another loop, which becomes the innermost one."""
    for loop in reversed(nest.serial()):
        if loop is nest.loops[-1] or nest.extent(loop) % lanes:
            continue
        name = nest.name(loop)
        _, inner = nest.schedule.split(loop, [None, lanes])
        nest.schedule.reorder(nest.loops[-1], inner)
        nest.schedule.vectorize(inner)
        return "vectorised", f"{lanes} iterations of {name} become the innermost loop, vectorised"
    return None


def _unrolled(nest: _Nest, factor: int) -> tuple[str, str] | None:
    """Unrolls the innermost serial loop or a part of it."""
    serial = nest.serial()
    if not serial:
        return None
    loop = serial[-1]
    name, extent = nest.name(loop), nest.extent(loop)
    if extent % factor and extent > _MOST_UNROLLED:
        return None
    if extent > factor and not extent % factor:
        _, loop = nest.schedule.split(loop, [None, factor])
    else:
        factor = extent
    nest.schedule.unroll(loop)
    return "unrolled", f"{factor} iterations of {name} are unrolled"


def _tiled(nest: _Nest, rows: int, columns: int) -> tuple[str, str] | None:
    """Tiles the two innermost serial loops."""
    serial = nest.serial()
    if len(serial) < 2:
        return None
    outer, inner = serial[-2:]
    if nest.extent(outer) <= rows and nest.extent(inner) <= columns:
        return None
    if nest.extent(outer) % rows or nest.extent(inner) % columns:
        return None
    names = nest.name(outer), nest.name(inner)
    first, second = (
        nest.schedule.split(loop, [None, size]) for loop, size in ((outer, rows), (inner, columns))
    )
    nest.schedule.reorder(first[0], second[0], first[1], second[1])
    return "tiled", f"{names[0]} and {names[1]} run in tiles of {rows} by {columns}"


def _parallel(nest: _Nest) -> tuple[str, str] | None:
    """Parallelises the outermost loop over threads."""
    loop = nest.loops[0]
    if loop not in nest.serial() or nest.extent(loop) < _PARALLEL_ITERATIONS:
        return None
    name = nest.name(loop)
    nest.schedule.parallel(loop)
    return "parallel", f"{name}, the outermost loop, is parallelised over threads"


def _features(module: Any) -> tuple[bytes, ...] | None:
    """Returns a program's features; None if it has none, or if TVM cannot build it because of
    nested vectorised loops or an allocation in a vectorised loop.
    """
    (ast,) = featurise_modules([module], None)
    if isinstance(ast, ReplayError) or not ast.valid:
        return None
    for _, path in stores_with_path(loop_tree_from_tir(module)):
        lanes = [place for place, node in enumerate(path) if _is_vectorised(node)]
        inner = path[lanes[0] + 1 :] if lanes else ()
        if len(lanes) > 1 or any(isinstance(node, Allocation) for node in inner):
            return None
    return tuple(one.tobytes() for one in (ast.leaf_features, ast.leaf_extra, ast.tree))


def _is_vectorised(node: Node) -> bool:
    return isinstance(node, Loop) and node.kind == "vectorized"
