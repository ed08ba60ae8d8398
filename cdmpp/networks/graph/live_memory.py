"""Peak memory of a network from live ranges, and the rooflines of its operators."""

from __future__ import annotations

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.networks.graph.convolution_memory import (
    backward_scratch_bytes,
    convolution_kinds,
    forward_scratch_bytes,
)
from cdmpp.networks.graph.execution import MODES, Execution, Mode
from cdmpp.networks.graph.graph import NetworkGraph

#: Operators whose output shares the memory of their input.
_VIEWS = frozenset({"Flatten"})
#: Tensors that an operator's backward pass needs; operators in no set need inputs and output.
_NEEDS_INPUT = frozenset(
    {"Conv", "BatchNormalization", "Gemm", "AveragePool", "MaxPool", "LayerNorm", "GroupNorm",
     "InstanceNorm", "RmsNorm", "Gelu", "Silu", "Hardswish", "Mish", "Elu", "LeakyRelu", "Relu6",
     "Hardtanh", "Softplus", "MatMul", "Mul", "Div", "Pow", "ConvTranspose", "Embedding", "Abs",
     "Log"}
)  # fmt: skip
_NEEDS_OUTPUT = frozenset(
    {"Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Exp", "Sqrt", "Rsqrt"}
)
_NEEDS_NOTHING = frozenset(
    {"Concat", "Add", "Sub", "Flatten", "GlobalAveragePool", "Mean", "Sum", "Neg", "Stack"}
)
#: With one operand and no weights these scale by a number; their backward pass needs no tensor.
_SCALES = frozenset({"Mul", "Div"})
#: Operators whose gradient is passed on as the gradient of their inputs, without a new tensor.
_PASSES_GRADIENTS = frozenset({"Add", "Sub", "Concat", "Flatten"})
#: See `packed_bytes`.
_PACKED_ROWS, _FEW_ROWS = 192.0, 2.0
_ELEMENT_BYTES = 4
#: Max pooling makes an 8-byte index per 4-byte value, which is kept for the backward pass.
_POOL_INDEX_FACTOR = 2.0
#: Ratio of backward to forward work: two products for an operator with weights, one for others.
_BACKWARD_WITH_WEIGHTS, _BACKWARD = 2.0, 1.0


def operator_seconds(graph: NetworkGraph, device: DeviceSpec, mode: Mode) -> FloatArray:
    """Returns float64 [nodes], the roofline of each operator in seconds.

    It is the longer of arithmetic at the fp32 peak and traffic at the memory bandwidth. A training
    step is forward, backward (two products for an operator with weights, else one; inputs, weights,
    the gradients of both and of the output move once) and the update of the weights.

    Raises:
        DataError: an unknown mode, or a device with unknown peak or bandwidth.
    """
    peak, bandwidth = device.peak_fp32_flop_per_s, device.mem_bandwidth_bytes_per_s
    if not peak or not bandwidth:
        missing = "mem_bandwidth_bytes_per_s" if peak else "peak_fp32_flop_per_s"
        raise DataError(
            f"device {device.name}: `{missing}` is unknown; add it to the device file (`cdmpp "
            f"device show {device.name}`)"
        )
    _check_mode(mode)
    moves = np.array([kind not in _VIEWS for kind in graph.kinds])
    forward = np.where(moves, graph.column("bytes"), 0.0)
    flops = graph.flops
    seconds = np.maximum(flops / peak, forward / bandwidth)
    if mode == "infer":
        return seconds
    weights = graph.column("weight_size")
    factor = np.where(weights > 0, _BACKWARD_WITH_WEIGHTS, _BACKWARD)
    inputs, outputs = graph.column("input_size"), graph.column("output_size")
    backward = np.where(moves, 2 * inputs + outputs + 2 * weights, 0.0)
    update = 3 * weights  # reads weight and gradient, writes the weight
    seconds += np.maximum(factor * flops / peak, backward / bandwidth)
    return np.asarray(seconds + np.maximum(weights / 2 / peak, update / bandwidth))


def roofline_seconds(graph: NetworkGraph, device: DeviceSpec, mode: Mode) -> float:
    """Returns the sum of the operators' rooflines in seconds.

    Raises:
        DataError: see `operator_seconds`.
    """
    return float(np.sort(operator_seconds(graph, device, mode)).sum())


def least_memory(graph: NetworkGraph, execution: Execution) -> float:
    """Returns a lower bound of a network's memory in bytes: its weights, and in training the
    gradients of the trainable weights that operators use; 0 if weights were not counted.
    """
    element = 2 if execution.is_half and not execution.is_autocast else _ELEMENT_BYTES
    used = float(graph.column("weight_size").sum()) / _ELEMENT_BYTES
    gradients = min(graph.trained, used) if execution.mode == "train" else 0.0
    return element * (graph.parameters + gradients)


def live_memory(graph: NetworkGraph, mode: Mode) -> float:
    """Returns the peak bytes of weights, inputs and tensors that are alive at the same time.

    Operators run in the order of the graph. A tensor lives until its last reader has run or the
    code releases it; the network's input lives to the end. `train` also includes the tensors that
    the backward pass needs, the gradients of the weights, and the gradients of tensors while they
    are needed. Scratch memory of convolutions (`convolution_memory`), pooling indices and copies
    for matrix products are included; other scratch memory is not.

    Raises:
        DataError: an unknown mode.
    """
    _check_mode(mode)
    return _Plan(graph).peak(mode)


def tensor_peak(
    graph: NetworkGraph,
    mode: Mode,
    *,
    sizes: FloatArray,
    weights: FloatArray,
    scratch: FloatArray,
    element: int,
) -> float:
    """Returns the peak bytes of `live_memory` with other tensor sizes and scratch memory.

    Args:
        sizes: float64 [nodes], bytes of each operator's output.
        weights: float64 [nodes], bytes of each operator's weights.
        scratch: float64 [nodes], scratch bytes of each operator in both passes.
        element: bytes per element of the network's inputs.
    """
    _check_mode(mode)
    plan = _Plan(graph)
    plan.inputs *= element / _ELEMENT_BYTES
    plan.sizes, plan.weight = sizes.tolist(), weights.tolist()
    plan.weights = sum(plan.weight)
    plan.scratch = plan.backward_scratch = scratch.tolist()
    plan.copies = [0.0] * len(graph.kinds)
    return plan.peak(mode)


def packed_bytes(graph: NetworkGraph) -> FloatArray:
    """Returns float64 [3], bytes of the largest packing buffers of the math library's matrix
    products: of linear layers' weights in the forward pass and in the backward pass, and of
    convolutions' unfolded inputs. These buffers are no tensors.

    Measured on single layers (torch 2.13 on x86): about 192 rows of the reduction dimension with
    all columns; no buffer for one or two rows of inputs.
    """
    column = graph.column
    inputs, outputs = column("linear_in_features"), column("linear_out_features")
    rows = column("output_size") / _ELEMENT_BYTES / np.maximum(outputs, 1.0)
    is_packed = (inputs > 0) & (rows > _FEW_ROWS)
    is_fed = np.zeros(len(inputs), bool)  # other operators pass no gradient on
    is_fed[graph.edges[:, 1]] = True
    window = np.square(column("conv_kernel_size")) * column("input_channels")
    pixels = column("output_w") * column("output_h")
    packed = (
        is_packed * np.minimum(inputs, _PACKED_ROWS) * outputs,
        is_packed * is_fed * np.minimum(outputs, _PACKED_ROWS) * inputs,
        convolution_kinds(graph).native * np.minimum(window, _PACKED_ROWS) * pixels,
    )
    return np.array([values.max() for values in packed]) * _ELEMENT_BYTES


def _check_mode(mode: str) -> None:
    if mode not in MODES:
        raise DataError(f"mode {mode!r}, expected one of {', '.join(MODES)}")


class _Plan:
    """Tensors of a network and their readers. A view counts as its base tensor."""

    def __init__(self, graph: NetworkGraph) -> None:
        self.kinds = graph.kinds
        self.sizes: list[float] = graph.column("output_size").tolist()
        self.weight: list[float] = graph.column("weight_size").tolist()
        self.weights: float = sum(self.weight)
        count = len(self.kinds)
        self.sources = graph.sources()
        self.tensor = list(range(count))  # node -> its output tensor
        for node in range(count):
            if self.kinds[node] in _VIEWS and len(self.sources[node]) == 1:
                self.tensor[node] = self.tensor[self.sources[node][0]]
        self.last = list(range(count))  # tensor -> the last node that reads it
        for node in range(count):
            for source in self.sources[node]:
                self.last[self.tensor[source]] = max(self.last[self.tensor[source]], node)
        for node, end in graph.holds.tolist():
            self.last[self.tensor[node]] = max(self.last[self.tensor[node]], end)
        for node in range(count):  # a view lives as long as its own readers
            self.last[self.tensor[node]] = max(self.last[self.tensor[node]], node)
        self.inputs = _input_bytes(graph, self.sources)
        self.scratch = forward_scratch_bytes(graph)
        self.indices = [
            _POOL_INDEX_FACTOR * size if kind == "MaxPool" else 0.0
            for kind, size in zip(self.kinds, self.sizes, strict=True)
        ]
        self.copies = [self._copied_by(node) for node in range(count)]
        self.backward_scratch = backward_scratch_bytes(graph)
        self.free_after: list[list[int]] = [[] for _ in range(count)]
        for tensor in set(self.tensor):
            self.free_after[self.last[tensor]].append(tensor)

    def peak(self, mode: Mode) -> float:
        """Returns the peak bytes, including weights and inputs."""
        found = self.forward_peak() if mode == "infer" else self.train_peak()
        return self.weights + self.inputs + found

    def forward_peak(self) -> float:
        """Returns the peak bytes of activations in inference."""
        alive, peak = 0.0, 0.0
        for node, tensor in enumerate(self.tensor):
            if tensor == node:
                alive += self.sizes[node]
            peak = max(peak, alive + self.scratch[node] + self.indices[node] + self.copies[node])
            alive -= sum(self.sizes[dead] for dead in self.free_after[node])
        return peak

    def train_peak(self) -> float:
        """Returns the peak bytes of activations, their gradients and those of the weights."""
        needs = [self._kept_by(node) for node in range(len(self.kinds))]
        readers: dict[int, int] = {}  # tensor -> backward steps that still need it
        for kept in needs:
            for tensor in kept:
                readers[tensor] = readers.get(tensor, 0) + 1
        alive = peak = 0.0
        for node, tensor in enumerate(self.tensor):
            alive += (self.sizes[node] if tensor == node else 0.0) + self.indices[node]
            peak = max(peak, alive + self.scratch[node] + self.copies[node])
            alive -= sum(self.sizes[dead] for dead in self.free_after[node] if dead not in readers)
        gradients: set[int] = set()  # tensors whose gradient exists
        gradient_bytes = 0.0
        for node in reversed(range(len(self.kinds))):
            twice = 0.0
            for tensor in {self.tensor[node], *(self.tensor[s] for s in self.sources[node])}:
                if tensor not in gradients:
                    gradients.add(tensor)
                    gradient_bytes += self.sizes[tensor]
                elif tensor != self.tensor[node] and self.kinds[node] not in _PASSES_GRADIENTS:
                    twice += self.sizes[tensor]  # a second gradient, before the sum
            gradient_bytes += self.weight[node]
            peak = max(peak, alive + gradient_bytes + twice + self.backward_scratch[node])
            if self.tensor[node] == node:
                gradient_bytes -= self.sizes[node]  # every reader has added to it by now
            alive -= self.indices[node]
            for tensor in needs[node]:
                readers[tensor] -= 1
                if readers[tensor] == 0:
                    alive -= self.sizes[tensor]
        return peak

    def _copied_by(self, node: int) -> float:
        """Returns bytes of operands that a matrix product copies, because a projection makes the
        heads of attention in another memory order.
        """
        if self.kinds[node] != "MatMul":
            return 0.0
        return sum(self.sizes[s] for s in self.sources[node] if self.kinds[s] == "Gemm")

    def _kept_by(self, node: int) -> set[int]:
        """Returns the tensors that the backward pass of a node needs."""
        kind = self.kinds[node]
        read = {self.tensor[source] for source in self.sources[node]}
        is_scale = kind in _SCALES and len(self.sources[node]) == 1 and not self.weight[node]
        if is_scale or kind in _NEEDS_NOTHING:
            return set()
        if kind in _NEEDS_OUTPUT:
            return {self.tensor[node]}
        return read if kind in _NEEDS_INPUT else read | {self.tensor[node]}


def _input_bytes(graph: NetworkGraph, sources: list[list[int]]) -> float:
    """Returns the bytes of the network's inputs; inputs with equal shapes count as one."""
    columns = ("input_size", "input_channels", "input_w", "input_h")
    rows = np.stack([graph.column(name) for name in columns], axis=1)
    first = {tuple(rows[node].tolist()) for node, feeds in enumerate(sources) if not feeds}
    return sum(float(row[0]) for row in first)
