"""What a compiler made of a program, as columns: how often each kind of instruction runs.

A loop nest does not say which loops the compiler vectorised and unrolled. LLVM's code after its
optimiser does, without a run. It is the same for every processor, and says how often its loops run;
what becomes of registers is not in it.
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
#: Values are rounded to such parts, so that tables of them are small.
_STEPS = 256
#: Iterations of a loop whose trip count is not in the code.
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
#: What else is summed over the instructions of a block: values that an iteration hands to the next,
#: and numbers of 4 bytes that are loaded and stored.
_AMOUNTS = ("carried_floats", "loaded", "stored")
_COUNTED = (*KINDS, *_AMOUNTS)
_PLACE = {name: number for number, name in enumerate(_COUNTED)}
#: What a block's cycles are bounded by.
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
#: Beginnings of what is called -> kind; nothing where it makes no instruction.
_CALLS: tuple[tuple[str, str], ...] = (
    ("llvm.fmuladd", "fma"), ("llvm.fma.", "fma"), ("llvm.masked.gather", "gather"),
    ("llvm.masked.scatter", "scatter"), ("llvm.masked.load", "masked_load"),
    ("llvm.masked.store", "masked_store"), ("llvm.mem", "memory_call"),
    *((f"llvm.{name}", "") for name in ("assume", "lifetime", "dbg", "experimental", "invariant")),
    *((f"llvm.{name}", "float") for name in
      ("maxnum", "minnum", "maximum", "minimum", "fabs", "copysign", "floor", "ceil", "round")),
    ("llvm.vector.reduce", "shuffle"),
    *((f"llvm.{name}", "integer") for name in ("smin", "smax", "umin", "umax", "abs", "fsh")),
    *((name, "math") for name in
      ("llvm.exp", "llvm.log", "llvm.pow", "llvm.sqrt", "llvm.sin", "llvm.cos", "llvm.tanh", "exp",
       "log", "pow", "sqrt", "tanh", "erf", "sin", "cos")),
)  # fmt: skip
_FLOPS = {"fma": 2.0, "float": 1.0, "divide": 1.0}
#: Bodies of loops whose runs are shared out over threads.
_PARALLEL = "__tvm_parallel_lambda"


@dataclass(frozen=True)
class _Block:
    """Instructions that run one after another.

    Attributes:
        counts: float64 [counted], of one run.
        flops, instructions: of one run.
        runs: how often.
        depth: loops around it.
        trips: of the innermost loop around it, 1 without one.
        blocks: of that loop.
    """

    counts: NDArray[np.float64]
    flops: float
    instructions: int
    runs: float
    depth: int
    trips: float
    blocks: int

    def count(self, *names: str) -> float:
        """Returns how many instructions of some kinds there are."""
        return float(sum(self.counts[_PLACE[name]] for name in names))

    def _of_all_widths(self, kind: str) -> float:
        """Returns how many operations of 256 bits at most a kind by width comes to."""
        return self.count(*(f"{kind}{width}" for width in _WIDTHS), f"{kind}512")

    @property
    def bounds(self) -> tuple[float, ...]:
        """Cycles of one run by each of `BOUNDS`, on a core of two 256 bit units for arithmetic, two
        loads, one store and four instructions a cycle; of a chain of sums, four cycles each.
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
    """Returns float32 [len(MACHINE_CODE_NAMES)] of a compiled program; None where it does nothing
    but call a library (a copy is a call of memcpy): its own code says nothing of the time.

    Totals, bounds and sizes are logarithms, log2(x + 1); the kinds of a block are shares of its
    instructions. All are multiples of 1/256.

    Args:
        llvm: the module after the optimiser, LLVM's text.

    Raises:
        DataError: there is no function of a program in it.
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
        share: of all cycles that are its.
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
        around = [loop for loop in function.loops if name in loop.blocks]
        inner = min(around, key=lambda loop: len(loop.blocks), default=None)
        counts = np.zeros(len(_COUNTED))
        flops = sum(_count(line, counts) for line in lines)
        yield _Block(
            counts, flops, len(lines),
            runs=math.prod(_trips(loop.trips) for loop in around), depth=len(around),
            trips=1.0 if inner is None else _trips(inner.trips),
            blocks=0 if inner is None else len(inner.blocks),
        )  # fmt: skip


def _trips(known: float | None) -> float:
    return UNKNOWN_TRIPS if known is None else known


def _count(line: str, counts: NDArray[np.float64]) -> float:
    """Adds an instruction to what it is counted as; returns its floating point operations."""
    text = line.partition(" = ")[2] if line.startswith("%") else line
    name = text.partition(" ")[0]
    if name in ("tail", "musttail", "notail"):
        name = "call"
    if not name.isalpha():  # goes on with the line before
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
