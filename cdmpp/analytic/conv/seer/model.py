"""SEER: the time of a convolution layer is that of the algorithm predicted fastest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.conv.algorithms import (
    ALGORITHM_COUNT,
    ConvAlgorithm,
    find_variant,
    is_supported,
    precomp_variant_names,
    variants_of,
)
from cdmpp.analytic.conv.blocks import (
    BlockLaunch,
    launched_blocks,
    resident_blocks,
)
from cdmpp.analytic.conv.errors import ConvErrors
from cdmpp.analytic.conv.least_squares import LinearFit
from cdmpp.analytic.conv.seer.polynomials import (
    FftModel,
    fft_tiling_columns,
    im2col_columns,
    transform_columns,
)
from cdmpp.analytic.conv.seer.table import KernelType
from cdmpp.analytic.conv.seer.trees import SmallTree
from cdmpp.analytic.conv.seer.variant_model import VariantModel
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import FloatArray, IntArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_json
from cdmpp.files.stored import read_model, to_json

FORMAT = "cdmpp-conv-seer/1"
#: Type of an algorithm with unclassified kernels.
UNCLASSIFIED = -1
_CHOICE_FEATURES = ("in_channels", "in_width", "out_channels", "out_width", "kernel", "stride")


@dataclass(frozen=True)
class LayerEstimate:
    """Predictions for R layers.

    Attributes:
        time_ms: float64 [R, 8], by cuDNN's algorithm number; inf = not available.
        kernel_type: int64 [R, 8], `KernelType` or `UNCLASSIFIED`.
    """

    time_ms: FloatArray
    kernel_type: IntArray

    @property
    def pick(self) -> IntArray:
        """int64 [R], the algorithm predicted fastest."""
        return np.asarray(np.argmin(self.time_ms, axis=1), np.int64)

    @property
    def layer_ms(self) -> FloatArray:
        """float64 [R], time of the fastest algorithm."""
        return np.asarray(self.time_ms.min(axis=1), np.float64)

    @property
    def pick_type(self) -> IntArray:
        """int64 [R], kernel type of the fastest algorithm."""
        return np.asarray(self.kernel_type[np.arange(len(self.pick)), self.pick], np.int64)


@dataclass(frozen=True)
class SeerModel(AnalyticModel):
    """Fitted models of all algorithms of one device.

    Attributes:
        device: label of the device.
        resident: variant name -> number of blocks that the device holds at once.
        variants: variant name -> its model.
        choices: algorithm -> tree that selects its variant, for algorithms with several fitted ones
            (nonfused Winograd: one per filter width, as `algorithm:kernel`).
        fft: polynomials of FFT; None if not fitted.
        fft_tiling: polynomial of FFT_TILING; None if not fitted.
        fft_tiling_type: tree of its kernel type; None if unclassified.
        helpers: variant name, or `algo2` for all of GEMM -> polynomial of the helper kernels.
        arithmetic: formulas of the blocks; older releases used others.
        errors: errors of its validation; None without one (`fit_validated_seer` validates).
    """

    what = "convolution model"
    again = "refit it with: cdmpp analytic conv fit"

    device: str
    resident: dict[str, int]
    variants: dict[str, VariantModel]
    choices: dict[str, SmallTree]
    fft: FftModel | None
    fft_tiling: LinearFit | None
    fft_tiling_type: SmallTree | None
    helpers: dict[str, LinearFit]
    arithmetic: Literal["corrected"] = "corrected"
    errors: ConvErrors | None = None

    def predict(self, shapes: ConvShapes) -> LayerEstimate:
        """Returns the time of every algorithm for every layer.

        Raises:
            DataError: no algorithm is fitted for a layer.
        """
        time_ms = np.full((len(shapes), ALGORITHM_COUNT), np.inf)
        kernel_type = np.full((len(shapes), ALGORITHM_COUNT), UNCLASSIFIED, np.int64)
        for algorithm in ConvAlgorithm:
            rows = np.flatnonzero(is_supported(algorithm, shapes))
            if not len(rows):
                continue
            part = shapes[rows]
            if algorithm == ConvAlgorithm.FFT:
                if self.fft is not None:
                    time_ms[rows, algorithm] = self.fft.predict(part)
            elif algorithm == ConvAlgorithm.FFT_TILING:
                if self.fft_tiling is not None:
                    time_ms[rows, algorithm] = self.fft_tiling.predict(fft_tiling_columns(part))
                if self.fft_tiling_type is not None:
                    labels = self.fft_tiling_type.predict(tiling_type_features(part))
                    kernel_type[rows, algorithm] = labels.astype(np.int64)
            else:
                found = self.variant_names(algorithm, part)
                for name in sorted(set(found) - {""}):
                    chosen = np.flatnonzero(np.array(found) == name)
                    time, kind = self._kernel(name, part[chosen])
                    time_ms[rows[chosen], algorithm] = time
                    kernel_type[rows[chosen], algorithm] = kind
        lost = ~np.isfinite(time_ms).any(axis=1)
        if lost.any():
            raise DataError(
                f"no fitted algorithm serves {int(lost.sum())} of {len(shapes)} layers, e.g. row "
                f"{int(np.flatnonzero(lost)[0])}; fit more variants (fitted: "
                f"{', '.join(sorted(self.variants)) or 'none'})"
            )
        # A polynomial may reach 0 far from its rows.
        return LayerEstimate(np.maximum(time_ms, _SHORTEST_MS), kernel_type)

    def variant_names(self, algorithm: ConvAlgorithm, shapes: ConvShapes) -> list[str]:
        """Returns the variant that an algorithm uses for each layer; "" if none is fitted."""
        fitted = [v.name for v in variants_of(algorithm) if v.name in self.variants]
        if algorithm == ConvAlgorithm.IMPLICIT_PRECOMP_GEMM:
            # A rule on the output channels, restricted to the fitted variants.
            return [
                name if name in fitted else (fitted[-1] if fitted else "")
                for name in precomp_variant_names(shapes.out_channels)
            ]
        names = np.full(len(shapes), "", dtype=object)
        for key, members, rows in _choice_groups(algorithm, fitted, shapes):
            if key in self.choices:
                picked = self.choices[key].predict(choice_features(shapes[rows]))
                all_names = [v.name for v in variants_of(algorithm)]
                names[rows] = [all_names[int(index)] for index in picked]
            elif members:
                names[rows] = members[0]
        return [str(name) for name in names]

    def save(self, path: Path) -> None:
        write_json(path, {"format": FORMAT, **to_json(self)})

    @classmethod
    def load(cls, path: Path) -> SeerModel:
        return read_model(cls, path, what=cls.what, again=cls.again, format=FORMAT)

    def launch(self, name: str, shapes: ConvShapes) -> BlockLaunch:
        """Returns the launch of a variant on the model's device."""
        blocks = launched_blocks(find_variant(name), shapes)
        return BlockLaunch(blocks, np.full(len(shapes), self.resident[name], np.int64))

    def _kernel(self, name: str, shapes: ConvShapes) -> tuple[FloatArray, IntArray]:
        """Returns (milliseconds with the helper kernels, types)."""
        found = self.variants[name].predict(shapes, self.launch(name, shapes))
        time_ms = found.time_ms
        if name.startswith("algo2") and "algo2" in self.helpers:
            time_ms = time_ms + self.helpers["algo2"].predict(im2col_columns(shapes)[0])
        elif name in self.helpers:
            time_ms = time_ms + self.helpers[name].predict(transform_columns(shapes)[0])
        return time_ms, found.kernel_type


_SHORTEST_MS = 1e-6


def tiling_type_features(shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R, 4], inputs of the tree for the type of FFT_TILING."""
    return shapes.matrix(("in_channels", "out_channels", "out_width", "kernel"))


def choice_features(shapes: ConvShapes) -> FloatArray:
    """Returns float64 [R, 6], inputs of the trees that select a variant."""
    return shapes.matrix(_CHOICE_FEATURES)


def choice_key(algorithm: ConvAlgorithm, kernel: int) -> str:
    """Returns the key of the tree that selects an algorithm's variant."""
    if algorithm == ConvAlgorithm.WINOGRAD_NONFUSED:
        return f"{algorithm.name}:{kernel}"
    return algorithm.name


def _choice_groups(
    algorithm: ConvAlgorithm, fitted: list[str], shapes: ConvShapes
) -> list[tuple[str, list[str], IntArray]]:
    """Returns (key of the tree, fitted variants, rows) for rows that share a tree."""
    if algorithm != ConvAlgorithm.WINOGRAD_NONFUSED:
        return [(choice_key(algorithm, 0), fitted, np.arange(len(shapes)))]
    groups = []
    for kernel in np.unique(shapes.kernel):
        members = [name for name in fitted if int(kernel) in find_variant(name).kernels]
        rows = np.flatnonzero(shapes.kernel == kernel)
        groups.append((choice_key(algorithm, int(kernel)), members, rows))
    return groups


def device_residents(device: DeviceSpec, names: list[str]) -> dict[str, int]:
    """Returns variant name -> blocks that a device holds at once, by occupancy rules."""
    return {name: resident_blocks(find_variant(name), device) for name in names}


def type_name(kind: int) -> str:
    """Returns `compute_bound`, `dram_bound`, `under_utilised` or `unclassified`."""
    return "unclassified" if kind == UNCLASSIFIED else KernelType(kind).name.lower()
