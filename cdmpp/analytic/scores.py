"""Errors of one model on one group of rows, the result of this package's evaluations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.metrics import absolute_percentage_error, spearman


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of one model on one group of rows, as fractions.

    Attributes:
        split: what was held out.
        device: label, or a group of devices.
        group: kind of call, or `all`.
        model: this package's model or a baseline.
        seed: seed of the fit; `-` without one.
        mape: mean absolute error.
        median_ape: median absolute error.
        n: number of rows.
        family: kernel family; "" if `group` names it.
        rank: Spearman correlation of predicted and measured times; None if not computed.
        covered: share of the rows inside their intervals; None if not computed.
    """

    split: str
    device: str
    group: str
    model: str
    seed: str
    mape: float
    median_ape: float
    n: int
    family: str = ""
    rank: float | None = None
    covered: float | None = None

    @classmethod
    def of(
        cls, measured: FloatArray, predicted: FloatArray, *, has_rank: bool = False, **place: Any
    ) -> Score:
        """Returns the errors of rows, float64 [R] both.

        Args:
            place: `split`, `device`, `group`, `model`, `seed` and optionally `family`.
        """
        error = absolute_percentage_error(measured, predicted)
        rank = spearman(predicted, measured) if has_rank else None
        return cls(
            mape=float(error.mean()), median_ape=float(np.median(error)), n=len(error), rank=rank,
            **place,
        )  # fmt: skip

    def row(self, *more: str) -> dict[str, Any]:
        """Returns a value for JSON: the fields of every score and those named in `more`."""
        values = asdict(self)
        names = ("split", "device", "group", "model", "seed", "mape", "median_ape", "n", *more)
        return {name: values[name] for name in names}
