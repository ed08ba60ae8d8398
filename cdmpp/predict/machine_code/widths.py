"""Half widths of intervals by how long programs take and what they compute: the shorter a program,
and the less it computes, the worse it may be known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray, IntArray, TextArray
from cdmpp.conformal import half_widths, least_owners

COVERAGE = 0.9
_BANDS_LOG_S = np.log([1e-5, 1e-4, 1e-3, 1e-2])


@dataclass(frozen=True)
class CodeWidths:
    """Half widths of the 90 % intervals of the logarithm of seconds.

    Attributes:
        pooled: where nothing more is known.
        by_band: of programs that take less than 10 us, 100 us, 1 ms, 10 ms and longer.
        by_band_and_kind: likewise, operator kind -> half width.
    """

    pooled: float
    by_band: tuple[float, ...] = ()
    by_band_and_kind: tuple[dict[str, float], ...] = ()

    @classmethod
    def of(
        cls,
        error: FloatArray,
        log_s: FloatArray,
        task: TextArray,
        kind: TextArray,
    ) -> CodeWidths:
        """Returns the half widths that errors ask for.

        Every task has the same weight; see `cdmpp.conformal.half_widths`. Fewer tasks than that
        needs give one quantile over all programs.

        Args:
            error: float64 [N], absolute errors of the logarithm.
            log_s: float64 [N], logarithm of the seconds that were said.
            task: str [N].
            kind: str [N], kind of the operator; one of a task.
        """
        tasks, first, owner = np.unique(task, return_index=True, return_inverse=True)
        if len(tasks) < least_owners(COVERAGE):
            return cls(float(np.quantile(error, COVERAGE, method="higher")))
        kinds, number = np.unique(kind, return_inverse=True)
        found = half_widths(
            error, owner, _band(log_s), number[first], columns=len(_BANDS_LOG_S) + 1,
            kinds=len(kinds), coverage=COVERAGE,
        )  # fmt: skip
        return cls(
            pooled=found.pooled,
            by_band=tuple(found.by_column.tolist()),
            by_band_and_kind=tuple(
                dict(zip(kinds.tolist(), cells, strict=True)) for cells in found.by_cell.tolist()
            ),
        )

    def half_width(self, log_s: FloatArray, kind: TextArray) -> FloatArray:
        """Returns float64 [N], the half width of each program.

        Args:
            log_s: float64 [N], logarithm of the predicted seconds.
            kind: str [N], kind of the operator.
        """
        if not self.by_band:
            return np.full(len(log_s), self.pooled)
        places = zip(_band(log_s).tolist(), kind.tolist(), strict=True)
        return np.array(
            [self.by_band_and_kind[band].get(name, self.by_band[band]) for band, name in places]
        )


def _band(log_s: FloatArray) -> IntArray:
    return np.searchsorted(_BANDS_LOG_S, log_s)
