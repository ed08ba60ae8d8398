"""Scratch memory of convolutions on one CPU thread, and the implementation that runs them.

Derived from the allocations that torch 2.13 reports for single convolutions on a CPU with AVX-512.
oneDNN copies the input and the weights to its own layout (channels in blocks of 16), computes in
it, frees these copies and then copies the output back. There are three exceptions: torch's own
matrix product for small problems, oneDNN's matrix product for groups whose channels do not fill
vectors, and inputs with few channels, which are read in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.networks.graph.graph import NetworkGraph

#: Convolutions that torch runs by its own code: at batch 1 those with at most this many input
#: elements and at most this kernel size; 1x1 convolutions below this batch size.
_NATIVE_ELEMENTS, _NATIVE_KERNEL, _NATIVE_BATCH = 20480, 3, 16
_ELEMENT_BYTES = 4
#: Channels of a block of oneDNN's layout. An input with fewer channels is not copied in the forward
#: pass; in the backward pass it is copied in smaller blocks, or not at all if it is an image.
_BLOCK, _SMALL_BLOCK, _IMAGE_CHANNELS = 16.0, 8.0, 3.0
#: Channels of a group must be a multiple of this for code without matrix products.
_VECTOR = 4.0
#: Kernel size above which the gradient of the weights is a matrix product; number of separate
#: partial sums of the weights' gradient in a matrix product.
_LARGE_KERNEL, _WEIGHT_SUMS = 8.0, 4.0
#: oneDNN unfolds a large image in pieces of at most this size, which fit the cache.
_MOST_UNFOLDED_BYTES = 930 * 1024


@dataclass(frozen=True, eq=False)
class ConvolutionKinds:
    """Implementation of each convolution of a graph; all False for other operators.

    Attributes:
        native: bool [nodes], torch's own matrix product.
        depthwise: bool [nodes], oneDNN, one channel per group.
        grouped: bool [nodes], oneDNN, groups whose channels fill vectors.
        product: bool [nodes], oneDNN's matrix product, group by group. The first one in a process
            generates several megabytes of code.
        pointwise: bool [nodes], oneDNN, 1x1 without groups.
        plain: bool [nodes], oneDNN, all other convolutions.
    """

    native: BoolArray
    depthwise: BoolArray
    grouped: BoolArray
    product: BoolArray
    pointwise: BoolArray
    plain: BoolArray


def convolution_kinds(graph: NetworkGraph) -> ConvolutionKinds:
    """Returns the implementation of each convolution."""
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
    """Returns bool [nodes], whether the gradient of the weights is a matrix product."""
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
    is_few = kinds.plain & (channels < _BLOCK)  # copied in smaller blocks
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
    """Bytes of copies, float64 [nodes] each; meaningless for operators without convolution."""

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
    """Returns the ratio of channels padded to whole blocks to the channels."""
    channels = np.maximum(channels, 1.0)
    return np.asarray(np.ceil(channels / block) * block / channels)


def _chosen(kinds: ConvolutionKinds, own: FloatArray, native: FloatArray) -> list[float]:
    is_conv = kinds.native | kinds.depthwise | kinds.grouped
    is_conv |= kinds.product | kinds.pointwise | kinds.plain
    scratch: list[float] = np.where(kinds.native, native, np.where(is_conv, own, 0.0)).tolist()
    return scratch
