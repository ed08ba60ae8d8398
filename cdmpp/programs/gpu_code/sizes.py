"""Launch configurations of the kernels of a lowered GPU program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path


@dataclass(frozen=True)
class KernelSize:
    """Number of blocks of a kernel's grid and of threads of a block."""

    blocks: int
    threads: int


def kernel_sizes(tree: LoopTree) -> list[KernelSize]:
    """Returns the launch configuration of each kernel, in order.

    Each outermost thread binding is a kernel. Extents that are not constant count as 1.
    """
    kernels: dict[int, dict[str, int]] = {}
    for _, path in stores_with_path(tree):
        bound = [
            node
            for node in path
            if isinstance(node, Loop) and (node.kind == "vthread" or "Idx" in node.kind)
        ]
        if bound:
            extents = kernels.setdefault(id(bound[0]), {})
            for loop in bound:
                extent = loop.extent if isinstance(loop.extent, int) else 1
                extents[loop.kind] = max(extent, extents.get(loop.kind, 1))
    return [
        KernelSize(_product(extents, "blockIdx"), _product(extents, "threadIdx"))
        for extents in kernels.values()
    ]


def _product(extents: dict[str, int], index: str) -> int:
    return math.prod(extent for kind, extent in extents.items() if kind.startswith(index))
