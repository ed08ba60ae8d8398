"""Feature columns of a compiled CPU program: executions of each kind of instruction.

LLVM's code after its optimiser shows which loops are vectorised and unrolled, which a loop nest
does not, without running the program. It has the same form for every processor and contains the
trip counts of loops; register allocation is not in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.programs.machine_code.llvm_text import LlvmFunction, functions_of

#: Version of the meaning of the columns.
MACHINE_CODE_SCHEMA_VERSION = 2
#: Values are rounded to multiples of 1 / _STEPS, which keeps tables small.
_STEPS = 256
#: Assumed iterations of a loop with an unknown trip count.
UNKNOWN_TRIPS = 8.0

_WIDE = ("fma", "float", "divide", "load", "store")
_WIDTHS = ("512", "256", "128", "_scalar")
#: Kinds of instructions; arithmetic, loads and stores by width in bits.
KINDS: tuple[str, ...] = (
    *(f"{kind}{width}" for kind in _WIDE for width in _WIDTHS),
    "gather", "masked_load", "scatter", "masked_store", "splat", "shuffle", "insert", "extract",
    "integer", "integer_divide", "address", "branch", "compare", "call", "math", "convert", "phi",
    "memory_call",
)  # fmt: skip
#: Further sums over the instructions of a block: loop-carried values, and 4-byte numbers that are
#: loaded and stored.
_AMOUNTS = ("carried_floats", "loaded", "stored")
_COUNTED = (*KINDS, *_AMOUNTS)
_PLACE = {name: number for number, name in enumerate(_COUNTED)}
#: Bounds on the cycles of a block.
BOUNDS = ("arithmetic", "load", "store", "shuffle", "issue", "chain")
_BLOCK = (
    "instructions", "flops", "cycles", "depth", "share", "flops_each", "trips", "blocks", "runs",
)  # fmt: skip
_RANKS = ("hottest", "second")

#: Names of the columns, in order.
MACHINE_CODE_NAMES: tuple[str, ...] = (
    "instructions", "flops", "cycles", "unknown_loops", "loops", "depth", "parallel_loops",
    "static_instructions",
    *(f"total.{name}" for name in _COUNTED),
    *(f"bound.{name}" for name in BOUNDS),
    *(f"{rank}.{name}" for rank in _RANKS for name in (*_BLOCK, *_COUNTED)),
)  # fmt: skip

_VECTOR = re.compile(r"<(\d+) x (\w+)>")
_NUMBER = re.compile(r"(?:load|store) (?:volatile )?(\w+)")
_CALLED = re.compile(r"@\"?([\w.$]+)")
_BITS = {"float": 32, "double": 64, "half": 16, "ptr": 64, "i1": 8, "i8": 8, "i16": 16, "i64": 64}
_KIND_OF = {
    "fadd": "float", "fsub": "float", "fmul": "float", "fneg": "float", "fdiv": "divide",
    "frem": "divide", "load": "load", "store": "store", "getelementptr": "address", "br": "branch",
    "switch": "branch", "ret": "branch", "unreachable": "branch", "phi": "phi",
    "insertelement": "insert", "extractelement": "extract", "icmp": "compare", "fcmp": "compare",
    "select": "compare", "sdiv": "integer_divide", "udiv": "integer_divide",
    "srem": "integer_divide", "urem": "integer_divide",
    **dict.fromkeys(
        ("sext", "zext", "trunc", "bitcast", "sitofp", "uitofp", "fptosi", "fptoui", "fptrunc",
         "fpext", "ptrtoint", "inttoptr", "freeze"),
        "convert",
    ),
}  # fmt: skip
#: Prefix of a called function -> kind; empty if the call has no instruction.
_CALLS: tuple[tuple[str, str], ...] = (
    ("llvm.fmuladd", "fma"), ("llvm.fma.", "fma"), ("llvm.masked.gather", "gather"),
    ("llvm.masked.scatter", "scatter"), ("llvm.masked.load", "masked_load"),
    ("llvm.masked.store", "masked_store"), ("llvm.mem", "memory_call"),
    *((f"llvm.{name}", "") for name in ("assume", "lifetime", "dbg", "experimental", "invariant")),
    *((f"llvm.{name}", "float") for name in
      ("maxnum", "minnum", "maximum", "minimum", "fabs", "copysign", "floor", "ceil", "round",
       "nearbyint", "rint", "trunc")),
    ("llvm.sqrt", "divide"),
    ("llvm.vector.reduce", "shuffle"),
    *((f"llvm.{name}", "integer") for name in ("smin", "smax", "umin", "umax", "abs", "fsh",
       "ctpop", "ctlz", "cttz", "bswap", "bitreverse",
       "sadd.sat", "ssub.sat", "uadd.sat", "usub.sat")),
    *((name, "math") for name in
      ("llvm.exp", "llvm.log", "llvm.pow", "llvm.sin", "llvm.cos", "llvm.tanh", "exp",
       "log", "pow", "sqrt", "tanh", "erf", "sin", "cos")),
)  # fmt: skip
_FLOPS = {"fma": 2.0, "float": 1.0, "divide": 1.0}
#: Prefix of functions that are bodies of parallel loops.
_PARALLEL = "__tvm_parallel_lambda"


@dataclass(frozen=True)
class _Block:
    """A basic block.

    Attributes:
        counts: float64 [counted], per execution.
        flops, instructions: per execution.
        runs: number of executions.
        depth: number of loops around it.
        trips: trip count of the innermost loop around it, 1 without one.
        blocks: number of blocks of that loop, 0 without one.
    """

    counts: NDArray[np.float64]
    flops: float
    instructions: int
    runs: float
    depth: int
    trips: float
    blocks: int

    def count(self, *names: str) -> float:
        """Returns the number of instructions of some kinds."""
        return float(sum(self.counts[_PLACE[name]] for name in names))

    def _of_all_widths(self, kind: str) -> float:
        """Returns the number of operations of a kind; 512-bit ones count twice."""
        return self.count(*(f"{kind}{width}" for width in _WIDTHS), f"{kind}512")

    @property
    def bounds(self) -> tuple[float, ...]:
        """Cycles of one execution by each of `BOUNDS`.

        The assumed core does two 256-bit arithmetic operations, two loads, one store and four
        instructions per cycle; a dependent sum takes four cycles.
        """
        arithmetic = self._of_all_widths("fma") + self._of_all_widths("float")
        carried = self.count("carried_floats")
        splat = min(self.count("splat"), self.count("insert"))
        folded = self.count("phi", "address", "splat") + splat
        return (
            arithmetic / 2,
            self._of_all_widths("load") / 2
            + self.count("masked_load") / 2 + 4 * self.count("gather"),
            self._of_all_widths("store") + self.count("masked_store") + 8 * self.count("scatter"),
            self.count("shuffle", "extract", "insert") - splat
            + 5 * self._of_all_widths("divide")
            + 20 * self.count("math", "call") + 3 * self.count("integer_divide"),
            max(self.count(*KINDS) - folded, 0.0) / 4,
            4 * arithmetic / carried if carried else 0.0,
        )  # fmt: skip

    @property
    def cycles(self) -> float:
        """The largest of `bounds`."""
        return max(self.bounds)


def machine_code_columns(llvm: str) -> NDArray[np.float32] | None:
    """Returns float32 [len(MACHINE_CODE_NAMES)], the columns of a compiled program.

    None if the program only calls memory functions (a copy is a call of memcpy), whose time its own
    code does not show. Totals, bounds and sizes are logarithms, log2(x + 1); the kinds of a block
    are shares of its instructions. All values are multiples of 1/256.

    Args:
        llvm: LLVM's text of the module after the optimiser.

    Raises:
        DataError: the module has no function of a program.
    """
    blocks: list[_Block] = []
    loops = unknown = parallel = 0
    for function in functions_of(llvm):
        parallel += function.name.startswith(_PARALLEL)
        loops += len(function.loops)
        unknown += sum(loop.trips is None for loop in function.loops)
        blocks += _blocks(function)
    if not blocks:
        raise DataError("the code has no function of a program; expected LLVM's text of a module")
    total = sum((block.runs * block.counts for block in blocks), np.zeros(len(_COUNTED)))
    if not total[: _PLACE["integer"]].any() and total[_PLACE["memory_call"]]:
        return None
    cycles = np.array([block.runs * block.cycles for block in blocks])
    bounds = np.sum([[block.runs * one for one in block.bounds] for block in blocks], axis=0)
    flops = sum(block.runs * block.flops for block in blocks)
    static = sum(block.instructions for block in blocks)
    order = np.argsort(-cycles, kind="stable")[: len(_RANKS)]
    ranked = [_of_block(blocks[place], cycles[place] / max(cycles.sum(), 1.0)) for place in order]
    ranked += [[0.0] * len(ranked[0])] * (len(_RANKS) - len(ranked))
    columns = [
        *np.log2([total[: len(KINDS)].sum() + 1.0, flops + 1.0, cycles.sum() + 1.0]),
        unknown / max(loops, 1), math.log2(loops + 1.0), max(block.depth for block in blocks),
        parallel, math.log2(static + 1.0),
        *np.log2(total + 1.0), *np.log2(bounds + 1.0), *(value for one in ranked for value in one),
    ]  # fmt: skip
    return np.asarray(np.rint(np.asarray(columns) * _STEPS) / _STEPS, np.float32)


def _of_block(block: _Block, share: float) -> list[float]:
    """Returns the columns of one block.

    Args:
        share: its share of all cycles.
    """
    sizes = (block.instructions, block.flops, block.cycles)
    around = (block.trips, block.blocks, block.runs)
    instructions = max(block.count(*KINDS), 1.0)
    return [
        *(math.log2(value + 1.0) for value in sizes),
        block.depth, share, block.flops / max(block.cycles, 1.0),
        *(math.log2(value + 1.0) for value in around),
        *(block.counts / instructions),
    ]  # fmt: skip


def _blocks(function: LlvmFunction) -> Iterator[_Block]:
    for name, lines in function.blocks.items():
        around = function.around(name)
        inner = around[0] if around else None
        counts = np.zeros(len(_COUNTED))
        flops = sum(_count(line, counts) for line in lines)
        yield _Block(
            counts, flops, len(lines),
            runs=function.shares[name] * math.prod(_trips(loop.trips) for loop in around),
            depth=len(around),
            trips=1.0 if inner is None else _trips(inner.trips),
            blocks=0 if inner is None else len(inner.blocks),
        )  # fmt: skip


def _trips(known: float | None) -> float:
    return UNKNOWN_TRIPS if known is None else known


def _count(line: str, counts: NDArray[np.float64]) -> float:
    """Adds an instruction to `counts`; returns its floating-point operations."""
    text = line.partition(" = ")[2] if line.startswith("%") else line
    name = text.partition(" ")[0]
    if name in ("tail", "musttail", "notail"):
        name = "call"
    if not name.isalpha():  # continues the previous line
        return 0.0
    kind = _kind_of_call(text) if name == "call" else _KIND_OF.get(name, "integer")
    if name == "shufflevector":
        kind = "splat" if text.endswith("zeroinitializer") else "shuffle"
    if not kind:
        return 0.0
    vector = _VECTOR.search(text)
    lanes = int(vector[1]) if vector else 1
    bits = lanes * _BITS.get(vector[2], 32) if vector else 0
    if f"{kind}512" in _PLACE:
        width = "512" if bits > 256 else "256" if bits > 128 else "128" if bits else "_scalar"
        counts[_PLACE[kind + width]] += max(1, math.ceil(bits / 512))
    else:
        counts[_PLACE[kind]] += max(1, math.ceil(bits / 512))
    if kind == "phi":
        counts[_PLACE["carried_floats"]] += " float" in text[:24]
    elif kind in ("load", "gather", "masked_load", "store", "scatter", "masked_store"):
        number = _NUMBER.match(text)
        size = bits or _BITS.get(number[1] if number else "float", 32)
        is_store = kind in ("store", "scatter", "masked_store")
        counts[_PLACE["stored" if is_store else "loaded"]] += size / 32
    return _FLOPS.get(kind, 0.0) * lanes


def _kind_of_call(text: str) -> str:
    called = _CALLED.search(text)
    name = called[1] if called else ""
    return next((kind for beginning, kind in _CALLS if name.startswith(beginning)), "call")
