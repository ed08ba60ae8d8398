"""Sub-models of hardware counters: fp32 instructions and DRAM transactions of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvVariant
from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.rows import Rows
from cdmpp.arrays import FloatArray, IntArray

_GEMM_FEATURES = ("in_channels", "in_width", "out_channels", "out_width", "kernel", "stride")
_GEMM_PRODUCTS = ("reduction", "reduction_by_channels", "reduction_by_pixels")
_WINOGRAD_STEP = 8
_CLAMPED_VARIANT = "algo1_128x32"
_CLAMPED_CHANNELS = 32


@dataclass(frozen=True)
class Counters(Rows):
    """Counters of one thread block.

    Attributes:
        instructions: float64 [R], fp32 instructions, thread level.
        reads: float64 [R], DRAM read transactions of 32 bytes.
        writes: float64 [R], DRAM write transactions of 32 bytes.
    """

    instructions: FloatArray
    reads: FloatArray
    writes: FloatArray


@dataclass(frozen=True)
class CounterModel:
    """Predicts the counters of a variant's blocks from the layer's shape.

    Attributes:
        instructions: linear in the length of the reduction.
        read_ratio: tree of reads over the reduction (Winograd: over the input channels).
        writes: tree of the writes.
    """

    instructions: LinearFit
    read_ratio: SmallTree
    writes: SmallTree

    def predict(self, variant: ConvVariant, shapes: ConvShapes, blocks: IntArray) -> Counters:
        """Returns the counters of one block of each layer."""
        features = traffic_features(variant, shapes, blocks)
        return Counters(
            instructions=self.instructions.predict(_instruction_columns(variant, shapes)),
            reads=self.read_ratio.predict(features) * _read_unit(variant, shapes),
            writes=self.writes.predict(features),
        )


def fit_counters(variant: ConvVariant, table: ConvTable, options: TreeOptions) -> CounterModel:
    """Fits the counter model of a variant to rows with every counter."""
    features = traffic_features(variant, table.shapes, table.blocks.astype(np.int64))
    ratio = table.reads_per_block / _read_unit(variant, table.shapes)
    return CounterModel(
        instructions=relative_fit(
            _instruction_columns(variant, table.shapes),
            table.instructions_per_block,
            ("per_step", "constant"),
            is_non_negative=False,
        ),
        read_ratio=fit_tree(features, ratio, "regressor", options),
        writes=fit_tree(features, table.writes_per_block, "regressor", options),
    )


def measured_counters(table: ConvTable) -> Counters:
    """Returns the measured counters of one block of every row."""
    return Counters(table.instructions_per_block, table.reads_per_block, table.writes_per_block)


def traffic_features(variant: ConvVariant, shapes: ConvShapes, blocks: IntArray) -> FloatArray:
    """Returns float64 [R, F], inputs of the trees of DRAM transactions.

    For algo1_128x32, output channels below 32 count as 32, the width of its blocks.
    """
    if variant.name == _CLAMPED_VARIANT:
        wide = np.maximum(shapes.out_channels, _CLAMPED_CHANNELS)
        shapes = ConvShapes(
            shapes.batch, shapes.in_channels, shapes.in_width, wide, shapes.out_width,
            shapes.kernel, shapes.stride, shapes.padding,
        )  # fmt: skip
    plain = shapes.matrix(_GEMM_FEATURES)
    if variant.family != "gemm":
        return plain
    return np.concatenate([plain, blocks[:, None], shapes.matrix(_GEMM_PRODUCTS)], axis=1)


def _instruction_columns(variant: ConvVariant, shapes: ConvShapes) -> FloatArray:
    if variant.family == "gemm":
        steps = shapes.reduction
    else:
        steps = np.ceil(shapes.in_channels / _WINOGRAD_STEP)
    return np.stack([steps, np.ones(len(shapes))], axis=1)


def _read_unit(variant: ConvVariant, shapes: ConvShapes) -> FloatArray:
    if variant.family == "gemm":
        return shapes.reduction
    return shapes.in_channels.astype(np.float64)
