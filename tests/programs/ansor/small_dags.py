"""Small computations for tests: built by hand, no file needed."""

from __future__ import annotations

from cdmpp.programs.ansor.dag import Axis, Dag, DagOp, Reduction
from cdmpp.programs.loops.expr import Buffer, Expr, int_var, load

FLOAT = "float32"


def matmul_relu(rows: int = 64, columns: int = 32, depth: int = 48) -> Dag:
    """Returns stages 0 A, 1 B, 2 C = A x B, 3 D = max(C, 0)."""
    a, b = Buffer("A", FLOAT, (rows, depth)), Buffer("B", FLOAT, (depth, columns))
    c, d = Buffer("C", FLOAT, (rows, columns)), Buffer("D", FLOAT, (rows, columns))
    i, j, k = (int_var(name) for name in "ijk")
    product = Expr("mul", FLOAT, (load(a, (i, k)), load(b, (k, j))))
    zero = Expr("const", FLOAT, (), 0.0)
    left, right = Expr("var", FLOAT, (), "x"), Expr("var", FLOAT, (), "y")
    total = Reduction("sum", ("x",), ("y",), (Expr("add", FLOAT, (left, right)),), (zero,))
    relu = Expr("max", FLOAT, (load(c, (int_var("i1"), int_var("j1"))), zero))
    ops = (
        DagOp("A", "placeholder", (a,)),
        DagOp("B", "placeholder", (b,)),
        DagOp(
            "C", "compute", (c,), (Axis("i", rows), Axis("j", columns)), (Axis("k", depth),),
            (product,), total, (a, b),
        ),
        DagOp(
            "D", "compute", (d,), (Axis("i1", rows), Axis("j1", columns)), (), (relu,), None, (c,)
        ),
    )  # fmt: skip
    return Dag(ops, (3,), (a, b, d))
