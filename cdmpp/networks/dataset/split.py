"""Parts of a data set of networks: by architecture, or at random (which leaks)."""

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
#: Training, validation and test part, as published.
FRACTIONS = (0.5, 0.25, 0.25)


@dataclass(frozen=True)
class NetworkSplit:
    """Rows of the three parts.

    Attributes:
        kind: `architecture`: no architecture is in two parts. `random`: the same architecture at
            another batch can be in another part.
        seed: what the parts were drawn with.
        train: int64, rows; so are `validation` and `test`.
        shared_architectures: architectures that are in the test part and in another one.
    """

    kind: SplitKind
    seed: int
    train: IntArray
    validation: IntArray
    test: IntArray
    shared_architectures: int

    @property
    def leaks(self) -> bool:
        """Whether the test part holds architectures that are in another part."""
        return self.shared_architectures > 0

    def to_json(self) -> dict[str, Any]:
        """Returns what the run folder keeps of it."""
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
    """Returns the parts: equal for equal names and seed, whatever the order of the rows.

    Args:
        architecture: [rows] id of the network without its batch.
        names: [rows] id of the network with its batch.
        kind: what is drawn: an architecture with all of its batches, or one row.

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
