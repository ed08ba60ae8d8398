"""Operation counts of a store's value."""

from __future__ import annotations

from cdmpp.programs.loops.expr import Expr

GROUPS = {
    "add": "addsub", "sub": "addsub", "mul": "mul",
    "div": "divmod", "mod": "divmod", "floordiv": "divmod", "floormod": "divmod",
    "min": "cmp", "max": "cmp", "eq": "cmp", "ne": "cmp",
    "lt": "cmp", "le": "cmp", "gt": "cmp", "ge": "cmp",
    "and": "bool_op", "or": "bool_op", "not": "bool_op", "select": "select_op",
}  # fmt: skip
#: Calls with side effects or an unknown body; every other intrinsic counts as a math function.
OPAQUE_CALLS = ("tir.call_extern", "tir.call_packed", "tir.call_llvm", "tir.tvm_", "tir.tvm.")

_GUARD = "tir.if_then_else"


def op_counts(value: Expr) -> dict[str, int]:
    """Counts the operations in one evaluation of `value`, as the original counts them.

    Index arithmetic of the loads inside is counted (as integer operations), both branches of a
    select are, and a cast is not.

    Returns:
        Counts by names of `cdmpp.programs.schema.OPERATION_KEYS`; kinds without one are absent.
    """
    counts: dict[str, int] = {}
    pending = [value]
    while pending:
        expr = pending.pop()
        args = expr.args
        if args:
            pending.extend(args)
        op = expr.op
        group = GROUPS.get(op)
        if group is not None:
            if group not in ("bool_op", "select_op"):
                group = f"{_domain(args[0].dtype)}_{group}"
            counts[group] = counts.get(group, 0) + 1
        elif op == "call":
            opaque = str(expr.value).startswith(OPAQUE_CALLS)
            group = f"{_domain(expr.dtype)}_{'other_func' if opaque else 'math_func'}"
            counts[group] = counts.get(group, 0) + 1
    return counts


def guard_count(value: Expr) -> int:
    """Returns how many conditional reads (`if_then_else`, as of a padded input) are in a value."""
    count = 0
    pending = [value]
    while pending:
        expr = pending.pop()
        count += expr.op == "call" and expr.value == _GUARD
        pending.extend([argument for argument in expr.args if argument.args])
    return count


def _domain(dtype: str) -> str:
    return "float" if dtype.startswith(("float", "bfloat")) else "int"
