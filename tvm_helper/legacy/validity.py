"""Check of GPU programs against the limits at which AutoTVM rejects them.

AutoTVM verifies programs late in lowering: buffers that are never alive together share memory then,
and a double-buffered one needs twice its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from cdmpp.programs.gpu_limits import GpuLimits
from cdmpp.programs.loops.expr import Buffer, Expr, loads_in
from cdmpp.programs.loops.loop_tree import (
    Allocation,
    Attribute,
    Loop,
    LoopTree,
    Node,
    Store,
    children,
)

#: Limits that all devices of a kind have. AutoTVM queries the limits of the device, but does not
#: store them.
_SHARED_BYTES = {"cuda": 48 << 10, "rocm": 64 << 10}
_UNLIMITED = 1 << 62
#: Limits that do not depend on the lifetimes of buffers.
LIMITS = GpuLimits(shared_bytes=_UNLIMITED, threads=1024, vthreads=_UNLIMITED)
DOUBLE_BUFFER = "double_buffer_scope"


def rejection(tree: LoopTree, target_kind: str) -> str | None:
    """Returns the reason why AutoTVM rejects a program for a kind of device; None if it accepts it.

    Args:
        tree: program with constant extents, within `LIMITS`.
        target_kind: first word of the target.
    """
    if not tree.is_gpu:
        return None
    limit = _SHARED_BYTES.get(target_kind, 48 << 10)
    return _shared_violation(tree.body, limit) or _binding_violation(tree.body, {})


def _binding_violation(nodes: list[Node], bound: dict[str, int | Expr]) -> str | None:
    """Returns a reason if a thread index of a kernel is bound to two different extents; else None.

    Such a program has no launch configuration.
    """
    for node in nodes:
        inside = bound
        if _is_thread(node):
            assert isinstance(node, Loop)
            if not bound:
                inside = {"": 0}  # the outermost binding starts a new kernel
            if inside.setdefault(node.kind, node.extent) != node.extent:
                return f"{node.kind} is bound to different extents"
        reason = _binding_violation(children(node), inside)
        if reason is not None:
            return reason
    return None


def _is_thread(node: Node) -> bool:
    return isinstance(node, Loop) and "Idx" in node.kind


def _shared_violation(nodes: list[Node], limit: int) -> str | None:
    for node in nodes:
        if _is_thread(node):
            needed = shared_bytes(node)
            if needed > limit:
                return f"shared memory per block ({needed}) is above the limit ({limit})"
            continue
        reason = _shared_violation(children(node), limit)
        if reason is not None:
            return reason
    return None


def shared_bytes(kernel: Node) -> int:
    """Returns the maximum shared memory in bytes that a block uses at any time."""
    leaves = list(_leaves(kernel, (), False))
    alive = [0] * len(leaves)
    for buffer, extents in _shared_allocations(kernel):
        uses = [n for n, (store, *_) in enumerate(leaves) if _uses(store, buffer)]
        spans = [_span(leaves, n, buffer) for n in uses]
        if not spans:
            continue
        copies = 2 if any(leaves[n][2] and leaves[n][0].buffer is buffer for n in uses) else 1
        size = copies * buffer.element_bytes * math.prod(e for e in extents if isinstance(e, int))
        for n in range(min(s[0] for s in spans), max(s[1] for s in spans) + 1):
            alive[n] += size
    return max(alive, default=0)


def _leaves(
    node: Node, path: tuple[Node, ...], is_doubled: bool
) -> Iterator[tuple[Store, tuple[Node, ...], bool]]:
    """Yields (store, enclosing nodes, whether it writes a double buffer) in program order."""
    if isinstance(node, Store):
        yield node, path, is_doubled
        return
    is_doubled = is_doubled or (isinstance(node, Attribute) and node.key == DOUBLE_BUFFER)
    for child in children(node):
        yield from _leaves(child, (*path, node), is_doubled)


def _shared_allocations(node: Node) -> Iterator[tuple[Buffer, tuple[int | Expr, ...]]]:
    if isinstance(node, Allocation) and node.buffer.scope == "shared":
        yield node.buffer, node.extents
    for child in children(node):
        yield from _shared_allocations(child)


def _uses(store: Store, buffer: Buffer) -> bool:
    return store.buffer is buffer or any(one.value is buffer for one in loads_in(store.value))


def _span(
    leaves: list[tuple[Store, tuple[Node, ...], bool]], use: int, buffer: Buffer
) -> tuple[int, int]:
    """Returns the first and last store of the outermost loop around a use, below the allocation."""
    path = leaves[use][1]
    start = next(
        (n + 1 for n, a in enumerate(path) if isinstance(a, Allocation) and a.buffer is buffer), 0
    )
    loop = next(
        (n for n in path[start:] if isinstance(n, Loop) and not _is_thread(n) and n.extent != 1),
        None,
    )
    if loop is None:
        return use, use
    inside = [n for n, (_, nodes, _) in enumerate(leaves) if any(node is loop for node in nodes)]
    return inside[0], inside[-1]
