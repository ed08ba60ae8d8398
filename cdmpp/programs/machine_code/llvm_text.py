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
    def loops(self) -> list[LlvmLoop]:
        """The natural loops: bodies of jumps to a block that dominates the jump."""
        import networkx as nx

        graph = nx.DiGraph()
        graph.add_nodes_from(self.blocks)
        graph.add_edges_from((a, b) for a, targets in self.successors.items() for b in targets)
        entry = next(iter(self.blocks))
        above = nx.immediate_dominators(graph, entry)
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
        branch = next((one for one in self.blocks[name] if one.startswith("br i1 ")), "")
        condition = self.values.get(branch.partition(",")[0].split(" ")[-1], "")
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
