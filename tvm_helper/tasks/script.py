"""Programs as text (TVMScript or TIR JSON), checked against allow-lists and then read by TVM; none
of their code is executed.

TVM's parser evaluates the expressions of a script as Python, including strings in signatures and
with all builtin functions. Therefore a script is first parsed to a Python syntax tree. Only forms
and names of the lists below are allowed, and TVM gets the checked tree instead of the original
text.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
from dataclasses import replace
from typing import Any

from cdmpp.errors import DataError, last_line
from cdmpp.programs.older_script import OLDER_NOTE, hint, is_older, renamed
from tvm_helper.compat import tvm
from tvm_helper.tir.named_program import NamedProgram, programs_of

_HEADER = ("from tvm.script import tirx as T", "from tvm.script import ir as I")
#: Imports that a script may contain. They are dropped: the parser gets T and I directly.
_IMPORTS = frozenset((
    *_HEADER, "import tvm", "from tvm.tirx.layout import Axis",
    "from __future__ import annotations",
))  # fmt: skip
_STATEMENTS = (
    "Buffer Range alloc_buffer attr block_attr bind buffer_store decl_buffer env_thread evaluate "
    "func_attr grid init launch_thread match_buffer parallel reads sblock sblock_alloc_buffer "
    "sblock_attr serial thread_binding unroll vectorized where writes"
)
_OPERATIONS = (
    "Add And Broadcast Cast Div EQ FloorDiv FloorMod GE GT LE LT Max Min Mod Mul NE Not Or Ramp "
    "Select Shuffle Sub abs acos acosh asin asinh assume atan atan2 atanh bitwise_and bitwise_not "
    "bitwise_or bitwise_xor bool boolean broadcast cast ceil ceildiv clz copysign cos cosh erf exp "
    "exp10 exp2 fabs floor floordiv floormod fma fmod handle hypot if_then_else infinity isfinite "
    "isinf isnan ldexp let likely log log10 log1p log2 max max_value min min_value nearbyint "
    "nextafter popcount pow q_multiply_shift ramp reinterpret round rsqrt shift_left shift_right "
    "sigmoid sin sinh sqrt tan tanh trunc truncdiv truncmod undef vscale"
)
_NAMES = frozenset(f"{_STATEMENTS} {_OPERATIONS}".split())
_TYPE = re.compile(r"(u?int|float|bfloat)[0-9][0-9a-z_]*")
_AXES = frozenset({"spatial", "reduce", "scan", "opaque", "remap"})
_PARTS = frozenset({"data", "strides", "elem_offset", "shape"})
#: Allowed strings in signatures, which TVM evaluates as expressions.
_SIGNATURE_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9]*([._][A-Za-z0-9]+)*")
#: Allowed node types of a program's graph; TVM could create other objects too.
_NODE = re.compile(
    r"None|int|float|bool|DataType|ffi\.(Array|Map|String|Shape)|(ir|prim|tirx|s_tir|target)\.\w+"
    r"|relax\.(\w+Type|expr\.ShapeExpr)"
)
#: Location and message of TVM's diagnostics.
_LINE, _SENTENCE = re.compile(r"^ *--> .*?:(\d+):\d+", re.M), re.compile(r"^error: (.*)$", re.M)
#: Message of TVM's well-formedness checks, which precedes the diagnostic.
_ILL_FORMED = re.compile(r"^Traceback: (TIR is ill-formed.*?)\.?$", re.M)
_CONSTANTS = (str, int, float, type(None))
_FORMS = (
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.While, ast.If, ast.With,
    ast.withitem, ast.Pass, ast.Name, ast.Load, ast.Store, ast.Constant, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Call, ast.keyword, ast.BinOp,
    ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.And, ast.Or, ast.Not, ast.Invert,
    ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd,
    ast.BitOr, ast.BitXor, ast.RShift, ast.cmpop, ast.arguments, ast.arg,
)  # fmt: skip


def read_script(text: str) -> list[NamedProgram]:
    """Returns the programs of a script without executing its code.

    Args:
        text: TVMScript printed by `module.script()` of this TVM or an older one: functions under
            `@T.prim_func` and classes under `@I.ir_module`.

    Raises:
        DataError: the text is not TVMScript, or contains other code.
    """
    found: dict[str, Any] = {}
    note = OLDER_NOTE if is_older(text) else ""
    for node in checked(renamed(text) if note else text):
        try:
            found[node.name] = _parsed(ast.unparse(node))
        except Exception as error:  # TVM's checks raise many types
            raise DataError(f"{node.name}: {_reason(error)}") from None
    programs = programs_of(found)
    if not programs:
        raise DataError("defines no tensor program; expected a function under @T.prim_func")
    return [replace(one, note=note) for one in programs]


def read_plain_script(text: str, name: str) -> list[NamedProgram]:
    """Returns the programs of a local script; a program that TVM cannot read has a `fault`.

    Args:
        name: name of the file, for faults.

    Raises:
        DataError: the script contains other code than TVMScript, or no program.
    """
    lines = text.splitlines()
    programs = []
    for node in checked(text):
        first = min(part.lineno for part in (node, *node.decorator_list))
        # Leading newlines make TVM report line numbers of the file.
        own = "\n" * (first - 1) + "\n".join(lines[first - 1 : node.end_lineno])
        try:
            programs += programs_of({node.name: _parsed(own)})
        except Exception as error:  # TVM's checks raise many types
            programs.append(NamedProgram(node.name, None, located(error, name)))
    if not programs:
        raise DataError("defines no tensor program; expected a function under @T.prim_func")
    return programs


def located(error: BaseException, name: str) -> str:
    """Returns TVM's error message for a script with its line: `FILE:LINE: message`."""
    text = str(error)
    why = _ILL_FORMED.search(text)
    at = None if why else _LINE.search(text)
    said = why or _SENTENCE.search(text)
    sentence = said[1][:300] if said else last_line(error)
    more = hint(sentence)
    return f"{name}{f':{at[1]}' if at else ''}: {sentence}{f' ({more})' if more else ''}"


def _parsed(text: str) -> Any:
    from tvm.script import parse
    from tvm.script.parser import ir as script_ir
    from tvm.script.parser import tirx as script_tirx

    return parse(text, extra_vars={"T": script_tirx, "I": script_ir})


def checked(text: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """Returns the definitions of a script after checking that it is plain TVMScript.

    Variables with names of Python builtins are renamed, so that TVM does not resolve them to the
    builtins.

    Raises:
        DataError: the script contains other code; the text has the line.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(
            f"is not TVMScript ({error}); expected the output of module.script()"
        ) from None
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and _is_store(n)}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    check = _Check(names)
    found = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            try:
                check.definition(node)
            except RecursionError:  # Python 3.13 parses deeper than it recurses
                raise DataError(f"{node.name}: its expressions are nested too deeply") from None
            found.append(node)
        elif not _is_prelude(node):
            raise _refusal(node)
    return found


def _returns(node: ast.FunctionDef) -> bool:
    """Whether a function has a return annotation other than None."""
    return node.returns is not None and ast.unparse(node.returns) != "None"


def _is_prelude(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Import | ast.ImportFrom) and ast.unparse(node) in _IMPORTS


class _Check:
    """Checker of definitions: rejects code that is not on the lists, and renames variables with
    names of builtins.

    Args:
        names: names that the script binds.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._renamed = {name: _fresh(name, names) for name in names if hasattr(builtins, name)}

    def definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        if not node.name.isidentifier() or node.name.startswith("__") or node.name in ("T", "I"):
            raise _refusal(node)
        decorators = [ast.unparse(one) for one in node.decorator_list]
        if isinstance(node, ast.ClassDef):
            if decorators != ["I.ir_module"] or node.bases or node.keywords:
                raise _refusal(node)
            for part in node.body:
                if not isinstance(part, ast.FunctionDef):
                    raise _refusal(part)
                self.definition(part)
            return
        arguments = node.args
        is_plain = not (
            arguments.posonlyargs or arguments.kwonlyargs or arguments.vararg or arguments.kwarg
            or arguments.defaults or arguments.kw_defaults or _returns(node)
            or getattr(node, "type_params", None)
        )  # fmt: skip
        if len(decorators) != 1 or not re.fullmatch(
            r"T\.prim_func(\((\w+=(True|False)(, )?)*\))?", decorators[0]
        ):
            raise _refusal(node)
        if not is_plain:
            raise _refusal(node)
        for argument in arguments.args:
            self._argument(argument)
        for part in node.body:
            self._visit(part)

    def _argument(self, argument: ast.arg) -> None:
        if argument.annotation is None or not self._is_free(argument.arg):
            raise _refusal(argument)
        self._annotation(argument.annotation)
        argument.arg = self._renamed.get(argument.arg, argument.arg)

    def _annotation(self, annotation: ast.expr) -> None:
        self._visit(annotation)
        for part in ast.walk(annotation):
            if (
                isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and not _SIGNATURE_TEXT.fullmatch(part.value)
            ):
                raise _refusal(part)

    def _visit(self, node: ast.AST) -> None:
        if not isinstance(node, _FORMS):
            raise _refusal(node)
        if isinstance(node, ast.AnnAssign):
            self._annotation(node.annotation)
        if isinstance(node, ast.Name):
            if not self._is_free(node.id) or node.id not in self._names:
                raise _refusal(node)
            node.id = self._renamed.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.For):
            self._loop(node)
        elif (isinstance(node, ast.keyword) and node.arg is None) or (
            isinstance(node, ast.Constant) and not isinstance(node.value, _CONSTANTS)
        ):
            raise _refusal(node)
        else:
            for part in ast.iter_child_nodes(node):
                self._visit(part)

    def _loop(self, node: ast.For) -> None:
        """Checks a loop. `range(...)` is allowed as its iterator, and nowhere else."""
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            if call.func.id != "range" or "range" in self._names:
                raise _refusal(call)
            parts: list[ast.AST] = [*call.args, *call.keywords]
        else:
            parts = [call]
        for part in [*parts, node.target, *node.body]:
            self._visit(part)
        if node.orelse:
            raise _refusal(node)

    def _attribute(self, node: ast.Attribute) -> None:
        """Checks an attribute: `T.NAME`, `T.axis.NAME` or a part of a buffer."""
        base = node.value
        if _is_store(node):
            raise _refusal(node)
        if isinstance(base, ast.Name) and base.id == "T":
            is_known = node.attr in _NAMES or _TYPE.fullmatch(node.attr) is not None
        elif ast.unparse(base) == "T.axis":
            is_known = node.attr in _AXES
        else:
            is_known = isinstance(base, ast.Name) and node.attr in _PARTS
            self._visit(base)
        if not is_known:
            raise _refusal(node)

    def _is_free(self, name: str) -> bool:
        return not name.startswith("__") and name not in ("T", "I")


def _is_store(node: ast.Name | ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _fresh(name: str, names: set[str]) -> str:
    while name in names or hasattr(builtins, name):
        name += "_"
    return name


def _refusal(node: ast.AST) -> DataError:
    line = getattr(node, "lineno", 0)
    try:
        what = ast.unparse(node).strip().splitlines()[0][:60]
    except (AttributeError, IndexError, RecursionError, ValueError):
        what = type(node).__name__
    return DataError(
        f"line {line}: `{what}` is not allowed in a script that is not run; expected plain "
        "TVMScript as module.script() prints it, or TIR JSON"
    )


def _reason(error: Exception) -> str:
    """Returns TVM's diagnostic, or else the last line of the error."""
    why = _ILL_FORMED.search(str(error))
    if why:
        return why[1][:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (said or lines[-1:] or [type(error).__name__])[0][:200]


def read_tir_json(text: str) -> list[NamedProgram]:
    """Returns the programs of a module or function written by `tvm.ir.save_json`.

    Raises:
        DataError: the text is not such JSON, or not a tensor program.
    """
    _check_nodes(text)
    try:
        value = tvm.ir.load_json(text)
    except Exception as error:  # TVM's reader raises many types
        raise DataError(f"is not TIR JSON of this TVM ({_reason(error)})") from None
    programs = programs_of({"main": value})
    if not programs:
        raise DataError(
            "is not a tensor program; expected tvm.ir.save_json of a PrimFunc or IRModule"
        )
    return programs


def _check_nodes(text: str) -> None:
    """Checks that a node graph has only nodes of programs.

    Raises:
        DataError: it has other nodes, or the text is not a node graph.
    """
    try:
        kinds = {node["type"] for node in json.loads(text)["nodes"]}
        strange = sorted(kind for kind in kinds if not _NODE.fullmatch(kind))
    except (ValueError, LookupError, TypeError, RecursionError):
        raise DataError("is not TIR JSON; expected the output of tvm.ir.save_json") from None
    if strange:
        raise DataError(f"its node {strange[0][:60]!r} is not allowed in a program")
