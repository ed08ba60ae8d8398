"""Weights that MetaSchedule packs once, before the program runs and is timed."""

from __future__ import annotations

from typing import Any

from tvm_helper.compat import block_passes, s_tir, tirx

#: Attribute of a function: indices of arguments whose layout a schedule may change.
LAYOUT_FREE = "layout_free_buffers"
#: Annotation of a block that packs a weight.
_PACKING = "meta_schedule.layout_rewrite_preproc"


def runnable(module: Any) -> Any:
    """Returns a scheduled module in the form that is compiled and timed: without the blocks that
    pack weights, and with packed weights of fixed layout as arguments. A module without packed
    weights is returned unchanged.
    """
    packed = [var for var, one in module.functions.items() if _is_free(one) and _packs(one)]
    if not packed:
        return module
    plain = block_passes.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module).clone()
    for var in packed:
        plain.update_func(var, plain[var].without_attr(LAYOUT_FREE))
    return plain


def _is_free(function: Any) -> bool:
    return function.attrs is not None and LAYOUT_FREE in function.attrs


def _packs(function: Any) -> bool:
    """Returns whether a block of the function packs weights. TVM leaves an empty block when it
    removes the packing.
    """
    if not isinstance(function.body, s_tir.SBlockRealize):
        return False
    body = function.body.block.body
    for statement in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        inner = statement
        while isinstance(inner, tirx.For):
            inner = inner.body
        if isinstance(inner, s_tir.SBlockRealize) and _PACKING in inner.block.annotations:
            return not isinstance(inner.block.body, tirx.Evaluate)
    return False
