"""MetaSchedule's evolutionary search with fast replay of programs from their decisions.

The method and its probabilities are TVM's: the best measured programs and random ones are mutated
for some generations, parents are drawn in proportion to their scores, and the best programs of all
generations are proposed. There are three differences. A program is replayed and scored at most once
per round. Each round starts from the last generation of the previous one, so that fewer programs
are replayed. The proposals are independent of the number of threads.
"""

from __future__ import annotations

import json
import logging
import random
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tvm_helper.compat import Schedule, meta_schedule, shash2hex, tvm
from tvm_helper.search.design_space import DesignSpace, Genome, UnknownSpaceError
from tvm_helper.tir.features import native_modules

#: Maximum share of measured programs in a population.
MEASURED_SHARE = 0.2
#: Share of new random programs in a population, after the first round.
NEW_SHARE = 0.2
#: Generations of the first round, and of later ones, which start from the previous population.
GENERATIONS, LATER_GENERATIONS = 4, 2
#: Probability that a member of the next generation is mutated.
MUTATION = 0.85
#: Maximum number of tries for a member of the next generation, before its parent is used.
MOST_TRIES = 11
#: Number of random programs that is enough to start, if most programs of a space are invalid.
LEAST_NEW = 50
#: Number of rounds without a new program after which the space counts as exhausted.
_EMPTY_ROUNDS = 5
_KNOWN_MUTATORS = (
    "MutateTileSize", "MutateComputeLocation", "MutateUnroll", "MutateParallel",
)  # fmt: skip
_log = logging.getLogger("cdmpp")


@dataclass(eq=False)
class _Member:
    """A program of a population.

    Attributes:
        space: index of its design space.
        genome: its decisions.
        schedule: its schedule, without a trace.
        score: score of the cost model in this round, at least 0; None = not scored yet.
    """

    space: int
    genome: Genome
    schedule: Schedule
    score: float | None = None


_Key = tuple[int, Genome]
_Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Evolution:
    """Search of one task, with the interface of TVM's `EvolutionarySearch`.

    TVM's own search is used if a design space has steps that only TVM can replay, as spaces for
    GPUs have.

    Args:
        size: number of members of a population.
        seed: seed of all draws.
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._chance = random.Random(seed)
        self._tvm: Any = meta_schedule.search_strategy.EvolutionarySearch(population_size=size)
        self._is_tvms = True
        self._population: list[_Member] = []
        #: Measured programs of the last population, and its proposals.
        self._measured: list[_Member] = []
        #: Programs replayed in this round, and the population and proposals of earlier rounds.
        self._made: dict[_Key, _Member | None] = {}
        #: Hashes of proposed or measured modules.
        self._known: set[str] = set()
        self._empty_rounds = 0

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context
        self._tvm._initialize_with_tune_context(context)

    def pre_tuning(
        self, max_trials: int, per_round: int, spaces: Sequence[Any], database: Any, model: Any
    ) -> None:
        """Prepares the search."""
        self._tvm.pre_tuning(max_trials, per_round, spaces, database, model)
        self._per_round, self._database, self._model = per_round, database, model
        generator = self._context.space_generator
        self._module = self._context.mod
        self._postprocs = list(generator.postprocs)
        self._mutators = [(type(m).__name__, m) for m in generator.mutator_probs]
        self._masses = [float(mass.value) for mass in generator.mutator_probs.values()]
        traces = [space.trace.simplified(True) for space in spaces]
        try:
            self._spaces = self._read(traces)
        except UnknownSpaceError as error:
            _log.debug("using TVM's own search: %s", error)
            return
        self._is_tvms = False
        self._numbers = {_name(trace): number for number, trace in enumerate(traces)}
        self._workload = database.commit_workload(self._module)
        self._arguments = _arguments(self._module)

    def post_tuning(self) -> None:
        """Ends the search."""
        self._tvm.post_tuning()

    def notify_runner_results(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Passes measurements to TVM's own search; this one reads the database."""
        self._tvm.notify_runner_results(candidates, results)

    def generate_measure_candidates(self) -> list[Any] | None:
        """Returns the programs to measure, best score first; None if the space is exhausted."""
        if self._is_tvms:
            found = self._tvm.generate_measure_candidates()
            return None if found is None else list(found)
        with _threads(self._context.num_threads) as each:
            seen = self._evolved(each)
        picked = self._picked(seen)
        self._empty_rounds += not picked
        return None if self._empty_rounds >= _EMPTY_ROUNDS else picked

    def _read(self, traces: Sequence[Any]) -> list[DesignSpace]:
        native = native_modules()
        if native is None:
            raise UnknownSpaceError("no native code")
        unknown = [name for name, _ in self._mutators if name not in _KNOWN_MUTATORS]
        if unknown:
            raise UnknownSpaceError(f"mutators {', '.join(unknown)}")
        return [DesignSpace(self._module, one, self._postprocs, native) for one in traces]

    # One round.

    def _evolved(self, each: _Map) -> list[_Member]:
        """Returns all programs of a round, each once, in the order of their creation."""
        generations = LATER_GENERATIONS if self._population else GENERATIONS
        population = self._begun(each)
        self._score(population)
        seen = dict.fromkeys(population)
        for _ in range(generations if population else 0):
            population = self._next(population, each)
            self._score(population)
            seen.update(dict.fromkeys(population))
        self._population = list(dict.fromkeys(population))
        return list(seen)

    def _begun(self, each: _Map) -> list[_Member]:
        """Returns the first population of a round: measured programs, members of the previous
        population and new ones.
        """
        before = self._population
        self._made = {(one.space, one.genome): one for one in (*self._measured, *before)}
        for member in self._made.values():
            if member is not None:
                member.score = None  # the model may have changed
        best = self._database.get_top_k(self._workload, int(self._size * MEASURED_SHARE))
        keys = dict.fromkeys(key for key in map(self._key, best) if key is not None)
        measured = list(dict.fromkeys(m for m in self._make(keys, each) if m is not None))
        self._measured = measured
        self._known.update(shash2hex(member.schedule.mod) for member in measured)
        left = self._size - len(measured)
        taken = set(measured)
        others = [member for member in before if member not in taken]
        kept = others[: max(0, left - int(self._size * NEW_SHARE))]
        missing = left - len(kept)
        drawn: list[_Member] = []
        for _ in range(MOST_TRIES):
            if len(drawn) >= min(missing, LEAST_NEW):
                break
            drawn += self._drawn(missing, each)
        return measured + kept + drawn

    def _next(self, population: list[_Member], each: _Map) -> list[_Member]:
        """Returns the next generation."""
        sums = list(accumulate(member.score or 0.0 for member in population))
        parents = [population[0]] * self._size
        children: list[_Member | None] = [None] * self._size
        missing = list(range(self._size))
        stayed: set[int] = set()
        for _ in range(MOST_TRIES):
            wanted: dict[int, _Key] = {}
            for place in missing:
                number = bisect(sums, self._chance.random() * sums[-1])
                number = min(number, len(population) - 1)
                parents[place] = population[number]
                if self._chance.random() >= MUTATION:
                    if number not in stayed:
                        stayed.add(number)
                        children[place] = population[number]
                elif (key := self._mutated(population[number])) is not None:
                    wanted[place] = key
            for place, child in zip(wanted, self._make(wanted.values(), each), strict=True):
                children[place] = child
            missing = [place for place in missing if children[place] is None]
        return [child or parent for child, parent in zip(children, parents, strict=True)]

    def _picked(self, seen: Sequence[_Member]) -> list[Any]:
        """Returns candidates for TVM of the best programs that were not proposed yet."""
        picked: list[Any] = []
        for member in sorted(seen, key=lambda one: -(one.score or 0.0)):
            if len(picked) == self._per_round:
                break
            identity = shash2hex(member.schedule.mod)
            if identity not in self._known:
                self._known.add(identity)
                self._measured.append(member)
                candidate = self._replayed(member, identity)
                picked += [candidate] if candidate is not None else []
        return picked

    def _replayed(self, member: _Member, identity: str) -> Any | None:
        """Returns TVM's own replay of a program; None if it fails. If it fails or gives another
        program, TVM's own search is used from the next round on.
        """
        schedule = Schedule(self._module, seed=1, debug_mask="none", error_render_level="none")
        trace = self._spaces[member.space].trace_of(member.genome)
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            is_good = all(postproc.apply(schedule) for postproc in self._postprocs)
        except Exception:  # TVM's checks raise many types
            is_good = False
        if not is_good or shash2hex(schedule.mod) != identity:
            _log.warning(
                "cdmpp: a program of %s differs from TVM's replay of it; from the next round on "
                "TVM's own search is used, which is slower", self._context.task_name,
            )  # fmt: skip
            self._is_tvms = True
        if not is_good:
            return None
        return meta_schedule.MeasureCandidate(schedule, _arguments(schedule.mod))

    def _score(self, members: Iterable[_Member]) -> None:
        """Scores the members without a score."""
        new = [member for member in dict.fromkeys(members) if member.score is None]
        if not new:
            return
        asked = [meta_schedule.MeasureCandidate(one.schedule, self._arguments) for one in new]
        for member, score in zip(new, self._model.predict(self._context, asked), strict=True):
            member.score = max(0.0, float(score))

    # Replay of programs.

    def _make(self, keys: Iterable[_Key], each: _Map) -> list[_Member | None]:
        """Returns the programs of genomes; replays new ones. None for an invalid program."""
        keys = list(keys)
        new = [key for key in dict.fromkeys(keys) if key not in self._made]
        for key, member in zip(new, each(self._member, [(*key, 0) for key in new]), strict=True):
            self._made[key] = self._once(member)
        return [self._made[key] for key in keys]

    def _drawn(self, count: int, each: _Map) -> list[_Member]:
        """Returns random programs, fewer than `count` if some are invalid."""
        jobs = [
            (self._chance.randrange(len(self._spaces)), None, self._chance.getrandbits(60))
            for _ in range(count)
        ]
        made = [self._once(member) for member in each(self._member, jobs)]
        return [member for member in made if member is not None]

    def _member(self, job: tuple[int, Genome | None, int]) -> _Member | None:
        space, genome, seed = job
        made = self._spaces[space].replay(genome, random.Random(seed))
        return None if made is None else _Member(space, *made)

    def _once(self, member: _Member | None) -> _Member | None:
        """Returns the known member with the same decisions, if there is one."""
        if member is None:
            return None
        return self._made.setdefault((member.space, member.genome), member)

    def _key(self, record: Any) -> _Key | None:
        """Returns space and genome of a measured program; None for a trace of another space."""
        number = self._numbers.get(_name(record.trace))
        return None if number is None else (number, self._spaces[number].genome_of(record.trace))

    def _mutated(self, parent: _Member) -> _Key | None:
        """Returns space and genome of a mutated program; None if the mutation is not possible."""
        space, genome, chance = self._spaces[parent.space], parent.genome, self._chance
        name, mutator = chance.choices(self._mutators, self._masses)[0]
        if name == "MutateTileSize":
            found = space.with_other_tiles(genome, chance)
        elif name == "MutateComputeLocation":
            found = space.with_other_place(genome, chance)
        elif name == "MutateUnroll":
            found = space.with_other_unrolling(genome, chance)
        else:
            seed = chance.randrange(1, 1 << 30)
            trace = _APPLY(mutator, space.trace_of(genome), seed)
            found = None if trace is None else space.genome_of(trace)
        return None if found is None else (parent.space, found)


_APPLY = tvm.get_global_func("s_tir.meta_schedule.MutatorApply")


def _arguments(module: Any) -> Any:
    return meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)


def _name(trace: Any) -> str:
    """Returns an identifier of a trace's design space: the parts that all its traces share."""
    steps, _ = trace.as_json(remove_postproc=True)
    plain = json.loads(json.dumps(steps, default=str))
    for kind, inputs, attrs, _ in plain:
        if kind == "Annotate" and attrs == ["meta_schedule.parallel"]:
            inputs[1] = None  # mutations change it
    return json.dumps(plain)


@contextmanager
def _threads(count: int) -> Iterator[_Map]:
    """Yields a `map` that uses `count` threads: TVM's functions release Python's lock."""
    if count == 1:
        yield map
        return
    with ThreadPoolExecutor(count) as pool:
        yield pool.map


__all__ = ["Evolution"]
