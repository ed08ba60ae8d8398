"""Lower bounds of the time of a network and its operators on a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.roofline.floor import LEAST_SHARE, LeastWork, floor_on
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.networks.account import Account, Product
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.step_time.inputs import rates_of

_FLOAT_BYTES = 4
_COLUMNS = ("linear_in_features", "linear_out_features", "output_h", "output_w", "output_size")
#: Operators that only reshape their input.
_VIEWS = frozenset({"Flatten"})
#: Minimum share of the bytes moved from which operators with several passes are named.
_NAMED_SHARE = 0.01
#: Ratio of the float32 rate of matrix units to the known float32 peak: 2 on AMD's CDNA and CDNA 2
#: (data sheets), an assumption for makers other than AMD and NVIDIA.
_AMD_MATRIX_RATIO, _MATRIX_RATIO = 2.0, 4.0
#: From this compute capability a fused attention kernel may compute a float32 product as three
#: TF32 products, at half the fp16 rate of the tensor cores. Source: CUTLASS, example 27 (3xTF32);
#: NVIDIA A100 and H100 white papers.
_TF32_CAPABILITY, _TF32_SHARE, _TF32_PRODUCTS = 8.0, 0.5, 3.0


def accounts_of(graph: NetworkGraph) -> tuple[Account, ...]:
    """Returns the accounts of a graph. Without stored accounts, they are derived from the columns
    for `Gemm` and four-dimensional `MatMul`, and are empty for other operators.
    """
    found = graph.accounts or (_account(graph, node) for node in range(len(graph.kinds)))
    return tuple(
        Account(form="view") if kind in _VIEWS else one
        for kind, one in zip(graph.kinds, found, strict=True)
    )


def operator_floor_s(graph: NetworkGraph, device: DeviceSpec) -> FloatArray:
    """Returns float64 [nodes], lower bounds in seconds of each operator alone, in either mode.

    The bound is from products at peak, tensors beyond the last cache at the memory bandwidth, and
    one kernel per step on a GPU (`floor_on`); 0 for views.
    """
    accounts = accounts_of(graph)
    peak = device.peak_fp32_flop_per_s or 1.0
    flop = [
        one.least_share * one.product_flop * peak / _rate(device, peak, one) for one in accounts
    ]
    moved = [
        graph.column("bytes")[node] if one.least_bytes is None else one.least_bytes
        for node, one in enumerate(accounts)
    ]
    work = LeastWork(
        wide_flop=np.array(flop, np.float64),
        narrow_flop=np.zeros(len(flop)),
        bytes=np.array(moved, np.float64),
        kernels=np.array([float(one.steps) for one in accounts]),
    )
    runs = [one.form != "view" for one in accounts]
    return np.where(runs, floor_on(device, work).seconds, 0.0)


def least_seconds(graph: NetworkGraph, device: DeviceSpec) -> float:
    """Returns a lower bound in seconds of an iteration in either mode: the sum over operators."""
    return float(np.sort(operator_floor_s(graph, device)).sum())


def least_product_seconds(graph: NetworkGraph, device: DeviceSpec, execution: Execution) -> float:
    """Returns a lower bound in seconds of a 16-bit step: its products at the rate of the matrix
    units. Bytes are excluded, because a compiler may keep tensors on the chip.
    """
    flop = sum(one.least_share * one.product_flop for one in accounts_of(graph))
    _, products, convolutions, *_ = rates_of(device, execution)
    return flop / max(products, convolutions)


@dataclass(frozen=True)
class Uncovered:
    """Operators of a network whose work is unknown or that make several passes.

    Attributes:
        text: clause with these operators and their shares of the bytes moved; empty if there are
            none or their share is small.
        times: approximate factor on the bytes moved due to several passes; 1 = one pass.
        most_times: upper bound of that factor.
    """

    text: str
    times: float
    most_times: float


def uncovered(graph: NetworkGraph) -> Uncovered:
    """Returns the uncovered part of a network's work."""
    moved = graph.column("bytes")
    accounts = accounts_of(graph)
    shares: dict[str, float] = {}
    times = most = 1.0
    for kind, one, size in zip(graph.kinds, accounts, moved.tolist(), strict=True):
        share = size / max(float(moved.sum()), 1.0)
        if one.passes > 1.0:
            times += share * (one.passes - 1.0)
            most += share * (one.passes / LEAST_SHARE - 1.0)
        if not one.is_covered or (one.passes > 1.0 and share >= _NAMED_SHARE):
            shares[kind] = shares.get(kind, 0.0) + share
    if not all(one.is_covered for one in accounts):
        most = times / LEAST_SHARE
    if not shares:
        return Uncovered("", times, most)
    listed = ", ".join(
        f"{kind} ({100 * share:.3g} % of the bytes)" for kind, share in shares.items()
    )
    text = f"operators with unknown work, counted by their bytes: {listed}"
    return Uncovered(text, times, most)


def _rate(device: DeviceSpec, peak: float, account: Account) -> float:
    """Returns the highest float32 rate (operations per second) of the units for the products."""
    if device.kind != "gpu":
        return peak
    if device.vendor != "NVIDIA":
        return (_AMD_MATRIX_RATIO if device.vendor == "AMD" else _MATRIX_RATIO) * peak
    if account.form != "attention" or not device.peak_tensor_flop_per_s:
        return peak
    if float(device.compute_capability or 0.0) < _TF32_CAPABILITY:
        return peak
    return max(peak, device.peak_tensor_flop_per_s * _TF32_SHARE / _TF32_PRODUCTS)


def _account(graph: NetworkGraph, node: int) -> Account:
    kind = graph.kinds[node]
    column = {name: int(graph.column(name)[node]) for name in _COLUMNS}
    outputs = column["output_size"] // _FLOAT_BYTES
    if kind == "Gemm" and column["linear_out_features"]:
        rows = outputs // column["linear_out_features"]
        sizes = 1, rows, column["linear_out_features"], column["linear_in_features"]
        return Account((Product(*sizes),))
    m, n = column["output_h"], column["output_w"]
    if kind == "MatMul" and outputs and outputs % (m * n) == 0:
        inner = round(float(graph.flops[node]) / (2 * outputs))
        return Account((Product(outputs // (m * n), m, n, inner),))
    return Account()
