"""The model of one kernel variant: from the shape to counters and type, and to milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvVariant
from cdmpp.analytic.conv.blocks import BlockLaunch
from cdmpp.analytic.conv.seer.counters import (
    CounterModel,
    Counters,
    fit_counters,
    measured_counters,
)
from cdmpp.analytic.conv.seer.regimes import (
    TimeForm,
    TimeModel,
    fit_regimes,
    fit_smooth,
)
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError

_TYPE_FEATURES = ("in_channels", "in_width", "out_channels", "out_width", "kernel", "stride")


@dataclass(frozen=True)
class AlgorithmEstimate:
    """Predictions of a variant for R layers.

    Attributes:
        time_ms: float64 [R].
        kernel_type: int64 [R], `KernelType`.
        counters: counters of one block.
    """

    time_ms: FloatArray
    kernel_type: IntArray
    counters: Counters


@dataclass(frozen=True)
class VariantModel:
    """A fitted kernel variant.

    Attributes:
        variant: the variant.
        counters: sub-models of instructions and DRAM transactions.
        types: tree of the kernel type.
        times: from counters and waves to milliseconds.
        row_count: number of fitted rows.
    """

    variant: ConvVariant
    counters: CounterModel
    types: SmallTree
    times: TimeModel
    row_count: int

    def predict(self, shapes: ConvShapes, launch: BlockLaunch) -> AlgorithmEstimate:
        """Returns the estimate of every layer for a known launch."""
        counters = self.counters.predict(self.variant, shapes, launch.blocks)
        kernel_type = self.types.predict(_type_features(shapes, launch.blocks)).astype(np.int64)
        return AlgorithmEstimate(
            self.times.predict(kernel_type, counters, launch), kernel_type, counters
        )


def fit_variant(
    variant: ConvVariant, table: ConvTable, form: TimeForm, options: TreeOptions
) -> VariantModel:
    """Fits the model of a variant to rows with every counter.

    Raises:
        DataError: no row has every counter.
    """
    counted = table[table.is_counted]
    if not len(counted):
        raise DataError(
            f"{variant.name}: none of its {len(table)} rows has every counter; expected columns "
            "10 to 18 of the workbook. Fit only layer times with: cdmpp analytic conv fit "
            "--layers FILE"
        )
    counters = measured_counters(counted)
    return VariantModel(
        variant,
        fit_counters(variant, counted, options),
        fit_tree(
            _type_features(counted.shapes, counted.launch.blocks),
            counted.kernel_type,
            "classifier",
            options,
        ),
        fit_smooth(counters, counted.launch, counted.time_ms)
        if form == "smooth"
        else fit_regimes(counted.kernel_type, counters, counted.launch, counted.time_ms),
        len(counted),
    )


def _type_features(shapes: ConvShapes, blocks: IntArray) -> FloatArray:
    return np.concatenate([shapes.matrix(_TYPE_FEATURES), blocks[:, None]], axis=1)
