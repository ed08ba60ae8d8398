"""Operator name of a TVM module, in the datasets' vocabulary."""

from __future__ import annotations

from typing import Any

from tvm_helper.compat import s_tir
from tvm_helper.tasks.block_names import operator_of_blocks


def operator_of(module: Any) -> str:
    """Returns the names of a module's blocks joined by `+`, such as `conv2d+add+relu`.

    Args:
        module: an `IRModule` with one unscheduled function `main`. Empty for a program without
            blocks.
    """
    body = module["main"].body
    if not isinstance(body, s_tir.SBlockRealize):
        return ""
    if body.block.name_hint != "root":
        return operator_of_blocks([(str(body.block.name_hint), 0)])
    schedule = s_tir.Schedule(module, debug_mask="none", error_render_level="none")
    blocks: list[tuple[str, int]] = []
    for handle in schedule.get_child_blocks(schedule.get_sblock("root")):
        block = schedule.get(handle)
        axes = len(block.reads[-1].region) if len(block.reads) > 1 else 0
        blocks.append((str(block.name_hint), axes))
    return operator_of_blocks(blocks)
