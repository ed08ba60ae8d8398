"""What every model of one kernel has in common: columns of sizes in, seconds out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdmpp.analytic.embedding.devices import KernelDevice
from cdmpp.analytic.embedding.gpu import KernelOptions, estimate
from cdmpp.analytic.embedding.shapes import EmbeddingShape, Pass
from cdmpp.errors import DataError

FloatArray = NDArray[np.float64]


class KernelModel(ABC):
    """Predicts the time of one kind of kernel.

    Attributes:
        columns: names of the sizes it needs.
    """

    columns: tuple[str, ...]

    @abstractmethod
    def latency_s(self, sizes: Mapping[str, ArrayLike]) -> FloatArray:
        """Returns float64 [N], seconds.

        Args:
            sizes: column name -> [N] numbers; other columns are ignored.

        Raises:
            DataError: a column is missing, or columns differ in length.
        """


def size_table(columns: tuple[str, ...], sizes: Mapping[str, ArrayLike]) -> FloatArray:
    """Returns float64 [N, K] of the named columns.

    Raises:
        DataError: a column is missing, or columns differ in length.
    """
    missing = [name for name in columns if name not in sizes]
    if missing:
        raise DataError(
            f"kernel sizes: no column {', '.join(missing)}; got {', '.join(sizes)}; expected "
            f"{', '.join(columns)}"
        )
    values = [np.atleast_1d(np.asarray(sizes[name], np.float64)) for name in columns]
    if len({len(value) for value in values}) != 1:
        lengths = ", ".join(f"{n}: {len(v)}" for n, v in zip(columns, values, strict=True))
        raise DataError(f"kernel sizes: columns of different length ({lengths})")
    return np.column_stack(values)


@dataclass(frozen=True)
class EmbeddingKernelModel(KernelModel):
    """The formulas of `embedding.py` for a table of shapes."""

    device: KernelDevice
    which: Pass = "forward"
    options: KernelOptions = field(default_factory=KernelOptions)
    columns = ("batch", "rows", "tables", "lookups", "width", "rows_per_block")

    def latency_s(self, sizes: Mapping[str, ArrayLike]) -> FloatArray:
        """Returns float64 [N], seconds (see `KernelModel`)."""
        table = size_table(self.columns, sizes)
        return np.array(
            [
                estimate(
                    EmbeddingShape(*(int(value) for value in row)),
                    self.device,
                    self.which,
                    options=self.options,
                ).latency_s
                for row in table
            ],
            np.float64,
        )
