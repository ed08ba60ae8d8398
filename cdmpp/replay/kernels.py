"""Costs of framework operators from the analytic kernel models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cdmpp.analytic.kernels.data_movement import element_wise_operators
from cdmpp.analytic.kernels.times import ELEMENT_BYTES, KernelCall, KernelTimes
from cdmpp.analytic.kernels.work import product_sizes
from cdmpp.devices.registry import get_device
from cdmpp.replay.costs import CostSource, OperatorCost, exact
from cdmpp.replay.graph import OperatorGraph


class KernelCosts(CostSource):
    """Costs of framework operators with a kernel model, on GPUs: products and element-wise ones.

    Args:
        labels: device of the graph -> label of a GPU; operators on other devices are skipped.

    Raises:
        DeviceError: a rate of a device is missing.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._times = {device: KernelTimes(get_device(label)) for device, label in labels.items()}

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost of operators with a kernel model."""
        found = {}
        known: dict[tuple[str, str, tuple[str, ...]], OperatorCost] = {}
        for one in graph.operators:
            times = self._times.get(one.device)
            call = None if times is None else torch_kernel(one.kind, one.shapes)
            if times is None or call is None:
                continue
            key = (one.device, one.kind, one.shapes)
            if key not in known:
                seconds, low_s, high_s = times.interval_s(call)
                known[key] = (
                    exact(seconds, "analytic")
                    if low_s is None or high_s is None
                    else OperatorCost(seconds, low_s, high_s, "analytic")
                )
            found[one.id] = known[key]
        return found


def torch_kernel(kind: str, shapes: Sequence[str]) -> KernelCall | None:
    """Returns the kernel of a framework operator; None if there is no model for it.

    Args:
        kind: such as `linear` or `relu`.
        shapes: shapes of its inputs, such as `64x512`.
    """
    try:
        sizes = [tuple(map(int, shape.split("x"))) for shape in shapes if shape != "scalar"]
    except ValueError:  # an unknown size
        return None
    product = product_sizes(kind, sizes)
    if product is not None:
        batch, m, n, k = product
        return KernelCall("gemm", {"batch": batch, "m": m, "n": n, "k": k})
    plain = kind.rstrip("_")
    if not sizes or 0 in sizes[0]:
        return None
    elements = float(max(np.prod(size) for size in sizes))
    if plain in ("softmax", "_softmax", "layer_norm", "native_layer_norm") and len(sizes[0]) > 1:
        name = "softmax" if "softmax" in plain else "layer-norm"
        cols = sizes[0][-1]
        return KernelCall(name, {"rows": elements / cols, "cols": cols})
    if plain == "batch_norm":
        return KernelCall("batch-norm", {"elements": elements})
    if plain == "cat":
        total = ELEMENT_BYTES * float(sum(np.prod(size) for size in sizes))
        return KernelCall("concat", {"bytes": total})
    name = plain.replace("_", "-")
    return KernelCall(name, {"elements": elements}) if name in element_wise_operators() else None
