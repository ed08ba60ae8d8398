"""Kinds of generated tensor programs with formulas of their work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BYTES = {"float32": 4, "float16": 2, "int8": 1, "int16": 2, "int32": 4, "float64": 8}
#: Schedules and the kinds of devices that can run them.
RUNS_ON = {
    "as written": ("cpu", "gpu"), "as written, n given": ("cpu", "gpu"),
    "as written for GPUs": ("gpu",), "as written in loops": ("cpu",),
    "parallel": ("cpu",), "tiled": ("cpu",), "threads": ("gpu",), "across threads": ("gpu",),
}  # fmt: skip
_EACH = ("as written", "parallel", "tiled", "threads")
_REDUCED = (*_EACH, "across threads")
_PLAIN = ("as written in loops",)  # without blocks, which DLight needs

_Sizes = Callable[[int, int], float]


@dataclass(frozen=True)
class Kind:
    """A kind of program over m x k elements.

    Attributes:
        arguments: `NAME shape type` each.
        parts: verbatim lines, or `NAME | axes | first store | stores` of a block.
        operations: minimum number of arithmetic operations on `dtype`.
        moved_at_least: minimum bytes of arguments; None for all arguments, once.
        is_product: whether m = k is the side of square matrices.
    """

    name: str
    arguments: Sequence[str]
    parts: Sequence[str]
    operations: _Sizes
    dtype: str = "float32"
    styles: Sequence[str] = _EACH
    moved_at_least: _Sizes | None = None
    is_product: bool = False

    def text(self, m: int, k: int) -> str:
        """Returns the program as TVMScript."""
        given = [
            f'{name}: T.Buffer({shape.format(m=m, k=k)}, "{dtype}")'
            for name, shape, dtype in map(str.split, self.arguments)
        ]
        lines = [line for part in self.parts for line in _lines(part, m, k)]
        if any("n = T.int32()" in one for one in self.parts):
            given = [f"{one.split()[0].lower()}: T.handle" for one in self.arguments]
        body = "\n".join(f"    {line}" for line in lines)
        return f"@T.prim_func(s_tir=True)\ndef f({', '.join(given)}):\n{body}\n"

    def written(self, m: int, k: int) -> float:
        """Returns the number of elements of the last argument."""
        return _volume(self.arguments[-1].split()[1].format(m=m, k=k))

    def moved(self, m: int, k: int) -> float:
        """Returns the minimum bytes of arguments that are read or written, each counted once."""
        if self.moved_at_least is not None:
            return self.moved_at_least(m, k)
        return sum(
            BYTES[dtype] * _volume(shape.format(m=m, k=k))
            for _, shape, dtype in map(str.split, self.arguments)
        )


def _volume(shape: str) -> float:
    count = 1.0
    for extent in shape.strip("(),").split(","):
        count *= float(eval(extent))  # a product of numbers from the generator
    return count


def _lines(part: str, m: int, k: int) -> list[str]:
    part = part.replace("{m}", str(m)).replace("{k}", str(k))
    if " | " not in part:
        return part.split("\n")
    name, axes, first, *stores = part.split(" | ")
    lines, remaps = [], []
    for number, axis in enumerate(axes.split(", ")):
        sort, extent = axis.split()
        lines.append("    " * number + f"for i{number} in range({extent}):")
        sort = "spatial" if sort == "S" else "reduce"
        remaps.append(f"v{number} = T.axis.{sort}({extent}, i{number})")
    depth = "    " * len(lines)
    lines.append(f'{depth}with T.sblock("{name}"):')
    inner = [*remaps, *(["with T.init():", *(f"    {one}" for one in first.split("; "))] if first
                        else []), *stores]  # fmt: skip
    return [*lines, *(f"{depth}    {one}" for one in inner)]


def _alloc(*names: str, dtype: str = "float32") -> list[str]:
    return [f'{name} = T.sblock_alloc_buffer(({{m}},), "{dtype}")' for name in names]


def _chain(steps: int) -> str:
    value = "A[v0, v1]"
    for step in range(steps):
        value = f"({value} {'*+'[step % 2]} A[v0, v1])"
    return f"B | S {{m}}, S {{k}} |  | B[v0, v1] = {value}"


def _product(dtype: str, out: str) -> Kind:
    read = [
        f"{of}" if dtype == out else f'T.Cast("{out}", {of})' for of in ("A[v0, v2]", "B[v2, v1]")
    ]
    part = (f"C | S {{m}}, S {{m}}, R {{m}} | C[v0, v1] = T.{out}(0) | "
            f"C[v0, v1] = C[v0, v1] + {read[0]} * {read[1]}")  # fmt: skip
    arguments = [f"A ({{m}},{{m}}) {dtype}", f"B ({{m}},{{m}}) {dtype}", f"C ({{m}},{{m}}) {out}"]
    return Kind(f"product {dtype} to {out}", arguments, [part], lambda m, k: 2.0 * m**3, dtype,
                (*_EACH, "across threads"), is_product=True)  # fmt: skip


def _row(name: str, first: str, step: str, operations: float, dtype: str = "float32") -> Kind:
    part = f"B | S {{m}}, R {{k}} | B[v0] = {first} | B[v0] = {step}"
    return Kind(name, [f"A ({{m}},{{k}}) {dtype}", f"B ({{m}},) {dtype}"], [part],
                lambda m, k: operations * m * k, dtype, _REDUCED)  # fmt: skip


def _map(name: str, value: str, operations: float, dtype: str = "float32") -> Kind:
    part = f"B | S {{m}}, S {{k}} |  | B[v0, v1] = {value}"
    return Kind(name, [f"A ({{m}},{{k}}) {dtype}", f"B ({{m}},{{k}}) {dtype}"], [part],
                lambda m, k: operations * m * k, dtype)  # fmt: skip


def _lower(m: int, k: int) -> float:
    return sum(min(row + 1, k) for row in range(min(m, k))) + max(0, m - k) * k


_AB = ("A ({m},{k}) float32", "B ({m},{k}) float32")
_SOFTMAX = (
    *_alloc("X", "Y"),
    'X | S {m}, R {k} | X[v0] = T.min_value("float32") | X[v0] = T.max(X[v0], A[v0, v1])',
    "Y | S {m}, R {k} | Y[v0] = T.float32(0) | Y[v0] = Y[v0] + T.exp(A[v0, v1] - X[v0])",
    "B | S {m}, S {k} |  | B[v0, v1] = T.exp(A[v0, v1] - X[v0]) / Y[v0]",
)
_NORM = (
    *_alloc("X", "Y"),
    "X | S {m}, R {k} | X[v0] = T.float32(0) | X[v0] = X[v0] + A[v0, v1]",
    "Y | S {m}, R {k} | Y[v0] = T.float32(0) | Y[v0] = Y[v0] + A[v0, v1] * A[v0, v1]",
    "B | S {m}, S {k} |  | B[v0, v1] = (A[v0, v1] - X[v0]) * T.rsqrt(Y[v0] + T.float32(1))",
)
_ARGMAX = (
    *_alloc("X"),
    'B | S {m}, R {k} | X[v0] = T.min_value("float32"); B[v0] = -1 | '
    "B[v0] = T.Select(X[v0] >= A[v0, v1], B[v0], v1) | X[v0] = T.max(X[v0], A[v0, v1])",
)

KINDS: tuple[Kind, ...] = (
    Kind("chain of 4", _AB, [_chain(4)], lambda m, k: 4 * m * k),
    Kind("chain of 40", _AB, [_chain(40)], lambda m, k: 40 * m * k),
    _map("exponential", "T.exp(A[v0, v1])", 1),
    _map("half maximum", "T.max(A[v0, v1] * A[v0, v1], T.float16(0))", 2, "float16"),
    _map("byte sum", "A[v0, v1] + A[v0, v1] * A[v0, v1]", 2, "int8"),
    _map("integer sum", "A[v0, v1] + A[v0, v1] * A[v0, v1]", 2, "int32"),
    _map("double", "A[v0, v1] * A[v0, v1]", 1, "float64"),
    _map("padding", "T.if_then_else(1 <= v1, A[v0, v1 - 1], T.float32(0))", 0),
    _row("row sum", "T.float32(0)", "B[v0] + A[v0, v1]", 1),
    _row("row maximum", 'T.min_value("float32")', "T.max(B[v0], A[v0, v1])", 1),
    _row("row of squares", "T.float16(0)", "B[v0] + A[v0, v1] * A[v0, v1]", 2, "float16"),
    _row("row of integers", "T.int32(0)", "B[v0] + A[v0, v1]", 1, "int32"),
    Kind("column sum", ("A ({m},{k}) float32", "B ({k},) float32"),
         ["B | S {k}, R {m} | B[v0] = T.float32(0) | B[v0] = B[v0] + A[v1, v0]"],
         lambda m, k: m * k, styles=_REDUCED),
    Kind("whole sum", ("A ({m},{k}) float32", "B (1,) float32"),
         ["B | S 1, R {m}, R {k} | B[v0] = T.float32(0) | B[v0] = B[v0] + A[v1, v2]"],
         lambda m, k: m * k, styles=_REDUCED),
    Kind("argument of maximum", ("A ({m},{k}) float32", "B ({m},) int32"), _ARGMAX,
         lambda m, k: m * k, styles=("as written", "threads", "tiled")),
    Kind("scan", _AB, ["for i in range({m}):\n    for j in range({k}):\n        B[i, j] = "
         "T.if_then_else(j == 0, T.float32(0), B[i, j - 1]) + A[i, j]"],
         lambda m, k: m * k, styles=_PLAIN),
    Kind("first value before", ("A ({m},{k}) float32", "B ({m},) float32"),
         ["for i in range({m}):\n    B[i] = T.float32(0)\n    for j in range({k}):\n"
          "        B[i] = B[i] + A[i, j]"], lambda m, k: m * k, styles=_PLAIN),
    Kind("scan of rows by blocks", _AB,
         ['for i in T.thread_binding({m}, thread="blockIdx.x"):\n    for j in range({k}):\n'
          "        B[i, j] = T.if_then_else(j == 0, T.float32(0), B[i, j - 1]) + A[i, j]"],
         lambda m, k: m * k, styles=("as written for GPUs",)),
    Kind("gather", ("A ({m},{k}) float32", "J ({m},) int32", "B ({m},{k}) float32"),
         ["B | S {m}, S {k} |  | B[v0, v1] = A[J[v0], v1]"], lambda m, k: 0,
         moved_at_least=lambda m, k: 4 * m + 4 * k + 4 * m * k),
    Kind("scatter", ("A ({m},{k}) float32", "J ({m},) int32", "B ({m},{k}) float32"),
         ["for i in range({m}):\n    for j in range({k}):\n        B[J[i], j] = A[i, j]"],
         lambda m, k: 0, styles=_PLAIN, moved_at_least=lambda m, k: 4 * m + 4 * k + 4 * m * k),
    Kind("transpose", ("A ({m},{k}) float32", "B ({k},{m}) float32"),
         ["B | S {k}, S {m} |  | B[v0, v1] = A[v1, v0]"], lambda m, k: 0),
    Kind("softmax", _AB, _SOFTMAX, lambda m, k: 5 * m * k, styles=_EACH),
    Kind("layer norm", _AB, _NORM, lambda m, k: 5 * m * k, styles=_EACH),
    Kind("triangle", _AB, ["for i in range({m}):\n    for j in range({k}):\n        if j <= i:\n"
         "            B[i, j] = A[i, j] * A[i, j]"],
         lambda m, k: _lower(m, k),
         styles=_PLAIN,
         moved_at_least=lambda m, k: 8 * _lower(m, k)),
    Kind("view", _AB, ['flat = T.decl_buffer(({m} * {k},), "float32", data=A.data)\n'
         "for i in range({m} * {k}):\n    B[i // {k}, i % {k}] = flat[i] * T.float32(2)"],
         lambda m, k: m * k, styles=_PLAIN),
    Kind("vectors", ("A ({m}*{k}*4,) float32", "B ({m}*{k}*4,) float32"),
         ["for i in range({m} * {k}):\n    B[T.Ramp(i * 4, 1, 4)] = A[T.Ramp(i * 4, 1, 4)] * "
          "T.Broadcast(T.float32(2), 4)"], lambda m, k: 4 * m * k, styles=_PLAIN),
    Kind("vectors of threads", ("A ({m}*{k}*4,) float32", "B ({m}*{k}*4,) float32"),
         ['for i in T.thread_binding({m}, thread="blockIdx.x"):\n'
          '    for j in T.thread_binding({k}, thread="threadIdx.x"):\n'
          "        B[T.Ramp(i * {k} * 4 + j * 4, 1, 4)] = A[T.Ramp(i * {k} * 4 + j * 4, 1, 4)] * "
          "T.Broadcast(T.float32(2), 4)"], lambda m, k: 4 * m * k,
         styles=("as written for GPUs",)),
    Kind("symbolic rows", _AB, ["n = T.int32()", 'A = T.match_buffer(a, (n, {k}), "float32")',
         'B = T.match_buffer(b, (n, {k}), "float32")',
         "B | S n, S {k} |  | B[v0, v1] = A[v0, v1] * A[v0, v1]"], lambda m, k: m * k,
         styles=("as written, n given", "as written")),
    _product("float32", "float32"), _product("float16", "float16"), _product("float16", "float32"),
    _product("int8", "int32"), _product("int32", "int32"), _product("float64", "float64"),
    Kind("convolution", ("A ({m}+2,{m}+2,16) float32", "W (3,3,16) float32", "B ({m},{m}) float32"),
         ["B | S {m}, S {m}, R 3, R 3, R 16 | B[v0, v1] = T.float32(0) | B[v0, v1] = B[v0, v1] + "
          "A[v0 + v2, v1 + v3, v4] * W[v2, v3, v4]"], lambda m, k: 288 * m * m, is_product=True),
    Kind("pooling", ("A ({m}*2,{m}*2) float32", "B ({m},{m}) float32"),
         ['B | S {m}, S {m}, R 2, R 2 | B[v0, v1] = T.min_value("float32") | B[v0, v1] = '
          "T.max(B[v0, v1], A[v0 * 2 + v2, v1 * 2 + v3])"], lambda m, k: 4 * m * m,
         is_product=True, styles=_REDUCED),
)  # fmt: skip
