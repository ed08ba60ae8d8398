"""Splits of a data set of networks: by architecture, or at random (which leaks)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cdmpp.arrays import IntArray
from cdmpp.datasets.splits import uniform_draw
from cdmpp.errors import DataError
from cdmpp.text import counted

SplitKind = Literal["architecture", "random"]
#: Published fractions of the training, validation and test part.
FRACTIONS = (0.5, 0.25, 0.25)


@dataclass(frozen=True)
class NetworkSplit:
    """Rows of the training, validation and test part.

    Attributes:
        kind: `architecture`: no architecture is in two parts. `random`: an architecture can be in
            several parts, at different batch sizes.
        seed: seed of the split.
        train, validation, test: int64, rows.
        shared_architectures: number of architectures in the test part and another part.
    """

    kind: SplitKind
    seed: int
    train: IntArray
    validation: IntArray
    test: IntArray
    shared_architectures: int

    @property
    def leaks(self) -> bool:
        """Whether the test part shares architectures with another part."""
        return self.shared_architectures > 0

    def to_json(self) -> dict[str, Any]:
        """Returns a summary of the split for the run folder."""
        return {
            "kind": self.kind,
            "seed": self.seed,
            "fractions": list(FRACTIONS),
            "train": len(self.train),
            "validation": len(self.validation),
            "test": len(self.test),
            "shared_architectures": self.shared_architectures,
            "leaks": self.leaks,
        }


def split_networks(
    architecture: Sequence[str], names: Sequence[str], *, kind: SplitKind, seed: int
) -> NetworkSplit:
    """Returns a split that depends on the set of names and the seed, not on the order of rows.

    Args:
        architecture: [rows] id of the network without its batch size.
        names: [rows] id of the network with its batch size.
        kind: `architecture` draws architectures with all their rows, `random` draws `names`.

    Raises:
        DataError: a part is empty.
    """
    drawn_by = architecture if kind == "architecture" else names
    distinct = sorted(set(drawn_by), key=lambda name: uniform_draw(name, seed))
    ends = np.round(np.cumsum(FRACTIONS) * len(distinct)).astype(np.int64)
    part_of = {
        name: int(np.searchsorted(ends, place, side="right")) for place, name in enumerate(distinct)
    }
    part = np.array([part_of[name] for name in drawn_by], np.int64)
    rows = [np.flatnonzero(part == number) for number in range(len(FRACTIONS))]
    if not all(map(len, rows)):
        raise DataError(
            f"{counted(len(distinct), kind if kind == 'architecture' else 'network', 'are')} "
            "too few for a training, a validation and a test part; expected at least 4. Measure "
            "more with `cdmpp networks measure`"
        )
    test = {architecture[row] for row in rows[2].tolist()}
    others = {architecture[row] for row in np.concatenate(rows[:2]).tolist()}
    return NetworkSplit(kind, seed, rows[0], rows[1], rows[2], len(test & others))
