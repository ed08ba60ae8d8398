"""TVMScript as TVM up to 0.22 prints it, brought to the names of this TVM."""

from __future__ import annotations

import re

#: What names of `T` are called in this TVM.
RENAMED = {
    "block": "sblock", "alloc_buffer": "sblock_alloc_buffer", "block_attr": "sblock_attr",
}  # fmt: skip
#: All of it in a sentence.
RENAMES = (
    "in this TVM tvm.script.tir is tvm.script.tirx, T.block is T.sblock, T.block_attr is "
    "T.sblock_attr, T.alloc_buffer is T.sblock_alloc_buffer, and @T.prim_func takes s_tir=True"
)
_IMPORT = re.compile(r"^[ \t]*(#[ \t]*)?from tvm\.script import (?:ir as I, )?tir as T\b.*$", re.M)
_ANY_IMPORT = re.compile(r"^[ \t]*(#[ \t]*)?(from tvm\.script import|import tvm)\b", re.M)
_NAME = re.compile(rf"\bT\.({'|'.join(RENAMED)})(?=\()")
_PLAIN = re.compile(r"@T\.prim_func(?!\w)(\((?P<options>[^)]*)\))?")


def is_older(text: str) -> bool:
    """Whether a text is TVMScript of an older TVM: it imports `tir`, in a comment or not, or has
    blocks under their old name and imports nothing.
    """
    if _IMPORT.search(text):
        return True
    return "T.block(" in text and _ANY_IMPORT.search(text) is None


def renamed(text: str) -> str:
    """Returns an older script with the names of this TVM; its lines stay where they are."""
    text = _IMPORT.sub("from tvm.script import tirx as T", text)
    text = _NAME.sub(lambda found: f"T.{RENAMED[found[1]]}", text)
    return _PLAIN.sub(_decorator, text)


def hint(sentence: str) -> str:
    """Returns what an error of TVM's parser has to do with older names; empty where nothing."""
    for old, new in RENAMED.items():
        if f"no attribute '{old}'" in sentence:
            return f"T.{old} is T.{new} in this TVM"
    is_old = "import name 'tir'" in sentence or "name 'T' is not defined" in sentence
    return RENAMES if is_old else ""


def _decorator(found: re.Match[str]) -> str:
    options = found["options"] or ""
    if "s_tir" in options:
        return found[0]
    return f"@T.prim_func({options}, s_tir=True)" if options else "@T.prim_func(s_tir=True)"
