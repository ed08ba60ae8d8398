"""What the operators of a network take at the least on a device: true lower bounds."""

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
#: Operators whose output is their input seen otherwise.
_VIEWS = frozenset({"Flatten"})
#: Share of the bytes moved from which operators of several passes are named.
_NAMED_SHARE = 0.01
#: Matrix units may do float32 so many times faster than the peak that is known: 2 times on AMD's
#: CDNA and CDNA 2 (data sheets), of other makers' GPUs but NVIDIA's an assumption.
_AMD_MATRIX_RATIO, _MATRIX_RATIO = 2.0, 4.0
#: A fused attention kernel may do a float32 product as three of TF32, on units that do those at
#: half of their fp16 rate, from this compute capability on. Source: CUTLASS, example 27 (3xTF32);
#: NVIDIA A100 and H100 white papers.
_TF32_CAPABILITY, _TF32_SHARE, _TF32_PRODUCTS = 8.0, 0.5, 3.0


def accounts_of(graph: NetworkGraph) -> tuple[Account, ...]:
    """Returns the accounts of a graph; of one without, what its columns tell: `Gemm`, and `MatMul`
    of four axes.
    """
    found = graph.accounts or (_account(graph, node) for node in range(len(graph.kinds)))
    return tuple(
        Account(form="view") if kind in _VIEWS else one
        for kind, one in zip(graph.kinds, found, strict=True)
    )


def operator_floor_s(graph: NetworkGraph, device: DeviceSpec) -> FloatArray:
    """Returns float64 [nodes], seconds that no operator goes below in either mode, each run by
    itself: its products at peak, its tensors beyond the last cache at the memory bandwidth, a
    kernel for every step on a GPU (`floor_on`). Operators that make nothing take nothing.
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
    """Returns seconds that no iteration of either mode goes below: the sum over its operators."""
    return float(np.sort(operator_floor_s(graph, device)).sum())


def least_product_seconds(graph: NetworkGraph, device: DeviceSpec, execution: Execution) -> float:
    """Returns seconds that no step in 16 bits goes below: its products at the rate of the matrix
    units. Bytes are not in it: a compiler may keep tensors on the chip.
    """
    flop = sum(one.least_share * one.product_flop for one in accounts_of(graph))
    _, products, convolutions, *_ = rates_of(device, execution)
    return flop / max(products, convolutions)


@dataclass(frozen=True)
class Uncovered:
    """What of a network's work is not known, or goes over its tensors several times.

    Attributes:
        text: these operators with their share of the bytes moved, as a clause; empty = none, or too
            few to be named.
        times: how often what it moves is moved, about; 1 = once.
        most_times: that at the most.
    """

    text: str
    times: float
    most_times: float


def uncovered(graph: NetworkGraph) -> Uncovered:
    """Returns what of a network's work is not known, from its operators' accounts."""
    moved = graph.column("bytes")
    shares: dict[str, float] = {}
    times = most = 1.0
    for kind, one, size in zip(graph.kinds, accounts_of(graph), moved.tolist(), strict=True):
        share = size / max(float(moved.sum()), 1.0)
        if one.passes > 1.0:
            times += share * (one.passes - 1.0)
            most += share * (one.passes / LEAST_SHARE - 1.0)
        if not one.is_covered or (one.passes > 1.0 and share >= _NAMED_SHARE):
            shares[kind] = shares.get(kind, 0.0) + share
        if not one.is_covered:
            most = max(most, times / LEAST_SHARE)
    if not shares:
        return Uncovered("", times, most)
    listed = ", ".join(
        f"{kind} ({100 * share:.3g} % of the bytes)" for kind, share in shares.items()
    )
    text = f"operators with unknown work, counted by their bytes: {listed}"
    return Uncovered(text, times, most)


def _rate(device: DeviceSpec, peak: float, account: Account) -> float:
    """Returns the most float32 operations a second of any unit that may do the products."""
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
