"""What convolutions on one CPU thread hold beside their tensors, and which code runs them.

From the allocations that torch 2.13 reports for single convolutions on a CPU with AVX-512. oneDNN
copies the input and the weights to its own layout (channels in blocks of 16), computes in it, frees
these copies and then copies the output back. Three cases differ: torch's own product of matrices
for small problems, oneDNN's product of matrices for groups whose channels fill no vector, and
few input channels, which are read where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.networks.graph.graph import NetworkGraph

#: Convolutions that torch runs by its own code: at batch 1 those with at most so many input
#: elements and a kernel of at most so many pixels a side; 1x1 below this batch.
_NATIVE_ELEMENTS, _NATIVE_KERNEL, _NATIVE_BATCH = 20480, 3, 16
_ELEMENT_BYTES = 4
#: Channels of a block of oneDNN's layout; fewer input channels are not copied in the forward pass,
#: and in smaller blocks in the backward pass, those of an image not even then.
_BLOCK, _SMALL_BLOCK, _IMAGE_CHANNELS = 16.0, 8.0, 3.0
#: Channels of a group must be a multiple of it for code without products of matrices.
_VECTOR = 4.0
#: Side of kernels above which the gradient of the weights is a product of matrices; how often a
#: product sums up the weights' gradient apart.
_LARGE_KERNEL, _WEIGHT_SUMS = 8.0, 4.0
#: oneDNN unfolds a large image in pieces that fit the cache.
_MOST_UNFOLDED_BYTES = 930 * 1024


@dataclass(frozen=True, eq=False)
class ConvolutionKinds:
    """Which code runs each operator of a graph; all False for what is no convolution.

    Attributes:
        native: bool [nodes], torch's own product of matrices.
        depthwise: bool [nodes], oneDNN, one channel a group.
        grouped: bool [nodes], oneDNN, groups whose channels fill vectors.
        product: bool [nodes], oneDNN's product of matrices, group by group. The first one of a
            process generates several megabytes of code.
        pointwise: bool [nodes], oneDNN, 1x1 without groups.
        plain: bool [nodes], oneDNN, all others.
    """

    native: BoolArray
    depthwise: BoolArray
    grouped: BoolArray
    product: BoolArray
    pointwise: BoolArray
    plain: BoolArray


def convolution_kinds(graph: NetworkGraph) -> ConvolutionKinds:
    """Returns which code runs each operator."""
    column = graph.column
    kernel, stride, groups = (
        column("conv_kernel_size"), column("conv_stride"), column("conv_groups"),
    )  # fmt: skip
    inputs, outputs = column("input_channels"), column("output_channels")
    is_conv = np.array([kind == "Conv" for kind in graph.kinds])
    is_unstrided = (stride <= 1) & (column("conv_dilation") <= 1)
    is_small = (
        (groups <= 1)
        & (kernel <= _NATIVE_KERNEL)
        & (graph.batch == 1)
        & (column("input_size") / _ELEMENT_BYTES <= _NATIVE_ELEMENTS)
    )
    is_pointwise_batch = (kernel == 1) & is_unstrided & (graph.batch < _NATIVE_BATCH)
    native = is_conv & (is_small | is_pointwise_batch)
    in_groups = is_conv & ~native & (groups > 1)
    depthwise = in_groups & (groups == inputs) & (groups == outputs)
    width = np.maximum(groups, 1.0)
    fills = ((inputs / width) % _VECTOR == 0) & ((outputs / width) % _VECTOR == 0)
    ungrouped = is_conv & ~native & (groups <= 1)
    return ConvolutionKinds(
        native=native,
        depthwise=depthwise,
        grouped=in_groups & ~depthwise & fills,
        product=in_groups & ~depthwise & ~fills,
        pointwise=ungrouped & (kernel == 1),
        plain=ungrouped & (kernel != 1),
    )


def _weights_by_product(graph: NetworkGraph, kinds: ConvolutionKinds) -> BoolArray:
    """Returns bool [nodes]: the gradient of the weights comes from a product of matrices."""
    column = graph.column
    a_group = column("input_channels") / np.maximum(column("conv_groups"), 1.0)
    is_large = kinds.plain & (column("conv_kernel_size") > _LARGE_KERNEL)
    return np.asarray(is_large | (kinds.grouped & (a_group % _SMALL_BLOCK != 0)))


def forward_scratch_bytes(graph: NetworkGraph) -> list[float]:
    """Returns [nodes] bytes above inputs, weights and output at the peak of the forward pass."""
    kinds = convolution_kinds(graph)
    copies = _Copies.of(graph, kinds)
    output = graph.column("output_size")
    is_strided = kinds.pointwise & (graph.column("conv_stride") > 1)
    unfolded = np.where(
        kinds.product | is_strided, np.minimum(copies.unfolded, _MOST_UNFOLDED_BYTES), 0.0
    )
    while_computing = copies.input + copies.weights + copies.output + unfolded
    own = np.maximum(while_computing, copies.output + output) - output
    return _chosen(kinds, own, copies.unfolded_native)


def backward_scratch_bytes(graph: NetworkGraph) -> list[float]:
    """Returns [nodes] bytes above the tensors, the gradients of input, output and weights at the
    peak of the backward pass.
    """
    kinds = convolution_kinds(graph)
    copies = _Copies.of(graph, kinds)
    inputs, weights = graph.column("input_size"), graph.column("weight_size")
    channels, made = graph.column("input_channels"), graph.column("output_channels")
    is_few = kinds.plain & (channels < _BLOCK)  # these are copied in smaller blocks
    output = np.where(
        is_few, graph.column("output_size") * _padding(made, _SMALL_BLOCK), copies.output
    )
    few = np.where(channels > _IMAGE_CHANNELS, inputs * _padding(channels, _SMALL_BLOCK), 0.0)
    while_computing = output + np.where(is_few, few, copies.input) + copies.weights - weights
    of_weights = np.maximum(while_computing, copies.weights)
    is_strided = (kinds.plain | kinds.pointwise) & (graph.column("conv_stride") > 1)
    of_input = np.where(is_strided, copies.input + inputs, 0.0)
    by_product = copies.unfolded + _WEIGHT_SUMS * weights
    own = np.where(
        kinds.product,
        np.maximum(inputs, by_product),
        np.maximum(np.where(_weights_by_product(graph, kinds), by_product, of_weights), of_input),
    )
    return _chosen(kinds, own, copies.unfolded_native)


@dataclass(frozen=True, eq=False)
class _Copies:
    """Float64 [nodes] each, bytes; meaningless for what is no convolution."""

    input: FloatArray
    weights: FloatArray
    output: FloatArray
    unfolded: FloatArray
    unfolded_native: FloatArray

    @classmethod
    def of(cls, graph: NetworkGraph, kinds: ConvolutionKinds) -> _Copies:
        column = graph.column
        inputs, outputs = column("input_channels"), column("output_channels")
        window = np.square(column("conv_kernel_size"))
        pixels = column("output_w") * column("output_h")
        in_blocks = ~(kinds.grouped | kinds.product)
        is_read_in_place = kinds.product | (kinds.plain & (inputs < _BLOCK))
        wider_input = np.where(in_blocks, _padding(inputs), 1.0)
        wider_output = np.where(in_blocks, _padding(outputs), 1.0)
        of_input = np.where(is_read_in_place, 0.0, column("input_size") * wider_input)
        wider_weights = wider_output * np.where(
            is_read_in_place | kinds.depthwise, 1.0, wider_input
        )
        of_weights = column("weight_size") * wider_weights
        unfolded = inputs * window * pixels * _ELEMENT_BYTES
        a_group = unfolded / np.maximum(column("conv_groups"), 1.0)
        strided = kinds.pointwise & (column("conv_stride") > 1)
        shrunk = of_input / np.maximum(np.square(column("conv_stride")) * graph.batch, 1.0)
        return cls(
            input=of_input,
            weights=of_weights,
            output=column("output_size") * wider_output,
            unfolded=np.where(strided, shrunk, a_group),
            unfolded_native=np.where(window > 1, unfolded, 0.0),
        )


def _padding(channels: FloatArray, block: float = _BLOCK) -> FloatArray:
    """Returns how much larger whole blocks are than the channels."""
    channels = np.maximum(channels, 1.0)
    return np.asarray(np.ceil(channels / block) * block / channels)


def _chosen(kinds: ConvolutionKinds, own: FloatArray, native: FloatArray) -> list[float]:
    is_conv = kinds.native | kinds.depthwise | kinds.grouped
    is_conv |= kinds.product | kinds.pointwise | kinds.plain
    scratch: list[float] = np.where(kinds.native, native, np.where(is_conv, own, 0.0)).tolist()
    return scratch
