"""Converts TVMScript of TVM up to 0.22 to the names of the supported TVM."""

from __future__ import annotations

import ast
import re

#: Older name in `T` -> name in the supported TVM.
RENAMED = {
    "block": "sblock", "alloc_buffer": "sblock_alloc_buffer", "block_attr": "sblock_attr",
}  # fmt: skip
#: All renames in one sentence.
RENAMES = (
    "in this TVM tvm.script.tir is tvm.script.tirx, T.block is T.sblock, T.block_attr is "
    "T.sblock_attr, T.alloc_buffer is T.sblock_alloc_buffer, and @T.prim_func takes s_tir=True"
)
#: Note on programs from older scripts.
OLDER_NOTE = f"older TVMScript; {RENAMES}"
_IMPORT = re.compile(
    r"^[ \t]*(#[ \t]*)?from tvm\.script(\.parser)? import (\w+ as \w+, )*tir as T\b.*$", re.M
)
_ANY_IMPORT = re.compile(r"^[ \t]*(#[ \t]*)?(from tvm\.script import|import tvm)\b", re.M)
_NAME = re.compile(rf"\bT\.({'|'.join(RENAMED)})(?=\()")
#: The type of a buffer up to TVM 0.10, and the definition of a named value.
_BUFFER = re.compile(r"\bT\.Buffer\[((?:[^\[\]]|\[[^\[\]]*\])*)\]")
_LET = re.compile(
    r"^([ \t]+\w+): (T\.(?:u?int|float|bfloat|bool|handle)\w*(?:\([^)]*\))?) = ", re.M
)
_ALLOCATE = re.compile(r'\bT\.allocate\((\[[^\]]*\]), ("[^"]*"), ("[^"]*")\)')
_DATA = re.compile(r"(?<== )T\.Buffer\((.*?)\bdata=(\w+)(?:\.data)?\b")
_MODULE = re.compile(r"@tvm\.script\.ir_module\b")
_DEFINES = ("T.prim_func", "I.ir_module")
_PLAIN = re.compile(r"@T\.prim_func(?!\w)(\((?P<options>[^)]*)\))?")


def is_older(text: str) -> bool:
    """Returns whether a text is TVMScript of an older TVM.

    It then imports `tir`, possibly in a comment, or has blocks with the old name and no imports.
    """
    if _IMPORT.search(text):
        return True
    return "T.block(" in text and _ANY_IMPORT.search(text) is None


def renamed(text: str) -> str:
    """Returns an older script with the names of the supported TVM; line numbers are unchanged."""
    text = _IMPORT.sub("from tvm.script import tirx as T", text)
    text = _NAME.sub(lambda found: f"T.{RENAMED[found[1]]}", text)
    text = _BUFFER.sub(r"T.Buffer(\1)", _MODULE.sub("@I.ir_module", text))
    text = _ALLOCATE.sub(r"T.alloc_buffer(\1, \2, scope=\3)", text)
    text = _DATA.sub(r"T.decl_buffer(\1data=\2.data", text)
    return _PLAIN.sub(_decorator, _LET.sub(r"\1: T.let[\2] = ", text))


def definitions(text: str) -> list[tuple[str, str]]:
    """Returns (name, script) of each definition; the script has only this definition's lines.

    Line numbers are unchanged. Relax functions and code that uses the definitions are left out. A
    text that is not Python has no definitions.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or not _is_defined(node):
            continue
        lines = text.splitlines()
        for other in (*tree.body, *(node.body if isinstance(node, ast.ClassDef) else ())):
            is_kept = not isinstance(other, ast.FunctionDef) or _is_defined(other)
            if other is not node and not (other in node.body and is_kept):
                first, last = _lines(other)
                lines[first:last] = [""] * (last - first)
        found.append((node.name, "\n".join(lines)))
    return found


def _is_defined(node: ast.FunctionDef | ast.ClassDef) -> bool:
    return any(ast.unparse(one).startswith(_DEFINES) for one in node.decorator_list)


def _lines(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", ())
    first = min(part.lineno for part in (node, *decorators))
    return first - 1, node.end_lineno or first


def hint(sentence: str) -> str:
    """Returns a hint on older names for an error of TVM's parser; empty if there is none."""
    for old, new in RENAMED.items():
        if f"no attribute '{old}'" in sentence:
            return f"T.{old} is T.{new} in this TVM"
    if "TIR is ill-formed: buffer" in sentence and "without a prior" in sentence:
        return "in this TVM `x: T.int32 = ...` makes a buffer; a value is `x: T.let[T.int32] = ...`"
    is_old = "import name 'tir'" in sentence or "name 'T' is not defined" in sentence
    return RENAMES if is_old else ""


def _decorator(found: re.Match[str]) -> str:
    options = found["options"] or ""
    if "s_tir" in options:
        return found[0]
    return f"@T.prim_func({options}, s_tir=True)" if options else "@T.prim_func(s_tir=True)"
