"""Symbolic sizes of programs, and their replacement by numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tvm_ffi import structural_map, structural_walk

from cdmpp.errors import UsageError
from tvm_helper.compat import tirx, tvm

_FOLDED: dict[type, Callable[[int, int], int]] = {
    tirx.Add: operator.add, tirx.Sub: operator.sub, tirx.Mul: operator.mul,
    tirx.FloorDiv: operator.floordiv, tirx.FloorMod: operator.mod, tirx.Min: min, tirx.Max: max,
}  # fmt: skip


def symbolic_sizes(module: Any) -> list[str]:
    """Returns the names of a program's symbolic sizes: variables in shapes and strides of its
    arguments, and integer arguments in extents of its loops.

    Args:
        module: an `IRModule` with `main`.
    """
    return list(_sizes(module["main"]))


def with_sizes(module: Any, sizes: Mapping[str, int]) -> Any:
    """Returns the program with numbers instead of symbolic sizes; ignores other names.

    Raises:
        UsageError: a number exceeds the type of its size.
    """
    function = module["main"]
    found = {name: var for name, var in _sizes(function).items() if name in sizes}
    if not found:
        return module
    for name, var in found.items():
        largest = 2 ** (tvm.DataType(str(var.ty)).bits - 1) - 1
        if sizes[name] > largest:
            raise UsageError(
                f"--set {name}={sizes[name]}: {name} is an {var.ty}; expected at most {largest:,}"
            )
    numbers = {var: tirx.IntImm(str(var.ty), sizes[name]) for name, var in found.items()}
    parameters = {var: number for var, number in numbers.items() if var in function.params}
    if parameters:
        function = function.specialize(parameters)
    function = structural_map(
        function,
        [(tirx.Var, lambda var: numbers.get(var, var)), *((kind, _folded) for kind in _FOLDED)],
    )
    return tvm.IRModule({"main": function})


def _folded(expr: Any) -> Any:
    """Returns the result of an operation on two constants; other operations stay unchanged."""
    if not (isinstance(expr.a, tirx.IntImm) and isinstance(expr.b, tirx.IntImm)):
        return expr
    return tirx.IntImm(str(expr.ty), _FOLDED[type(expr)](int(expr.a.value), int(expr.b.value)))


def _sizes(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for parameter in function.params:
        if isinstance(parameter.ty, tirx.BufferType):
            for extent in (*parameter.ty.shape, *parameter.ty.strides):
                found |= _variables(extent)
    scalars = {str(one.name): one for one in function.params if str(one.ty).startswith("int")}
    if scalars:
        extents: list[Any] = []

        def keep(loop: Any) -> None:
            extents.append(loop.extent)

        structural_walk(function, (tirx.For, keep))
        used = {name for extent in extents for name in _variables(extent)}
        found |= {name: var for name, var in scalars.items() if name in used}
    return found


def _variables(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def keep(var: Any) -> None:
        found[str(var.name)] = var

    structural_walk(value, (tirx.Var, keep))
    return found
