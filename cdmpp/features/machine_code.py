"""What a compiler made of a program: columns counted in its x86-64 assembly.

A loop nest does not say which loops the compiler vectorised, what it keeps in registers and what it
spills. The text of the assembly (AT&T syntax) does, without a run. Trip counts are read off
compares with constants where there are any; other loops count as `UNKNOWN_TRIPS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError

#: Version of the meaning of the columns.
MACHINE_CODE_SCHEMA_VERSION = 1
#: Values are rounded to such parts, so that tables of them are small.
_STEPS = 256
#: Iterations of a loop whose trip count is not in the code.
UNKNOWN_TRIPS = 8.0

#: What the name of a function of another library ends with.
_LIBRARY = "@PLT"

#: Kinds of instructions. An instruction that computes and accesses memory is of two kinds.
KINDS = (
    "fma512", "fma256", "fma128", "fma_scalar", "float512", "float256", "float128", "float_scalar",
    "divide", "load", "store", "reload", "spill", "broadcast", "shuffle", "gather", "integer",
    "address", "branch", "call", "mask", "move",
)  # fmt: skip
_KIND = {name: number for number, name in enumerate(KINDS)}
_ARITHMETIC = slice(0, _KIND["float_scalar"] + 1)
_LANES = {"512": 16.0, "256": 8.0, "128": 4.0, "_scalar": 1.0}
_BLOCK_COLUMNS = ("instructions", "flops", "cycles", "depth", "share", "flops_each")

#: Names of the columns, in order.
MACHINE_CODE_NAMES: tuple[str, ...] = (
    "instructions", "flops", "cycles", "unknown_loops", "loops", "depth", "static_instructions",
    *(f"share.{kind}" for kind in KINDS),
    *(f"hottest.{name}" for name in _BLOCK_COLUMNS),
    *(f"hottest.{kind}" for kind in KINDS),
    *(f"static.{kind}" for kind in KINDS),
)  # fmt: skip

_IMMEDIATE = re.compile(r"^\$(-?\d+),\s*(%\w+)$")
_OFFSET = re.compile(r"^(-?\d+)\((%\w+)\),\s*(%\w+)$")
_WIDE_NAMES = {
    "eax": "rax", "ebx": "rbx", "ecx": "rcx", "edx": "rdx", "esi": "rsi", "edi": "rdi",
    "ebp": "rbp",
}  # fmt: skip
_PREFIXES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("divide", ("vdiv", "vsqrt")),
    ("broadcast", ("vbroadcast", "vpbroadcast", "vmovddup")),
    ("gather", ("vgather", "vpgather", "vscatter", "vpscatter")),
    ("shuffle", (
        "vperm", "vpermi", "vshuf", "vunpck", "vpunpck", "vinsert", "vextract", "vblend", "valign",
        "vpalign", "vpinsr", "vpextr", "vmovhlps", "vmovlhps", "vmovhps",
    )),
)  # fmt: skip
_SUMS = ("vadd", "vsub", "vmul", "vmax", "vmin", "vround", "vrndscale")


@dataclass(frozen=True)
class _Instruction:
    name: str
    operands: str

    @property
    def is_jump(self) -> bool:
        return self.name.startswith("j")


@dataclass
class _Function:
    """Instructions of a function, and the place of each label among them."""

    instructions: list[_Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Loop:
    """Instructions [first, last] that a jump at the end repeats; trips is None where unknown."""

    first: int
    last: int
    trips: float | None


@dataclass(frozen=True)
class _Block:
    """Instructions that run one after another.

    Attributes:
        counts: float64 [kinds].
        flops: of one run.
        instructions: of one run.
        runs: how often, by the trip counts of the loops around it.
        depth: loops around it.
    """

    counts: NDArray[np.float64]
    flops: float
    instructions: int
    runs: float
    depth: int

    @property
    def cycles(self) -> float:
        """A bound for one run, for a core that issues four instructions a cycle, among them two of
        arithmetic, two loads, one store and one shuffle.
        """
        count = dict(zip(KINDS, self.counts.tolist(), strict=True))
        wide = count["fma512"] + count["float512"]
        arithmetic = float(self.counts[_ARITHMETIC].sum()) + wide
        bounds = (
            self.instructions / 4,
            arithmetic / 2,
            (count["load"] + count["reload"]) / 2,
            count["store"] + count["spill"],
            count["shuffle"] + 8 * count["gather"] + 6 * count["divide"],
        )
        return float(max(bounds))


def machine_code_columns(assembly: str) -> NDArray[np.float32] | None:
    """Returns float32 [len(MACHINE_CODE_NAMES)] of a compiled program; None where it does nothing
    but call a library (a copy is a call of memcpy): its own code says nothing of the time.

    Counts are logarithms, log2(x + 1); shares are of the weighted instructions, or of the hottest
    block's. All are multiples of 1/256.

    Args:
        assembly: of the module, x86-64 in AT&T syntax; functions whose names begin with two
            underscores are not the program's.

    Raises:
        DataError: there is no such function, as in the code of another architecture.
    """
    blocks: list[_Block] = []
    loops = unknown = 0
    calls_library = False
    for function in _functions(assembly):
        calls_library |= any(_LIBRARY in one.operands for one in function.instructions)
        found = _loops(function)
        loops += len(found)
        unknown += sum(loop.trips is None for loop in found)
        blocks += _blocks(function, found)
    if not any(block.counts[: _KIND["integer"]].any() for block in blocks):
        if calls_library:
            return None
        raise DataError("the assembly has no function of a program; expected x86-64 in AT&T syntax")
    weighted = sum((block.runs * block.counts for block in blocks), np.zeros(len(KINDS)))
    static = sum((block.counts for block in blocks), np.zeros(len(KINDS)))
    cycles = sum(block.runs * block.cycles for block in blocks)
    hottest = max(blocks, key=lambda block: block.runs * block.cycles)
    total = float(weighted.sum()) + 1.0
    columns = [
        _log(total), _log(sum(block.runs * block.flops for block in blocks)), _log(cycles),
        unknown / max(loops, 1), _log(loops), max(block.depth for block in blocks),
        _log(sum(block.instructions for block in blocks)),
        *(weighted / total),
        _log(hottest.instructions), _log(hottest.flops), _log(hottest.cycles), hottest.depth,
        hottest.runs * hottest.cycles / cycles, hottest.flops / hottest.instructions,
        *(hottest.counts / hottest.instructions),
        *np.log2(static + 1.0),
    ]  # fmt: skip
    return np.asarray(np.rint(np.asarray(columns) * _STEPS) / _STEPS, np.float32)


def _log(value: float) -> float:
    return math.log2(value + 1.0)


def _functions(assembly: str) -> Iterator[_Function]:
    """Yields the program's functions."""
    function: _Function | None = None
    for raw in assembly.splitlines():
        line = raw.split("#", 1)[0].rstrip()
        if not line:
            continue
        if not line[0].isspace():
            name = line[:-1]
            if not line.endswith(":"):
                continue
            if name.startswith(".LBB"):
                if function is not None:
                    function.labels[name] = len(function.instructions)
            elif not name.startswith(".L"):
                if function is not None and function.instructions:
                    yield function
                function = None if name.startswith("__") else _Function()
        elif function is not None and not line.lstrip().startswith("."):
            name, _, operands = line.strip().partition("\t")
            function.instructions.append(_Instruction(name, operands.strip()))
    if function is not None and function.instructions:
        yield function


def _loops(function: _Function) -> list[_Loop]:
    """Returns the loops: a jump back to a label, the last one where there are several."""
    last: dict[int, int] = {}
    for place, instruction in enumerate(function.instructions):
        target = function.labels.get(instruction.operands) if instruction.is_jump else None
        if target is not None and target <= place:
            last[target] = place
    return [
        _Loop(first, place, _trips(function.instructions, first, place))
        for first, place in sorted(last.items())
    ]


def _trips(instructions: list[_Instruction], first: int, last: int) -> float | None:
    """Returns how often a loop runs, None where constants do not say it."""
    for place in range(last, max(first, last - 8) - 1, -1):
        one = instructions[place]
        if one.name.startswith("cmp"):
            found = _IMMEDIATE.match(one.operands)
            if found is None:
                return None
            register = _wide(found[2])
            step = _step(instructions[first : last + 1], register)
            start = _start(instructions[max(0, first - 60) : first], register) or 0
            return _positive((int(found[1]) - start) / step) if step else None
        if one.name.startswith("testb"):
            return 2.0
        if one.name.startswith("test"):
            return None
        if place >= last - 2 and one.name[:3] in ("add", "sub", "inc", "dec"):
            register = _wide(one.operands.rsplit(",", 1)[-1])
            step = _step([one], register)
            start_at = _start(instructions[max(0, first - 60) : first], register)
            return _positive(-start_at / step) if step and start_at is not None else None
    return None


def _positive(trips: float) -> float | None:
    return trips if trips >= 1 else None


def _step(instructions: list[_Instruction], register: str) -> int:
    """Returns by how much an iteration changes a register; 0 where no constant says it."""
    step = 0
    for one in instructions:
        name = one.name[:3]
        found = _IMMEDIATE.match(one.operands)
        if found and name in ("add", "sub") and _wide(found[2]) == register:
            step = int(found[1]) if name == "add" else -int(found[1])
        elif name in ("inc", "dec") and _wide(one.operands) == register:
            step = 1 if name == "inc" else -1
        elif name == "lea" and not step:
            moved = _OFFSET.match(one.operands)
            if moved and register in (_wide(moved[2]), _wide(moved[3])):
                step = int(moved[1])
    return step


def _start(instructions: list[_Instruction], register: str) -> int | None:
    """Returns the constant that a register last gets before a loop, None where there is none."""
    for one in reversed(instructions):
        if one.name.startswith("xor") and _wide(one.operands.rsplit(",", 1)[-1]) == register:
            return 0
        found = _IMMEDIATE.match(one.operands)
        if found and one.name.startswith("mov") and _wide(found[2]) == register:
            return int(found[1])
    return None


def _wide(register: str) -> str:
    """Returns the 64-bit name of a register."""
    name = register.strip().lstrip("%")
    if name[:1] == "r" and name.endswith("d") and name[1:-1].isdigit():
        return name[:-1]
    return _WIDE_NAMES.get(name, name)


def _blocks(function: _Function, loops: list[_Loop]) -> Iterator[_Block]:
    """Yields what runs one after another, between labels and jumps."""
    starts = {0, *function.labels.values()}
    starts |= {
        place + 1 for place, one in enumerate(function.instructions) if one.is_jump
    }  # fmt: skip
    bounds = sorted(start for start in starts if start < len(function.instructions))
    for first, end in zip(bounds, [*bounds[1:], len(function.instructions)], strict=True):
        around = [loop for loop in loops if loop.first <= first and end - 1 <= loop.last]
        counts = np.zeros(len(KINDS))
        flops = 0.0
        for one in function.instructions[first:end]:
            flops += _count(one, counts)
        runs = math.prod(UNKNOWN_TRIPS if loop.trips is None else loop.trips for loop in around)
        yield _Block(counts, flops, end - first, runs, len(around))


def _count(one: _Instruction, counts: NDArray[np.float64]) -> float:
    """Adds an instruction to the kinds it is of; returns its floating point operations."""
    name, operands = one.name, one.operands
    is_vector = "mm" in operands and any(part in operands for part in ("%xmm", "%ymm", "%zmm"))
    flops = 0.0
    if is_vector:
        kind, flops = _vector_kind(name, operands)
    elif one.is_jump:
        kind = "branch"
    elif name.startswith("call"):
        kind = "call"
    elif name.startswith("lea"):
        kind = "address"
    else:
        kind = "mask" if name.startswith("k") else "integer"
    counts[_KIND[kind]] += 1
    if "(" in operands and kind not in ("address", "branch", "call"):
        is_stack = "%rsp" in operands
        is_store = "(" in operands[_last_operand(operands) :]
        counts[_KIND[("spill" if is_stack else "store") if is_store else
                     ("reload" if is_stack else "load")]] += 1  # fmt: skip
    return flops


def _vector_kind(name: str, operands: str) -> tuple[str, float]:
    """Returns the kind of an instruction on vector registers and its operations."""
    width = "512" if "%zmm" in operands else "256" if "%ymm" in operands else "128"
    if name.endswith(("ss", "sd")):
        width = "_scalar"
    if name.startswith(("vfm", "vfnm")):
        return f"fma{width}", 2 * _LANES[width]
    if name.startswith(_SUMS):
        return f"float{width}", _LANES[width]
    for kind, prefixes in _PREFIXES:
        if name.startswith(prefixes):
            return kind, float(kind == "divide")
    return "move", 0.0


def _last_operand(operands: str) -> int:
    """Returns where the last operand (the destination) begins."""
    depth = begin = 0
    for place, letter in enumerate(operands):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            begin = place + 1
    return begin
