"""Whether the original toolchain would refuse to build a program."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cdmpp.programs.gpu_limits import GpuLimits, gpu_limits
from cdmpp.programs.loops.loop_tree import Allocation, Loop, LoopTree, Node, children
from cdmpp.records import MeasureRecord
from tests.programs.reference.tree import reject_reason

_UNROLLED_BELOW = 16


def rejection(tree: LoopTree, record: MeasureRecord) -> str | None:
    """Returns why the original toolchain rejects a replayed program, or None."""
    reason = reject_reason(tree)
    limits = gpu_limits(record.hardware_params) if tree.is_gpu else None
    if reason is None and limits is not None:
        reason = gpu_violation(tree, limits)
    return reason


def gpu_violation(tree: LoopTree, limits: GpuLimits) -> str | None:
    """Returns the first limit that a kernel of the program exceeds, or None.

    Extents that are not constant are left to `reject_reason`.
    """
    for kernel in _kernels(tree.body):
        shared = _shared_bytes([kernel])
        if shared > limits.shared_bytes:
            return f"shared memory per block ({shared}) is above the limit ({limits.shared_bytes})"
        threads = math.prod(_thread_extents([kernel]).values())
        if threads > limits.threads:
            return f"threads per block ({threads}) are above the limit ({limits.threads})"
        vthreads = _vthreads([kernel])
        if vthreads > limits.vthreads:
            return f"virtual threads ({vthreads}) are above the limit ({limits.vthreads})"
    return None


def _kernels(nodes: Sequence[Node]) -> list[Node]:
    """Returns the outermost thread bindings: each one is a kernel of its own."""
    found: list[Node] = []
    for node in nodes:
        if isinstance(node, Loop) and _is_thread(node):
            found.append(node)
        else:
            found.extend(_kernels(children(node)))
    return found


def _is_thread(node: Loop) -> bool:
    return node.kind == "vthread" or "Idx" in node.kind


def _shared_bytes(nodes: Sequence[Node]) -> int:
    total = 0
    for node in nodes:
        if isinstance(node, Allocation) and node.buffer.scope == "shared":
            extents = [extent for extent in node.extents if isinstance(extent, int)]
            total += math.prod(extents) * node.buffer.element_bytes
        total += _shared_bytes(children(node))
    return total


def _thread_extents(nodes: Sequence[Node]) -> dict[str, int]:
    """Returns the largest extent of each thread index."""
    found: dict[str, int] = {}
    for node in nodes:
        inside = _thread_extents(children(node))
        if isinstance(node, Loop) and node.kind.startswith("threadIdx"):
            extent = node.extent if isinstance(node.extent, int) else 1
            inside[node.kind] = max(extent, inside.get(node.kind, 1))
        for kind, extent in inside.items():
            found[kind] = max(extent, found.get(kind, 1))
    return found


def _vthreads(nodes: Sequence[Node]) -> int:
    """Returns the largest extent of a virtual thread that is left when the original checks.

    Fewer than `_UNROLLED_BELOW` virtual threads have been unrolled by then, so they never count.
    """
    largest = 1
    for node in nodes:
        largest = max(largest, _vthreads(children(node)))
        if isinstance(node, Loop) and node.kind == "vthread" and isinstance(node.extent, int):
            largest = max(largest, node.extent if node.extent >= _UNROLLED_BELOW else 1)
    return largest
