"""Loop trees to compact ASTs: native where that can be had, by the Python reference otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from cdmpp.errors import ReplayError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.programs.featurise import outcomes
from cdmpp.programs.leaves.tree import compact_ast
from cdmpp.programs.loops.loop_tree import LoopTree
from cdmpp.programs.native import featurise_trees, native_library


def compact_asts(trees: Sequence[LoopTree]) -> list[CompactAst | ReplayError]:
    """Returns the compact AST of every program, or why there is none.

    Programs that the native code declines (numbers above 64 bits, loops that do not start at 0) are
    left to the reference. The results are the same; `valid` is about extents only, as in
    `cdmpp.programs.leaves.tree.compact_ast`.
    """
    library = native_library()
    if library is None:
        return [_by_reference(tree) for tree in trees]
    results = outcomes(featurise_trees(trees, library))
    return [
        _by_reference(tree) if result is None else result
        for tree, result in zip(trees, results, strict=True)
    ]


def _by_reference(tree: LoopTree) -> CompactAst | ReplayError:
    try:
        return compact_ast(tree)
    except RecursionError:
        return ReplayError("expression nested too deeply")
