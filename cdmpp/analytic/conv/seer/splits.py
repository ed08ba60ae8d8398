"""Splits of rows into training and test parts."""

from __future__ import annotations

from typing import Literal

import numpy as np

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.errors import DataError

SplitKind = Literal["family", "octave", "original"]

_DIMENSIONS = ("in_channels", "out_channels", "in_width")
_SHORTEST_MS = 1.0
_LONGEST_MS = 1000.0
_CYCLE = 10
_CYCLE_TRAIN = 7


def original_split(time_ms: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Returns (train, test), bool [R]: of every ten rows in order of time, seven for training.

    Rows outside 1 to 1000 ms are in neither. Differs from the original, which loses the fastest row
    by an off-by-one error.
    """
    kept = np.flatnonzero((time_ms > _SHORTEST_MS) & (time_ms < _LONGEST_MS))
    ordered = kept[np.argsort(time_ms[kept], kind="stable")]
    is_training = np.arange(len(ordered)) % _CYCLE < _CYCLE_TRAIN
    train = np.zeros(len(time_ms), np.bool_)
    test = np.zeros(len(time_ms), np.bool_)
    train[ordered[is_training]] = True
    test[ordered[~is_training]] = True
    return train, test


def family_split(
    shapes: ConvShapes, *, seed: int, test_share: float = 0.3
) -> tuple[BoolArray, BoolArray]:
    """Returns (train, test), bool [R], with held-out values of input channels, output channels and
    width.

    Values of each of the three are held out at random; a row with at least one of them is a test
    row. No held-out value is in the training part, on any device. The number of held-out values is
    chosen so that the share of test rows is near `test_share`.

    Raises:
        DataError: a part would be empty.
    """
    rng = np.random.default_rng(seed)
    columns = [getattr(shapes, name) for name in _DIMENSIONS]
    ranks = []
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        order = rng.permutation(len(values))
        # A single value cannot be held out: no rows would be left for training.
        share = (order + 1) / len(values) if len(values) > 1 else np.full(1, 2.0)
        ranks.append(share[place.ravel()])
    lowest = np.min(ranks, axis=0)
    steps = np.unique(lowest[lowest < 1.0])
    if not len(steps):
        raise DataError(
            "the rows have a single family of shapes, so nothing can be held out; expected "
            "several values of channels or width, or use --split original"
        )
    shares = np.array([np.mean(lowest <= step) for step in steps])
    cut = steps[int(np.argmin(np.abs(shares - test_share)))]
    return _sides(lowest <= cut)


def octave_split(
    shapes: ConvShapes, *, seed: int, test_share: float = 0.3
) -> tuple[BoolArray, BoolArray]:
    """Returns (train, test), bool [R], with held-out blocks of shapes: rows whose input channels,
    output channels and width are in the same powers of two.

    Harder than `family_split`: no shape near a test row is in the training part.

    Raises:
        DataError: a part would be empty.
    """
    octaves = np.stack(
        [np.log2(getattr(shapes, name)).astype(np.int64) for name in _DIMENSIONS], axis=1
    )
    blocks, place = np.unique(octaves, axis=0, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(blocks))
    held_out = order < round(test_share * len(blocks))
    return _sides(held_out[place.ravel()])


def divide(
    shapes: ConvShapes, time_ms: FloatArray, split: SplitKind, *, seed: int
) -> tuple[BoolArray, BoolArray]:
    """Returns (train, test), bool [R], by one of the splits.

    Raises:
        DataError: a part would be empty (not checked for `original`).
    """
    if split == "original":
        return original_split(time_ms)
    return (octave_split if split == "octave" else family_split)(shapes, seed=seed)


def check_parts(train: BoolArray, test: BoolArray) -> None:
    """Checks that both parts, bool [R], have rows.

    Raises:
        DataError: a part is empty.
    """
    if not train.any() or not test.any():
        raise DataError(
            f"the split leaves {int(train.sum())} training and {int(test.sum())} test rows; "
            "expected some of both: use more rows or another --split"
        )


def _sides(test: BoolArray) -> tuple[BoolArray, BoolArray]:
    check_parts(~test, test)
    return ~test, test
