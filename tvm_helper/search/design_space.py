"""Design space of MetaSchedule with a fast replay of programs from their decisions.

TVM replays a trace like a new draw: it analyses the task again, and tries every loop to place a
block, even if the decision is given. Here, the steps before the first decision run once and are
copied, a block is placed directly at its decision, and native code counts the loops that the
postprocessor fuses. The programs equal those of TVM's replay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from tvm_helper.compat import Schedule, s_tir, tvm
from tvm_helper.compat import schedule_functions as functions
from tvm_helper.native.modules import NativeModules
from tvm_helper.tir.packing import LAYOUT_FREE

#: Decision of a sampling step: tiles, index of a choice, or location of a block.
Decision = int | tuple[int, ...]

_PARALLEL, _VECTORIZE = "meta_schedule.parallel", "meta_schedule.vectorize"
_EXPLICIT, _IMPLICIT = "meta_schedule.unroll_explicit", "meta_schedule.unroll_implicit"
_PRAGMAS = (_PARALLEL, _VECTORIZE, _EXPLICIT, _IMPLICIT)
_PRAGMA_POSTPROC = "RewriteParallelVectorizeUnroll"
_POSTPROCS = (
    "DisallowDynamicLoop", _PRAGMA_POSTPROC, "RewriteReductionBlock", "RewriteLayout",
)  # fmt: skip
_INLINED, _ROOT = -2, -1
_TILES, _CHOICE, _PLACE = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
_LOOP_TYPE = tvm.get_global_func("s_tir.schedule.GetLoopIterType")


@dataclass(frozen=True)
class Genome:
    """Decisions that determine a program of a design space.

    Attributes:
        decisions: `Decision` of every sampling step, in order; None = drawn at random.
        parallel: maximum extent of the parallel loop before fusing stops; None = that of the space.
    """

    decisions: tuple[Any, ...]
    parallel: int | None = None

    def with_decision(self, number: int, decision: Decision) -> Genome:
        """Returns the genome with another decision for a step."""
        changed = (*self.decisions[:number], decision, *self.decisions[number + 1 :])
        return Genome(changed, self.parallel)


@dataclass(frozen=True)
class _Step:
    """An instruction of a trace; inputs and outputs are indices into the environment."""

    kind: str
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[int, ...]
    choice: int = -1  # index among the sampling steps


@dataclass(frozen=True)
class _Name:
    place: int


class UnknownSpaceError(Exception):
    """Only TVM can replay the traces of a space."""


class DesignSpace:
    """A design space of a task.

    Args:
        module: the task's unscheduled module.
        trace: the space's trace, without postprocessing.
        postprocs: postprocessors that TVM applies to a replayed trace.
        native: native code that counts the loops to fuse.

    Raises:
        UnknownSpaceError: only TVM can replay traces of the space.
    """

    def __init__(
        self, module: Any, trace: Any, postprocs: Sequence[Any], native: NativeModules
    ) -> None:
        names = [type(one).__name__ for one in postprocs]
        function = module["main"]
        if any(name not in _POSTPROCS for name in names) or len(module.functions) != 1:
            raise UnknownSpaceError(f"postprocessors {', '.join(names)}")
        if not isinstance(function.body, s_tir.SBlockRealize):
            raise UnknownSpaceError("function without a root block")
        is_free = function.attrs is not None and LAYOUT_FREE in function.attrs
        self._postprocs = [p for p in postprocs if is_free or type(p).__name__ != "RewriteLayout"]
        self._root_name = str(function.body.block.name_hint)
        self._native = native
        self.instructions = list(trace.insts)
        self._steps, self._places = _read(self.instructions)
        self.samples = [step for step in self._steps if step.choice >= 0]
        self._pragmas, self._pragma_places = self._read_pragmas()
        #: (step, which earlier blocks were inlined) -> whether its block can be inlined.
        self._is_inlinable: dict[tuple[int, tuple[bool, ...]], bool] = {}
        self._begun, self._known, self._first = self._begin(module)

    def genome_of(self, trace: Any) -> Genome:
        """Returns the genome of a trace of this space, with all its decisions."""
        read = [i for i in trace.insts if i.kind.name in (_TILES, _CHOICE, _PLACE)]
        return Genome(
            tuple(_plain(trace.get_decision(instruction)) for instruction in read),
            self._parallel_of(trace.insts),
        )

    def trace_of(self, genome: Genome) -> Any:
        """Returns the trace of a genome, without postprocessing."""
        instructions = list(self.instructions)
        for place, pragma in self._pragma_places.items():
            if pragma == _PARALLEL and genome.parallel is not None:
                old = instructions[place]
                instructions[place] = s_tir.schedule.Instruction(
                    old.kind, [old.inputs[0], genome.parallel], old.attrs, old.outputs
                )
        places = [p for p, step in enumerate(self._steps) if step.choice >= 0]
        return s_tir.schedule.Trace(
            instructions,
            {
                instructions[place]: list(one) if isinstance(one, tuple) else one
                for place, one in zip(places, genome.decisions, strict=True)
            },
        )

    def replay(
        self, genome: Genome | None, chance: random.Random
    ) -> tuple[Genome, Schedule] | None:
        """Returns the final decisions of a program and its schedule; None if it is invalid.

        Args:
            genome: decisions; None = all decisions are drawn. A decision that is incompatible with
                earlier ones is replaced as in TVM.
            chance: random generator.
        """
        wanted = genome or Genome((None,) * len(self.samples))
        try:
            made, schedule, known = self._applied(wanted, chance)
            is_good = self._postprocess(schedule, self._pragmas_of(made, known))
            if is_good is None:
                _, schedule, known = self._applied(made, chance)
                is_good = self._postprocess_whole(schedule, self._pragmas_of(made, known))
        except Exception:  # TVM's checks raise many types; its own search also draws again
            return None
        return (made, schedule) if is_good else None

    # Mutations, with TVM's probabilities; None = no such mutation is possible.

    def with_other_tiles(self, genome: Genome, chance: random.Random) -> Genome | None:
        """Returns a genome in which a factor moved from one tile of a loop to another."""
        tiled = [
            step
            for step in self.samples
            if step.kind == _TILES and any(one > 1 for one in genome.decisions[step.choice])
        ]
        if not tiled:
            return None
        step = chance.choice(tiled)
        tiles = list(genome.decisions[step.choice])
        while True:
            source, target = chance.sample(range(len(tiles)), 2)
            factors = _divisors(tiles[source])
            if not factors:
                continue
            if target == len(tiles) - 1:
                factors = [n for n in factors if n * tiles[target] <= step.attrs[1]]
            if factors:
                factor = chance.choice(factors)
                tiles[source] //= factor
                tiles[target] *= factor
                return genome.with_decision(step.choice, tuple(tiles))
            if len(tiles) == 2:
                return None

    def with_other_place(self, genome: Genome, chance: random.Random) -> Genome | None:
        """Returns a genome with another location of a block."""
        options: dict[int, list[int]] = {}
        try:
            self._applied(genome, random.Random(0), options)
        except Exception:  # TVM's checks raise many types
            return None
        others = {
            number: [one for one in places if one != genome.decisions[number]]
            for number, places in options.items()
        }
        numbers = [number for number, places in others.items() if places]
        if not numbers:
            return None
        number = chance.choice(numbers)
        return genome.with_decision(number, chance.choice(others[number]))

    def with_other_unrolling(self, genome: Genome, chance: random.Random) -> Genome | None:
        """Returns a genome with another maximum number of unrolled steps."""
        values = [self._pragmas.get(key) for key in (_EXPLICIT, _IMPLICIT)]
        steps = [
            step
            for step in self.samples
            if step.kind == _CHOICE and _Name(step.outputs[0]) in values and len(step.attrs[0]) > 1
        ]
        if not steps:
            return None
        step = chance.choice(steps)
        weights = [float(one) for one in step.attrs[1]]
        weights[genome.decisions[step.choice]] = 0.0
        return genome.with_decision(step.choice, _drawn_choice(weights, chance))

    # Replay of a program.

    def _begin(self, module: Any) -> tuple[Schedule, list[Any], int]:
        """Runs the steps before the first decision."""
        schedule = Schedule._create_non_traced(
            module, seed=1, debug_mask="none", error_render_level="none"
        )
        known: list[Any] = [None] * self._places
        for number, step in enumerate(self._steps):
            if step.choice >= 0:
                return schedule, known, number
            self._take(schedule, known, number)
        return schedule, known, len(self._steps)

    def _applied(
        self, genome: Genome, chance: random.Random, places: dict[int, list[int]] | None = None
    ) -> tuple[Genome, Schedule, list[Any]]:
        """Runs all steps; writes the possible locations of every block to `places`."""
        schedule, known = functions.ScheduleCopy(self._begun), list(self._known)
        made: list[Decision] = []
        number = self._first
        while number < len(self._steps):
            step = self._steps[number]
            if step.choice < 0:
                self._take(schedule, known, number)
                number += 1
                continue
            wanted = genome.decisions[step.choice]
            if step.kind == _TILES:
                tiles = self._tiles(schedule, known, step, wanted, chance)
                made.append(tiles)
                for place, tile in zip(step.outputs, tiles, strict=True):
                    known[place] = tile
            elif step.kind == _CHOICE:
                choice = _drawn_choice(step.attrs[1], chance) if wanted is None else wanted
                made.append(choice)
                known[step.outputs[0]] = step.attrs[0][choice]
            else:
                is_inlined = tuple(one == _INLINED for one in made)
                block = known[step.inputs[0].place]
                options = partial(self._options, schedule, block, (number, is_inlined))
                if places is not None:
                    places[step.choice] = list(options())
                made.append(self._put(schedule, block, self._steps[number + 1], options, wanted,
                                      chance))  # fmt: skip
                number += 1  # skips the ComputeAt step
            number += 1
        return Genome(tuple(made), genome.parallel), schedule, known

    def _take(self, schedule: Schedule, known: list[Any], number: int) -> None:
        step = self._steps[number]
        if number in self._pragma_places:
            return
        inputs = [_value(known, one) for one in step.inputs]
        found = _TAKE[step.kind](schedule, inputs, step.attrs)
        if len(step.outputs) == 1 and step.kind in _ONE_OUTPUT:
            known[step.outputs[0]] = found
        elif step.outputs:
            for place, value in zip(step.outputs, found, strict=True):
                known[place] = value

    def _tiles(
        self,
        schedule: Schedule,
        known: list[Any],
        step: _Step,
        wanted: Any,
        chance: random.Random,
    ) -> tuple[int, ...]:
        extent = int(functions.ScheduleGet(schedule, known[step.inputs[0].place]).extent)
        if wanted is None:
            return drawn_tiles(extent, step.attrs[0], step.attrs[1], chance)
        tiles = list(wanted)
        for place in range(len(tiles) - 1, 0, -1):
            if extent % tiles[place]:
                tiles[place] = extent
            extent //= tiles[place]
        tiles[0] = extent
        return tuple(tiles)

    def _put(
        self,
        schedule: Schedule,
        block: Any,
        step: _Step,
        options: Callable[[], Mapping[int, Any]],
        wanted: Any,
        chance: random.Random,
    ) -> int:
        """Moves a block to its location, or to the last possible one before it; returns the
        location.
        """
        if wanted == _ROOT:
            return _ROOT
        if wanted == _INLINED:
            try:
                functions.ScheduleComputeInline(schedule, block)
            except Exception:  # TVM's checks raise many types
                return _ROOT
            return _INLINED
        there = options()
        left = [place for place in there if wanted is None or place <= wanted]
        while left:
            place = left[-1] if wanted is not None else chance.choice(left)
            try:
                if place == _INLINED:
                    functions.ScheduleComputeInline(schedule, block)
                elif place != _ROOT:
                    functions.ScheduleComputeAt(schedule, block, there[place], *step.attrs)
            except Exception:  # TVM's checks raise many types
                left.remove(place)
                continue
            return place
        return _ROOT

    def _options(
        self, schedule: Schedule, block: Any, key: tuple[int, tuple[bool, ...]]
    ) -> dict[int, Any]:
        """Returns location -> loop of a block, in the order of TVM's list. It may contain locations
        that TVM rejects when it tries them.
        """
        if key not in self._is_inlinable:
            self._is_inlinable[key] = _can_inline(schedule, block)
        places: dict[int, Any] = {_INLINED: None} if self._is_inlinable[key] else {}
        places[_ROOT] = None
        return {**places, **_loops_to_put(schedule, block)}

    # Postprocessing.

    def _pragmas_of(self, genome: Genome, known: Sequence[Any]) -> dict[str, int]:
        found = {key: int(_value(known, value)) for key, value in self._pragmas.items()}
        return found if genome.parallel is None else {**found, _PARALLEL: genome.parallel}

    def _postprocess(self, schedule: Schedule, pragmas: Mapping[str, int]) -> bool | None:
        """Returns whether all postprocessors succeed; None if only TVM can apply them."""
        for postproc in self._postprocs:
            if type(postproc).__name__ != _PRAGMA_POSTPROC:
                if not postproc.apply(schedule):
                    return False
            elif pragmas and not self._fuse(schedule, pragmas):
                return None
        return True

    def _postprocess_whole(self, schedule: Schedule, pragmas: Mapping[str, int]) -> bool:
        root = functions.ScheduleGetSBlock(schedule, self._root_name, "main")
        for key, value in pragmas.items():
            functions.ScheduleAnnotate(schedule, root, key, value)
        return all(postproc.apply(schedule) for postproc in self._postprocs)

    def _fuse(self, schedule: Schedule, pragmas: Mapping[str, int]) -> bool:
        """Applies `RewriteParallelVectorizeUnroll`; returns False if native code cannot plan it."""
        vectors = pragmas.get(_VECTORIZE, -1)
        step = pragmas.get(_EXPLICIT, -1) + pragmas.get(_IMPLICIT, -1) + 1
        root = functions.ScheduleGetSBlock(schedule, self._root_name, "main")
        for place, block in enumerate(functions.ScheduleGetChildBlocks(schedule, root)):
            plan = self._native.plan_nest(
                functions.ScheduleGetMod(schedule), place,
                most_parallel=pragmas.get(_PARALLEL, -1), most_vectorized=vectors,
            )  # fmt: skip
            if plan is None:
                return False
            loops = list(functions.ScheduleGetLoops(schedule, block))
            if not loops:
                continue
            if plan.parallel == plan.vectorized == plan.loops:
                fused = functions.ScheduleFuse(schedule, loops, True)
                parts = functions.ScheduleSplit(schedule, fused, [None, vectors], True, False)
                functions.ScheduleParallel(schedule, parts[0])
                functions.ScheduleVectorize(schedule, parts[1])
                loops[0] = parts[0] if plan.loops > 1 else parts[1]
            else:
                if plan.parallel > 0:
                    outer = functions.ScheduleFuse(schedule, loops[: plan.parallel], True)
                    functions.ScheduleParallel(schedule, outer)
                    loops[0] = outer
                if plan.vectorized > 0:
                    inner = functions.ScheduleFuse(schedule, loops[-plan.vectorized :], True)
                    functions.ScheduleVectorize(schedule, inner)
                    loops[0] = inner if plan.vectorized == plan.loops else loops[0]
            if step > 0 and not plan.is_spatial:
                is_explicit = int(_EXPLICIT in pragmas)
                functions.ScheduleAnnotate(schedule, loops[0], "pragma_auto_unroll_max_step", step)
                functions.ScheduleAnnotate(
                    schedule, loops[0], "pragma_unroll_explicit", is_explicit
                )
        return True

    # Reading a trace.

    def _read_pragmas(self) -> tuple[dict[str, Any], dict[int, str]]:
        """Returns (pragma of the root block -> its value or the variable of its value, index of a
        step -> the pragma that it sets).
        """
        roots = {
            step.outputs[0]
            for step in self._steps
            if step.kind == "GetSBlock" and step.attrs[0] == self._root_name
        }
        values, places = {}, {}
        for number, step in enumerate(self._steps):
            if step.kind == "Annotate" and step.attrs[0] in _PRAGMAS:
                if step.inputs[0].place not in roots:
                    raise UnknownSpaceError("pragma of another block than the root")
                values[str(step.attrs[0])] = step.inputs[1]
                places[number] = str(step.attrs[0])
        return values, places

    def _parallel_of(self, instructions: Sequence[Any]) -> int | None:
        """Returns the parallel extent of a trace if it differs from that of the space."""
        for number, pragma in self._pragma_places.items():
            if pragma == _PARALLEL:
                extent = int(instructions[number].inputs[1])
                return None if extent == int(self._pragmas[_PARALLEL]) else extent
        return None


def drawn_tiles(extent: int, parts: int, most_inner: int, chance: random.Random) -> tuple[int, ...]:
    """Returns a random factorisation of an extent, with the same probabilities as in TVM.

    Args:
        parts: number of factors.
        most_inner: maximum of the last factor; -1 = unlimited.
    """
    powers = _prime_powers(extent)
    while True:
        tiles = [1] * parts
        for prime, power in powers:
            bars = sorted(chance.sample(range(power + parts - 1), parts - 1))
            ends = [-1, *bars, power + parts - 1]
            for part in range(parts):
                tiles[part] *= prime ** (ends[part + 1] - ends[part] - 1)
        if most_inner == -1 or tiles[-1] <= most_inner:
            return tuple(tiles)


def _prime_powers(number: int) -> list[tuple[int, int]]:
    found = []
    prime = 2
    while number > 1:
        if prime * prime > number:
            prime = number
        power = 0
        while number % prime == 0:
            number //= prime
            power += 1
        if power:
            found.append((prime, power))
        prime += 1
    return found


@lru_cache(maxsize=4096)
def _divisors(number: int) -> list[int]:
    """Returns the divisors greater than 1."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)} - {1})


def _drawn_choice(weights: Sequence[Any], chance: random.Random) -> int:
    return chance.choices(range(len(weights)), [float(one) for one in weights])[0]


def _can_inline(schedule: Schedule, block: Any) -> bool:
    try:
        functions.ScheduleComputeInline(functions.ScheduleCopy(schedule), block)
    except Exception:  # TVM's checks raise many types
        return False
    return True


def _loops_to_put(schedule: Schedule, block: Any) -> dict[int, Any]:
    """Returns location -> loop that TVM tries for a block: loops around all consumers, except those
    of extent 1, spatial loops inside a reduction, and reductions inside the last spatial loop.
    """
    consumers = functions.ScheduleGetConsumers(schedule, block)
    if not consumers:
        return {}
    loops = list(functions.ScheduleGetLoops(schedule, consumers[0]))
    nodes = [functions.ScheduleGet(schedule, loop) for loop in loops]
    for consumer in list(consumers)[1:]:
        others = functions.ScheduleGetLoops(schedule, consumer)
        same = [
            functions.ScheduleGet(schedule, loop).same_as(node)
            for loop, node in zip(others, nodes, strict=False)
        ]
        nodes = nodes[: same.index(False) if False in same else len(same)]
    is_parallel = [_LOOP_TYPE(schedule, loop) == "S" for loop in loops[: len(nodes)]]
    last = max((place for place, one in enumerate(is_parallel) if one), default=-1)
    places: dict[int, Any] = {}
    is_inside_reduction = False
    for place, node in enumerate(nodes):
        if int(node.extent) == 1:
            continue
        if is_inside_reduction if is_parallel[place] else place > last:
            break
        is_inside_reduction = is_inside_reduction or not is_parallel[place]
        places[place] = loops[place]
    return places


def _read(instructions: Sequence[Any]) -> tuple[list[_Step], int]:
    """Returns the steps of a trace and its number of random variables.

    Raises:
        UnknownSpaceError: an unsupported instruction.
    """
    places: dict[Any, int] = {}

    def read(value: Any) -> Any:
        if type(value).__name__ in ("SBlockRV", "LoopRV", "Var"):
            return _Name(places[value])
        if type(value).__name__ == "Array":
            return tuple(read(one) for one in value)
        return _plain(value)

    steps: list[_Step] = []
    choices = 0
    for instruction in instructions:
        kind = str(instruction.kind.name)
        is_choice = kind in (_TILES, _CHOICE, _PLACE)
        if not is_choice and kind not in _TAKE:
            raise UnknownSpaceError(f"instruction {kind}")
        inputs = tuple(read(value) for value in instruction.inputs)
        for output in instruction.outputs:
            places[output] = len(places)
        outputs = tuple(places[output] for output in instruction.outputs)
        attrs = tuple(_plain(value) for value in instruction.attrs)
        steps.append(_Step(kind, inputs, attrs, outputs, choices if is_choice else -1))
        choices += is_choice
    for number, step in enumerate(steps):
        if step.kind == _PLACE:
            after = steps[number + 1] if number + 1 < len(steps) else step
            if after.kind != "ComputeAt" or after.inputs[1] != _Name(step.outputs[0]):
                raise UnknownSpaceError("place of a block that is not put there")
    return steps, len(places)


def _plain(value: Any) -> Any:
    """Returns a number of TVM, or an array of numbers, as Python values."""
    name = type(value).__name__
    if name == "IntImm":
        return int(value.value)
    if name == "FloatImm":
        return float(value.value)
    return tuple(_plain(one) for one in value) if name in ("Array", "list") else value


def _value(known: Sequence[Any], one: Any) -> Any:
    if isinstance(one, _Name):
        return known[one.place]
    return [_value(known, part) for part in one] if isinstance(one, tuple) else one


#: Instructions whose single output is not a list.
_ONE_OUTPUT = ("GetSBlock", "CacheWrite", "CacheRead", "RFactor", "Fuse")
#: Instruction -> function of (schedule, inputs, attributes) that runs it.
_TAKE: Mapping[str, Callable[[Schedule, list[Any], tuple[Any, ...]], Any]] = {
    "GetSBlock": lambda s, x, a: functions.ScheduleGetSBlock(s, *a),
    "GetLoops": lambda s, x, a: functions.ScheduleGetLoops(s, x[0]),
    "GetConsumers": lambda s, x, a: functions.ScheduleGetConsumers(s, x[0]),
    "GetProducers": lambda s, x, a: functions.ScheduleGetProducers(s, x[0]),
    "Split": lambda s, x, a: functions.ScheduleSplit(s, x[0], x[1:], *a),
    "Fuse": lambda s, x, a: functions.ScheduleFuse(s, x, *a),
    "Reorder": lambda s, x, a: functions.ScheduleReorder(s, x),
    "Annotate": lambda s, x, a: functions.ScheduleAnnotate(s, x[0], a[0], x[1]),
    "Unannotate": lambda s, x, a: functions.ScheduleUnannotate(s, x[0], a[0]),
    "ComputeInline": lambda s, x, a: functions.ScheduleComputeInline(s, x[0]),
    "ReverseComputeInline": lambda s, x, a: functions.ScheduleReverseComputeInline(s, x[0]),
    "ComputeAt": lambda s, x, a: functions.ScheduleComputeAt(s, x[0], x[1], *a),
    "ReverseComputeAt": lambda s, x, a: functions.ScheduleReverseComputeAt(s, x[0], x[1], *a),
    "CacheRead": lambda s, x, a: functions.ScheduleCacheRead(s, x[0], a[0], a[1], x[1]),
    "CacheWrite": lambda s, x, a: functions.ScheduleCacheWrite(s, x[0], a[0], a[1], x[1]),
    "RFactor": lambda s, x, a: functions.ScheduleRFactor(s, x[0], a[0]),
}


__all__ = ["Decision", "DesignSpace", "Genome", "UnknownSpaceError", "drawn_tiles"]
