"""Which rows are for fitting and which for judging."""

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
    """Returns (train, test), bool [R]: rows in order of time, seven of every ten for training.

    Rows outside 1 to 1000 ms are in neither. Differs from the original, which loses the fastest row
    by an error of one.
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
    """Returns (train, test), bool [R]: held-out values of input channels, output channels and
    width.

    Values are held out of each of the three at random; a row with at least one of them is a test
    row. So no test row has all of its values in training, and no held-out value is seen there,
    whatever device a row was measured on. As many values are held out as give a share of test rows
    near `test_share`.

    Raises:
        DataError: a side would be empty.
    """
    rng = np.random.default_rng(seed)
    columns = [getattr(shapes, name) for name in _DIMENSIONS]
    ranks = []
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        order = rng.permutation(len(values))
        # A lone value cannot be held out: nothing would be left to fit.
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
    """Returns (train, test), bool [R]: whole blocks of shapes are held out, a block being the rows
    whose input channels, output channels and width lie in the same powers of two.

    Harder than `family_split`: no shape near a test row is seen.

    Raises:
        DataError: a side would be empty.
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
    """Returns (train, test), bool [R], of one of the splits.

    Raises:
        DataError: a side would be empty.
    """
    if split == "original":
        return original_split(time_ms)
    return (octave_split if split == "octave" else family_split)(shapes, seed=seed)


def _sides(test: BoolArray) -> tuple[BoolArray, BoolArray]:
    if not test.any() or test.all():
        raise DataError(
            f"the split leaves {int((~test).sum())} training and {int(test.sum())} test rows; "
            "expected some of both: use more rows or --split original"
        )
    return ~test, test
