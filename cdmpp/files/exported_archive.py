"""Checks that opening a file of torch.export.save runs no code from the file.

Without a check, torch unpickles tensors, constants and inputs that are marked as pickled, loads
compiled libraries, passes size expressions to `eval` and guards to `exec`, and calls any function
below `torch` that a node names. The networks that cdmpp reads need none of this.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError

#: Allowed files of an archive, below its folder: tensors, a graph and versions.
_FILES = re.compile(
    r"data/weights/weight_\d+|data/constants/tensor_\d+|data/sample_inputs/model\.pt"
    r"|data/(weights/model_weights|constants/model_constants)_config\.json|models/model\.json"
    r"|archive_format|archive_version|byteorder|version|\.data/\w+"
)
_LARGEST_GRAPH = 1 << 28
#: Functions that a node may call: operators, except those that open files or call an argument.
_TARGET = re.compile(
    r"torch\.ops\.(aten|prims|prim|higher_order)\.(?!__|from_file\b|save\b|load\b)\w+(\.\w+)?"
    r"|_operator\.(?!call\b|methodcaller\b|attrgetter\b|itemgetter\b|__)\w+"
    r"|math\.\w+|torch\.sym_\w+"
)
_RESOLVED = ("torch", "_operator", "math", "#")
#: Functions that a size expression may call.
_FUNCTIONS = frozenset((
    "Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Max", "Min", "Abs", "Eq", "Ne",
    "Ge", "Gt", "Le", "Lt", "And", "Or", "Not", "Piecewise", "floor", "ceiling", "FloorDiv",
    "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt",
    "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
    "TruncToFloat", "TruncToInt", "IsNonOverlappingAndDenseIndicator", "RoundToInt",
    "RoundDecimal", "ToFloat", "Identity",
))  # fmt: skip
_SYMBOL = re.compile(r"z?[suf]+\d+")
_ARITHMETIC = (
    ast.Expression, ast.Expr, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator,
    ast.unaryop, ast.boolop, ast.cmpop, ast.Load, ast.keyword, ast.Tuple,
)  # fmt: skip
_LARGEST_TEXT, _LARGEST_POWER = 10_000, 64
#: Methods of an input that a guard may call.
_ASKED = ("size", "stride", "storage_offset", "dim", "numel")


def check_archive(path: Path) -> None:
    """Checks that opening a saved program only builds tensors and a graph.

    Raises:
        DataError: opening it would do more, or the file is not a saved program.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            reason = next(_reasons(archive), None)
    except Exception as error:  # encrypted or damaged files, values of other types
        reason = str(error) or type(error).__name__
    if reason is not None:
        raise DataError(
            f"{path} is not an exported program that can be opened safely ({reason}); expected a "
            "file written by torch.export.save for a network of plain tensors and torch's own "
            "operators"
        )


def _reasons(archive: zipfile.ZipFile) -> Iterator[str]:
    """Yields the reasons why an archive is rejected."""
    names = {name.partition("/")[2]: name for name in archive.namelist()}
    yield from (f"it contains {name[:60]!r}" for name in names if not _FILES.fullmatch(name))
    if len(names) != len(archive.namelist()):
        yield "a name occurs twice"
    if "models/model.json" not in names:
        yield "it contains no graph"
    for name, entry in names.items():
        if name.endswith(".json"):
            if archive.getinfo(entry).file_size > _LARGEST_GRAPH:
                yield f"{name} is larger than {_LARGEST_GRAPH >> 20} MiB"
            yield from _values(json.loads(archive.read(entry)))
        elif name.endswith(".pt"):
            yield from _inputs(archive.read(entry))


def _inputs(content: bytes) -> Iterator[str]:
    import torch

    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:  # torch raises its own kinds
        yield f"inputs that are not plain tensors: {type(error).__name__}"


def _values(value: Any) -> Iterator[str]:
    """Yields the reasons why a JSON value is rejected, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value
        for key, one in value.items() if isinstance(value, dict) else ():
            if key == "use_pickle" and one:
                yield "a pickled tensor"
            elif key in ("target", "as_operator") and isinstance(one, str):
                if one.startswith(_RESOLVED) and not _TARGET.fullmatch(one):
                    yield f"a call of {one[:60]!r}"
            elif key == "expr_str" and not _is_arithmetic(one, is_guard=False):
                yield f"the size {one[:60]!r}"
            elif key == "guards_code":
                wrong = [text for text in one if not _is_arithmetic(text, is_guard=True)]
                yield from (f"the guard {text[:60]!r}" for text in wrong)
        waiting = [one for one in waiting if isinstance(one, dict | list)]


def _is_arithmetic(text: str, *, is_guard: bool) -> bool:
    """Whether a text is arithmetic on numbers and sizes, without any other name or call."""
    if len(text) > _LARGEST_TEXT:
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, MemoryError):
        return False
    return all(_is_plain(node, is_guard) for node in ast.walk(tree))


def _is_plain(node: ast.AST, is_guard: bool) -> bool:
    match node:
        case ast.BinOp(op=ast.Pow(), right=right):
            return isinstance(right, ast.Constant) and _is_small(right.value)
        case ast.Constant(value=str() as text):
            return re.fullmatch(r"\w+", text) is not None
        case ast.Constant(value=value):
            return isinstance(value, bool | float) or (type(value) is int and abs(value) < 2**63)
        case ast.Call(func=ast.Name(id=name)):
            return name in _FUNCTIONS
        case ast.Call(func=ast.Attribute(attr=name), args=arguments, keywords=[]):
            return is_guard and name in _ASKED and len(arguments) <= 1
        case ast.Name(id=name):
            known = name in _FUNCTIONS or _SYMBOL.fullmatch(name) is not None
            return known or (is_guard and name == "L")
        case ast.Attribute(attr=name):
            return is_guard and name in _ASKED
        case ast.Subscript():
            return is_guard
    return isinstance(node, _ARITHMETIC)


def _is_small(value: object) -> bool:
    return isinstance(value, int) and abs(value) <= _LARGEST_POWER
