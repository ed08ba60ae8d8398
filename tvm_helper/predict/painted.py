"""Text of a program, with the line of every leaf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tvm_helper.compat import s_tir, tirx
from tvm_helper.tir.loop_tree import child_statements, lowering_passes
from tvm_helper.tir.packing import runnable

_MARK = "@leaf"
_MARKED = re.compile(rf"(.*?)\s*# {_MARK}(\d+)$")
#: Starts of lines that only a parser needs.
_NO_PROGRAM = ("# from tvm", "from tvm", "@I.ir_module", "class Module:")


@dataclass(frozen=True)
class PaintedLine:
    """A line of TVMScript.

    Attributes:
        leaf: number of the leaf whose store is in the line, from 1; None without a store.
    """

    text: str
    leaf: int | None = None


@dataclass(frozen=True)
class PaintedScript:
    """Text of a program.

    Attributes:
        lines: lines, in order.
        blocks: name of the block around each leaf; None outside of blocks.
        is_lowered: whether the text is that of the lowered program, because the stores of the
            original program do not correspond to its leaves.
    """

    lines: tuple[PaintedLine, ...]
    blocks: tuple[str | None, ...]
    is_lowered: bool


def painted_script(module: Any, leaves: int) -> PaintedScript | None:
    """Returns a program's text with its leaves; None if the leaves cannot be found in it.

    Args:
        module: an `IRModule` with one function `main`.
        leaves: number of leaves of its compact AST.
    """
    module = runnable(module)
    for is_lowered in (False, True):
        shown = lowering_passes()(module) if is_lowered else module
        stores = list(_stores(shown["main"].body, None))
        marks = {store: f"{_MARK}{number}" for number, (store, _) in enumerate(stores, start=1)}
        if len(stores) != leaves or len(marks) != leaves:
            continue
        lines = tuple(map(_line, _program_lines(shown.script(obj_to_annotate=marks))))
        if sum(line.leaf is not None for line in lines) == leaves:
            return PaintedScript(lines, tuple(block for _, block in stores), is_lowered)
    return None


def _program_lines(text: str) -> list[str]:
    lines = [one for one in text.splitlines() if not one.strip().startswith(_NO_PROGRAM)]
    lines = lines[next((place for place, one in enumerate(lines) if one.strip()), 0) :]
    indent = min((len(one) - len(one.lstrip()) for one in lines if one.strip()), default=0)
    return [one[indent:] for one in lines]


def _line(text: str) -> PaintedLine:
    found = _MARKED.fullmatch(text)
    return PaintedLine(found[1], int(found[2])) if found else PaintedLine(text)


def _stores(statement: Any, block: str | None) -> Iterator[tuple[Any, str | None]]:
    """Yields every store with the block around it, in the order of the leaves: the initialisation
    of a reduction precedes its update.
    """
    if isinstance(statement, tirx.BufferStore):
        yield statement, block
    elif isinstance(statement, s_tir.SBlockRealize):
        inner = statement.block
        for part in (inner.init, inner.body):
            if part is not None:
                yield from _stores(part, str(inner.name_hint))
    else:
        for part in child_statements(statement):
            yield from _stores(part, block)
