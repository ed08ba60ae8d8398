"""Launch configurations of the kernels of a lowered GPU program."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cdmpp.programs.loops.loop_tree import Loop, LoopTree, stores_with_path


@dataclass(frozen=True)
class KernelSize:
    """Number of blocks of a kernel's grid, of threads of a block, and of launches."""

    blocks: int
    threads: int
    launches: int = 1


def kernel_sizes(tree: LoopTree) -> list[KernelSize]:
    """Returns the launch configuration of each kernel, in order.

    Each outermost thread binding is a kernel, launched in every iteration of the loops around it.
    Extents that are not constant count as 1.
    """
    kernels: dict[int, dict[str, int]] = {}
    launches: dict[int, int] = {}
    for _, path in stores_with_path(tree):
        bound = [
            node
            for node in path
            if isinstance(node, Loop) and (node.kind == "vthread" or "Idx" in node.kind)
        ]
        if bound:
            extents = kernels.setdefault(id(bound[0]), {})
            for loop in bound:
                extents[loop.kind] = max(_extent(loop), extents.get(loop.kind, 1))
            around = path[: path.index(bound[0])]
            launches[id(bound[0])] = math.prod(
                _extent(one) for one in around if isinstance(one, Loop)
            )
    return [
        KernelSize(_product(extents, "blockIdx"), _product(extents, "threadIdx"), launches[kernel])
        for kernel, extents in kernels.items()
    ]


def _extent(loop: Loop) -> int:
    return loop.extent if isinstance(loop.extent, int) else 1


def _product(extents: dict[str, int], index: str) -> int:
    return math.prod(extent for kind, extent in extents.items() if kind.startswith(index))
