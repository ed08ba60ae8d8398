"""Weights that MetaSchedule may pack: it does so once, before the program runs and is timed."""

from __future__ import annotations

from typing import Any

from tvm_helper.compat import block_passes

#: Attribute of a function: the places of arguments whose layout a schedule may change.
LAYOUT_FREE = "layout_free_buffers"


def runnable(module: Any) -> Any:
    """Returns a scheduled module as it is compiled, run and timed: what packs weights is not part
    of it, and they are arguments in their packed form, whose layout is free no more. A module
    without such weights stays as it is.
    """
    free = [(var, one) for var, one in module.functions.items() if _is_free(one)]
    if not free:
        return module
    plain = block_passes.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module).clone()
    for var, _ in free:
        plain.update_func(var, plain[var].without_attr(LAYOUT_FREE))
    return plain


def _is_free(function: Any) -> bool:
    return function.attrs is not None and LAYOUT_FREE in function.attrs
