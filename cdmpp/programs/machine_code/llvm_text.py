"""Parses LLVM's text of a compiled module: functions, loops and trip counts.

The optimiser leaves loops in one form: a counter starts at a constant, is incremented by a constant
and compared with a constant at the end. The text therefore gives the exact trip counts of nearly
all loops, the assembly only those of half of them.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray, IntArray

#: Prefixes of runtime functions in every module, which check arguments or convert numbers.
_OF_THE_RUNTIME = (
    "__tvm_ffi_", "__tvm_module", "__tvm_set_raised", "__tvm_library", "__truncsfhf2",
    "__extendhfsf2",
)  # fmt: skip

_FUNCTION = re.compile(r"@\"?([\w.$]+)\"?\(")
#: Start of the metadata after an instruction.
_METADATA = ", !"
_LABEL = re.compile(r'^("[^"]+"|[\w.$-]+):')
_TARGET = re.compile(r'label %("[^"]+"|[\w.$-]+)')
_ENDS = ("br ", "switch ", "ret", "unreachable", "invoke ")
_PHI = re.compile(r'\[ ([^,\]]+), %("[^"]+"|[\w.$-]+) \]')
_COMPARE = re.compile(r"icmp (?:samesign )?\w+ i\d+ (\S+), (\S+)")
_CAST = re.compile(r"(?:sext|zext|trunc|freeze)(?: nneg| nsw| nuw)* i\d+ (\S+)(?: to|$)")
_LEAST = re.compile(r"@llvm\.[su]min\.\w+\(i\d+ (\S+), i\d+ (\S+)\)")
_SELECT = re.compile(r"select i1 [^,]+, i\d+ (\S+), i\d+ (\S+)")
_STEP = re.compile(r"(?:add|or) (?:nuw |nsw |disjoint )*i\d+ (\S+), (-?\d+)$")
_DIFFERENCE = re.compile(r"sub (?:nuw |nsw )*i\d+ (\S+), ")
_MASK = re.compile(r"and i\d+ (\S+), (-?\d+)$")
_SHIFT = re.compile(r"lshr (?:exact )?i\d+ (\S+), (\d+)$")
_INTEGER = re.compile(r"-?\d+$")
_REMAINDER = re.compile(r"[us]rem i\d+ (\S+), (\d+)$")
_GUARD = re.compile(r"icmp (?:samesign )?(\w+) i\d+ (\S+), (-?\d+)$")
_COMPARISONS: Mapping[str, Callable[[IntArray, int], BoolArray]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
#: Maximum trip count of a loop whose guards are evaluated.
_MOST_TRIPS = 1 << 20
#: Maximum number of definitions that are followed to evaluate a value.
_MOST_STEPS = 8


@dataclass(frozen=True)
class LlvmLoop:
    """A loop of a function.

    Attributes:
        blocks: names of its blocks.
        trips: iterations per entry of the loop, over all threads for a parallel loop; None if
            unknown.
    """

    blocks: frozenset[str]
    trips: float | None


@dataclass
class LlvmFunction:
    """A function in LLVM's text.

    Attributes:
        name: name without the `@`.
        blocks: name -> instructions, in the order of the text, the entry first.
    """

    name: str
    blocks: dict[str, list[str]] = field(default_factory=dict)

    @cached_property
    def values(self) -> Mapping[str, str]:
        """Name of a value (with its `%`) -> the instruction that defines it."""
        defined = (line.partition(" = ") for lines in self.blocks.values() for line in lines)
        return {name: text for name, is_value, text in defined if is_value and name[0] == "%"}

    @cached_property
    def successors(self) -> Mapping[str, list[str]]:
        """Block -> blocks that may follow it."""
        return {name: self._targets(lines) for name, lines in self.blocks.items()}

    def _targets(self, lines: list[str]) -> list[str]:
        first = next((n for n, line in enumerate(lines) if line.startswith(_ENDS)), len(lines))
        names = (name.strip('"') for name in _TARGET.findall(" ".join(lines[first:])))
        return [name for name in names if name in self.blocks]

    @cached_property
    def _graph(self) -> Any:
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from(self.blocks)
        graph.add_edges_from((a, b) for a, targets in self.successors.items() for b in targets)
        return graph

    @cached_property
    def _above(self) -> Mapping[str, str]:
        """Immediate dominator of each block; that of the entry is itself or missing."""
        import networkx as nx

        found: Mapping[str, str] = nx.immediate_dominators(self._graph, next(iter(self.blocks)))
        return found

    @cached_property
    def loops(self) -> list[LlvmLoop]:
        """The natural loops: bodies of jumps to a block that dominates the jump."""
        graph, above, entry = self._graph, self._above, next(iter(self.blocks))
        bodies: dict[str, set[str]] = {}
        for name in [entry, *(one for one in above if one != entry)]:
            for head in self.successors[name]:
                if _dominates(head, name, above):
                    body = bodies.setdefault(head, {head})
                    waiting = [name]
                    while waiting:
                        one = waiting.pop()
                        if one not in body:
                            body.add(one)
                            waiting += graph.predecessors(one)
        return [LlvmLoop(frozenset(body), self._trips(body)) for body in bodies.values()]

    def around(self, name: str) -> list[LlvmLoop]:
        """Returns the loops around a block, innermost first."""
        found = [loop for loop in self.loops if name in loop.blocks]
        return sorted(found, key=lambda loop: len(loop.blocks))

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Block -> share of the iterations of its loops in which it runs, where comparisons of a
        loop's counter with constants allow at most half of them; otherwise 1.
        """
        found = dict.fromkeys(self.blocks, 1.0)
        for name, targets in self.successors.items():
            inner = next(iter(self.around(name) if len(targets) == 2 else ()), None)
            if inner is None or not inner.blocks.issuperset(targets):
                continue
            share = self._share(name, inner)
            for target, part in zip(targets, (share, 1.0 - share), strict=True):
                others = [one for one in self._graph.predecessors(target) if one != name]
                # Other ways into the target may only lead back from it: it starts a loop.
                if not part <= 0.5 or not all(
                    _dominates(target, one, self._above) for one in others
                ):
                    continue
                for block in inner.blocks:
                    if _dominates(target, block, self._above):
                        found[block] *= part
        return found

    def _share(self, name: str, loop: LlvmLoop) -> float:
        """Returns the share of a loop's iterations in which a block branches to its first target;
        NaN if it is unknown.
        """
        guard = _GUARD.match(self._condition(name))
        if guard is None or loop.trips is None or not 1 <= loop.trips <= _MOST_TRIPS:
            return math.nan
        kind, value, limit = guard[1], self._without_casts(guard[2]), int(guard[3])
        text = self.values.get(value, "")
        found = ((one.match(text), operation) for one, operation in _OF_COUNTERS)
        changed, operation = next((pair for pair in found if pair[0]), (None, operator.add))
        if changed is not None:
            value = self._without_casts(changed[1])
        counter = self._counter(value, set(loop.blocks))
        if counter is None or counter.is_after_step:
            return math.nan
        values = counter.values(int(loop.trips))
        if changed is not None:
            values = operation(values, int(changed[2]))
        if kind.startswith("u"):
            values = np.where(values < 0, np.iinfo(np.int64).max, values)
        return float(np.mean(_COMPARISONS[kind.lstrip("us")](values, limit)))

    def _condition(self, name: str) -> str:
        branch = next((one for one in self.blocks[name] if one.startswith("br i1 ")), "")
        return self.values.get(branch.partition(",")[0].split(" ")[-1], "")

    def _trips(self, body: set[str]) -> float | None:
        """Returns the lowest trip count at which a comparison of a counter ends the loop."""
        found = [
            trips
            for name in body
            if len(self.successors[name]) > 1
            and any(one not in body for one in self.successors[name])
            for trips in [self._trips_until_exit(name, body)]
            if trips is not None and trips >= 1
        ]
        return min(found, default=None)

    def _trips_until_exit(self, name: str, body: set[str]) -> float | None:
        condition = self._condition(name)
        if condition.startswith("phi i1 "):  # true in the first iteration, false in the second
            incoming = sorted(value for value, _ in _PHI.findall(condition))
            return 2.0 if incoming == ["false", "true"] else None
        compared = _COMPARE.match(condition)
        if compared is None:
            return None
        for counter, end in (compared.groups(), compared.groups()[::-1]):
            known = self._counter(counter, body)
            last = self._most(end)
            if known is not None and last is not None:
                return known.trips(last)
        return None

    def _counter(self, value: str, body: set[str]) -> _Counter | None:
        """Returns the counter of a value; None if the value is not a counter."""
        name = self._without_casts(value)
        moved = _STEP.match(self.values.get(name, ""))
        name = moved[1] if moved is not None else name
        text = self.values.get(name, "")
        if not text.startswith("phi "):
            return None
        start = following = None
        for incoming, block in _PHI.findall(text):
            if block.strip('"') in body:
                following = incoming
            else:
                start = incoming
        if start is None or following is None:
            return None
        step = _STEP.match(self.values.get(self._without_casts(following), ""))
        if step is None or step[1] != name or int(step[2]) == 0:
            return None
        first = self._without_casts(start)
        begins = int(first) if _INTEGER.match(first) else None
        return _Counter(begins, int(step[2]), is_after_step=moved is not None)

    def _without_casts(self, value: str) -> str:
        for _ in range(_MOST_STEPS):
            cast = _CAST.match(self.values.get(value, ""))
            if cast is None:
                break
            value = cast[1]
        return value

    def _most(self, value: str, steps: int = 0) -> int | None:
        """Returns an upper bound of an integer from constants; None if there is none."""
        value = self._without_casts(value)
        if _INTEGER.match(value):
            return int(value)
        text = self.values.get(value, "")
        if not text or steps == _MOST_STEPS:
            return None
        if least := _LEAST.search(text):
            known = [self._most(one, steps + 1) for one in least.groups()]
            return min((one for one in known if one is not None), default=None)
        if either := _SELECT.match(text):
            known = [self._most(one, steps + 1) for one in either.groups()]
            return max((one for one in known if one is not None), default=None)
        if difference := _DIFFERENCE.match(text):
            return self._most(difference[1], steps + 1)
        for pattern, operation in _WITH_CONSTANT:
            if found := pattern.match(text):
                most = self._most(found[1], steps + 1)
                return None if most is None else operation(most, int(found[2]))
        return None


_WITH_CONSTANT: tuple[tuple[re.Pattern[str], Callable[[int, int], int]], ...] = (
    (_STEP, operator.add), (_MASK, operator.and_), (_SHIFT, operator.rshift),
)  # fmt: skip


_OF_COUNTERS: tuple[tuple[re.Pattern[str], Callable[[Any, int], Any]], ...] = (
    *_WITH_CONSTANT, (_REMAINDER, operator.mod),
)  # fmt: skip


@dataclass(frozen=True)
class _Counter:
    """The counter of a loop.

    Attributes:
        begins: its first value; None if not constant, as for a thread's part of a parallel loop.
        step: increment per iteration.
        is_after_step: whether it is compared after the increment.
    """

    begins: int | None
    step: int
    is_after_step: bool

    def values(self, trips: int) -> IntArray:
        """Returns int64 [trips], the counter before each step; it starts at 0 if unknown."""
        return (self.begins or 0) + self.step * np.arange(trips, dtype=np.int64)

    def trips(self, end: int) -> float:
        """Returns the trip count of a loop that ends when the counter is `end`."""
        begins = self.begins if self.begins is not None else (0 if self.step > 0 else end)
        runs = (end - begins) / self.step
        return float(math.ceil(runs) if self.is_after_step else math.floor(runs) + 1)


def functions_of(text: str) -> Iterator[LlvmFunction]:
    """Yields the functions of a module without those of the runtime."""
    function: LlvmFunction | None = None
    block = ""
    for line in text.splitlines():
        if line.startswith("define "):
            found = _FUNCTION.search(line)
            is_ours = found is not None and not found[1].startswith(_OF_THE_RUNTIME)
            function = LlvmFunction(found[1]) if found is not None and is_ours else None
            block = ""
        elif line == "}":
            if function is not None and function.blocks:
                yield function
            function = None
        elif function is not None and line:
            label = _LABEL.match(line)
            if label is not None:
                block = label[1].strip('"')
                function.blocks[block] = []
            elif not line.lstrip().startswith("#dbg_"):
                text = line.partition(_METADATA)[0].strip()
                function.blocks.setdefault(block, []).append(text)


def _dominates(block: str, other: str, above: Mapping[str, str]) -> bool:
    """Returns whether `block` dominates `other`.

    Args:
        above: immediate dominator of each block; that of the entry is itself or missing.
    """
    place: str | None = other
    while place is not None and place != block:
        before = above.get(place)
        place = None if before == place else before
    return place == block
