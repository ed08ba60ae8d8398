"""Recognises convolutions and embedding lookups from the leaves of a program.

A compact AST has no tensor shapes. It has the iterations and operations of each store, the distinct
bytes of each accessed buffer, which buffers are parameters, and the bytes of all parameters. The
limits are:

- A 1x1 convolution and a matrix product are the same loop nest; neither is recognised.
- Images are assumed to be square. Often several batches, widths, paddings and strides have the same
  sizes (always where the padding keeps the width). The choice is no or full padding and the width
  nearest `_USUAL_WIDTH`. Products, tensors and channels do not depend on it.
- Dilation, groups, residual inputs and convolutions in several stages (Winograd, im2col) do not
  match the sizes of a plain convolution and are not recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.embedding.shapes import EmbeddingShape, default_rows_per_block
from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.datasets.samples import ProgramArrays
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import has_added_columns
from cdmpp.programs.schema import ACCESS_SLOT_COUNT, LEAF_FEATURE_NAMES

#: Why a program was not recognised: `other` = neither a sum of products of two buffers nor a copy
#: through an index; `no-fit` = a sum of products that no square convolution fits; `pointwise` = a
#: 1x1 convolution or a matrix product; `no-columns` = the added leaf columns are missing.
Unrecognised = Literal["other", "no-fit", "pointwise", "no-columns"]

#: Filter sizes, strides by filter size, and largest output width of the candidates.
_KERNELS = (1, 3, 5, 7, 11)
_STRIDES = {1: (1, 2), 3: (1, 2), 5: (1, 2), 7: (1, 2), 11: (1, 2, 4)}
_LARGEST_WIDTH = 512
#: Wide filters with narrower outputs are fully connected layers.
_LEAST_WIDTH = 3
_USUAL_WIDTH = 28
#: Relative tolerance: sizes are stored as float32 logarithms.
_ROUNDING = 4e-6
#: Maximum excess of the elements touched by tiles over the tensor's elements, as a share.
_OVERLAP = 3.0
_BYTES = 4.0
_FEATURE = {name: column for column, name in enumerate(LEAF_FEATURE_NAMES)}
_EXTRA = {name: column for column, name in enumerate(LEAF_EXTRA_NAMES)}


@dataclass(frozen=True)
class ConvLoops:
    """Sizes of a sum of products of two parameters.

    Attributes:
        products: multiply-adds.
        outputs: elements of the result.
        inputs: elements of both parameters together.
        smaller, larger: elements that the products touch of either parameter, smaller first; more
            than the tensor's elements if tiles overlap its edge.
    """

    products: float
    outputs: float
    inputs: float
    smaller: float
    larger: float


@dataclass(frozen=True)
class Recognised:
    """Convolutions and lookups among P programs.

    Attributes:
        conv: program -> its shape, one row.
        embedding: program -> its shape.
        reason: program -> why it was not recognised; has every other program.
    """

    conv: dict[int, ConvShapes]
    embedding: dict[int, EmbeddingShape]
    reason: dict[int, Unrecognised]


def recognise(programs: ProgramArrays, rows: IntArray) -> Recognised:
    """Recognises the given programs.

    Args:
        rows: int64, rows of `programs`; the keys of the result.
    """
    found = Recognised({}, {}, {})
    for row in rows.tolist():
        leaves = slice(int(programs.leaf_offset[row]), int(programs.leaf_offset[row + 1]))
        if not has_added_columns(programs.leaf_extra):
            found.reason[row] = "no-columns"
            continue
        view = _Leaves(
            np.asarray(programs.leaf_features[leaves], np.float64),
            np.asarray(programs.leaf_extra[leaves], np.float64),
        )
        loops = view.product()
        if loops is not None:
            shape = conv_shape(loops)
            if isinstance(shape, ConvShapes):
                found.conv[row] = shape
            else:
                found.reason[row] = shape
            continue
        lookup = view.lookup()
        if lookup is None:
            found.reason[row] = "other"
        else:
            found.embedding[row] = lookup
    return found


def conv_shape(loops: ConvLoops) -> ConvShapes | Unrecognised:
    """Returns the square convolution with these sizes, one row, or why none was found."""
    solutions = _solutions(loops.products, loops.outputs, loops.inputs)
    fitting = [found for found in solutions if _covers(loops, found)]
    if not fitting:
        return "no-fit"
    if any(found.kernel[0] == 1 for found in fitting):
        return "pointwise"
    return fitting[0]


@lru_cache(maxsize=4096)
def _solutions(products: float, outputs: float, inputs: float) -> tuple[ConvShapes, ...]:
    """Returns the square convolutions with these numbers of multiply-adds, results and parameters,
    most likely first.

    With R = products / outputs = k² Cin, T = inputs, and the output width given, the weights
    R Cout and the image Cin N Win² add up to T: a quadratic equation in Cout.
    """
    reduction = products / outputs
    kernels = [k for k in _KERNELS if _is_whole(reduction / k**2)]
    if not kernels:
        return ()
    width, kernel, stride, padding, rest = _candidates()
    chosen = np.isin(kernel, kernels)
    width, kernel, stride, padding, rest = (
        column[chosen] for column in (width, kernel, stride, padding, rest)
    )
    channels = np.rint(reduction / kernel**2)
    in_width = stride * (width - 1) + kernel - 2 * padding + rest
    image = channels * outputs * (in_width / width) ** 2
    found: list[tuple[tuple[float, ...], ConvShapes]] = []
    # A bias adds Cout parameters.
    for weights_each in (reduction, reduction + 1.0):
        under = inputs**2 - 4.0 * weights_each * image
        root = np.sqrt(np.maximum(under, 0.0))
        for sign in (-1.0, 1.0):
            out_channels = np.maximum(np.rint((inputs + sign * root) / (2.0 * weights_each)), 1.0)
            batch = np.maximum(np.rint(outputs / (out_channels * width**2)), 1.0)
            good = (
                (in_width >= 1)
                & (under >= -_ROUNDING * inputs**2)
                & _near(batch * out_channels * width**2, outputs)
                & _near(weights_each * out_channels + image / out_channels, inputs)
            )
            for at in np.flatnonzero(good):
                likeliness = (
                    float(kernel[at]),
                    float(padding[at] not in (0, kernel[at] // 2)),
                    abs(float(np.log(width[at] / _USUAL_WIDTH))),
                    float(stride[at]),
                )
                sizes = (batch, channels, in_width, out_channels, kernel, stride, padding)
                found.append((likeliness, ConvShapes.of(*(int(size[at]) for size in sizes))))
    return tuple(shape for _, shape in sorted(found, key=lambda entry: entry[0]))


@lru_cache(maxsize=1)
def _candidates() -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Returns float64 [C] each: output width, filter, stride, padding, input columns that the
    stride leaves over.
    """
    found = [
        (width, kernel, stride, padding, rest)
        for kernel in _KERNELS
        for stride in _STRIDES[kernel]
        for padding in range(kernel // 2 + 1)
        for rest in range(stride)
        for width in range(1 if kernel == 1 else _LEAST_WIDTH, _LARGEST_WIDTH + 1)
    ]
    columns = np.array(found, np.float64).T
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def _is_whole(value: float) -> bool:
    return value >= 0.5 and abs(value - round(value)) <= max(1e-4, _ROUNDING * value)


def _near(values: FloatArray, wanted: float) -> BoolArray:
    return np.asarray(np.abs(values - wanted) <= _ROUNDING * wanted)


def _covers(loops: ConvLoops, shape: ConvShapes) -> bool:
    """Returns whether the touched sizes match the tensors of this shape; a stride may skip columns,
    and tiles may touch elements beyond the edge.
    """
    sizes = sorted((float(shape.reduction_by_channels[0]), float(shape.inputs[0])))
    return all(
        0.5 * size / float(shape.stride[0]) <= touched <= (1.0 + _OVERLAP) * size + 64.0
        for size, touched in zip(sizes, (loops.smaller, loops.larger), strict=True)
    )


class _Leaves:
    """The leaves of one program by column name, with the logarithms undone."""

    def __init__(self, features: FloatArray, extra: FloatArray) -> None:
        self._features = features
        self._extra = extra

    def product(self) -> ConvLoops | None:
        """Returns the sizes if one leaf has all multiplications, each with one addition, of values
        of two buffers; None otherwise.
        """
        multiplied = self._of("float_mul")
        if len(multiplied) == 0 or not multiplied.max() > 0.0:
            return None
        leaf = int(multiplied.argmax())
        products = float(multiplied[leaf])
        added = float(self._of("float_addsub")[leaf])
        reads = self._reads(leaf)
        # The last store to memory has the outputs; the rest of the program may add a bias.
        outputs = self._outputs()
        is_alone = multiplied.sum() <= products * (1.0 + _ROUNDING) + (outputs or 0.0)
        is_sum = abs(added - products) <= _ROUNDING * products
        if not (is_alone and is_sum and len(reads) == 2 and outputs):
            return None
        sizes = sorted(elements for elements, _ in reads)
        inputs = float(self._extra_of("program.input_bytes")[leaf]) / _BYTES
        if inputs < 1.0 or products < 1.5 * outputs:
            return None
        return ConvLoops(products, outputs, inputs, sizes[0], sizes[1])

    def lookup(self) -> EmbeddingShape | None:
        """Returns the shape if a leaf reads rows of one parameter by an index from another; None
        otherwise.
        """
        if len(self._features) == 0 or self._of("float_mul").max() > 0.0:
            return None
        total = float(self._extra_of("program.input_bytes")[0])
        for leaf in range(len(self._features)):
            reads = self._reads(leaf)
            if len(reads) != 2 or not all(is_parameter for _, is_parameter in reads):
                continue
            indices, table = sorted(elements for elements, _ in reads)
            iterations = float(self._of("outer_prod")[leaf])
            outputs = self._outputs()
            added = float(self._of("float_addsub")[leaf])
            # The program has no other parameter and computes at most the sum of a bag.
            is_all = abs((indices + table) * _BYTES - total) <= 1e-4 * total
            is_copy = added == 0.0 or abs(added - iterations) <= _ROUNDING * iterations
            if not (is_all and is_copy and outputs and indices >= 1.0):
                continue
            count = round(indices)
            width = iterations / count
            rows = table / width
            lookups = iterations / outputs
            sizes = np.array([width, rows, lookups, count / lookups])
            if np.any(sizes < 0.999) or np.any(np.abs(sizes - np.rint(sizes)) > 1e-3 * sizes):
                continue
            if (added > 0.0) != (round(lookups) > 1):
                continue  # may be an element-wise sum of two tensors
            bag = round(lookups) if added > 0.0 else 1
            return EmbeddingShape(
                batch=max(1, count // bag),
                rows=round(rows),
                tables=1,
                lookups=bag,
                width=round(width),
                rows_per_block=default_rows_per_block(round(width)),
            )
        return None

    def _outputs(self) -> float | None:
        """Returns the elements of the last buffer stored to memory; None if unknown."""
        is_global = self._extra_of("scope.store.global") > 0
        stored = np.flatnonzero(is_global & (self._extra_of("alloc.store.bytes") > 0))
        if not len(stored):
            return None
        elements = self._extra_of("alloc.store.bytes")[stored[-1]] / _BYTES
        return float(elements) if elements >= 1.0 else None

    def _reads(self, leaf: int) -> list[tuple[float, bool]]:
        """Returns (distinct elements of 4 bytes, whether it is a parameter) of the buffers that
        are only read.
        """
        found = []
        for slot in range(ACCESS_SLOT_COUNT):
            if (
                self._of(f"B{slot}.bytes")[leaf] <= 0
                or not self._of(f"B{slot}.acc_type.kRead")[leaf]
            ):
                continue
            unique = float(self._of(f"B{slot}.unique_bytes")[leaf]) / _BYTES
            is_parameter = bool(self._extra_of(f"alloc.B{slot}.is_parameter")[leaf])
            found.append((unique, is_parameter))
        return found

    def _of(self, name: str) -> FloatArray:
        return _undo_log(self._features[:, _FEATURE[name]])

    def _extra_of(self, name: str) -> FloatArray:
        return _undo_log(self._extra[:, _EXTRA[name]])


def _undo_log(values: FloatArray) -> FloatArray:
    return np.asarray(np.exp2(np.abs(values)) - 1.0)
