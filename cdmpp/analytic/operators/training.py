"""Fits the operator model: leave-one-GPU-out validation, then the final fits."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.intervals import DeviceErrors, LogErrors
from cdmpp.analytic.operators.device import Hardware
from cdmpp.analytic.operators.errors import OperatorErrors, largest_sizes
from cdmpp.analytic.operators.intervals import chips_of, held_out_errors, larger_errors
from cdmpp.analytic.operators.model import (
    FAMILIES,
    FamilyFit,
    OperatorModel,
    fit_family,
    known_hardware,
)
from cdmpp.analytic.operators.operators import MATMUL_KINDS, is_matmul
from cdmpp.analytic.operators.tables import TABLES, OperatorTable, read_table
from cdmpp.arrays import BoolArray
from cdmpp.errors import DataError

logger = logging.getLogger(__name__)

#: Candidates of `OperatorModel.octaves`; None = equal weights.
OCTAVES: tuple[float | None, ...] = (None, 4.0, 2.0, 1.0)
#: Share of the shapes, the largest ones, that validation holds out.
LARGE_SHARE = 0.25


@dataclass(frozen=True)
class FitOptions:
    """Options of a fit.

    Attributes:
        seeds: seed of each draw of rows; predictions are the geometric mean over the draws.
        most_rows: maximum number of rows per operator class in a fit.
        most_validation_rows: the same for the fits that select `octaves` and measure the errors.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    most_rows: int = 2500
    most_validation_rows: int = 1500


def read_training_tables(*folders: Path) -> dict[str, OperatorTable]:
    """Returns family -> measurements of the tables `bmm`, `linear`, `elementwise`, `softmax` and
    `ln` (`.csv` or `.csv.gz`) of all folders.

    Raises:
        DataError: a table is missing or invalid.
    """
    tables: dict[str, list[OperatorTable]] = {family: [] for family in FAMILIES}
    for folder in folders:
        for name in TABLES:
            family = "matmul" if name in MATMUL_KINDS else name
            tables[family].append(read_table(table_path(folder, name)))
    return {family: OperatorTable.concatenate(parts) for family, parts in tables.items()}


def table_path(folder: Path, name: str) -> Path:
    """Returns the path of a table, compressed or not.

    Raises:
        DataError: the folder does not have the table.
    """
    for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv"):
        if path.exists():
            return path
    raise DataError(
        f"{folder}: no table {name}.csv.gz or {name}.csv; expected a folder of operator tables"
    )


def fit_model(
    tables: Mapping[str, OperatorTable],
    options: FitOptions | None = None,
    *,
    about: dict[str, Any] | None = None,
) -> OperatorModel:
    """Fits the model: selects `octaves` by validation, then fits each family once per seed.

    Validation holds one chip (all its GPUs) and the largest quarter of the shapes out of a fit and
    predicts those shapes on those GPUs. The value of `octaves` with the smallest mean error over
    the families is selected; with a single chip all devices have equal weights. The model's errors
    on larger shapes are from these fits, all other errors from fits that hold out random shapes and
    a chip (`held_out_errors`).

    Args:
        tables: family -> measurements.
        about: facts to store with the model.
    """
    options = options or FitOptions()
    labels = sorted({str(label) for table in tables.values() for label in np.unique(table.device)})
    known = known_hardware(labels)
    scores: dict[str, dict[float | None, float]] = {}
    fits: dict[str, tuple[FamilyFit, ...]] = {}
    left_out: dict[str, dict[str, FamilyFit]] = {}
    for family, table in tables.items():
        logger.info("fitting %s on %d measurements", family, len(table))
        left_out[family] = left_out_fits(table, family, known, options)
        scores[family] = validate(table, left_out[family], family, known, options)
        fits[family] = tuple(
            fit_family(table, family, known, seed=seed, most_rows=options.most_rows).rounded()
            for seed in options.seeds
        )
    octaves = _best(scores)
    errors = _errors(tables, left_out, known, octaves, options)
    facts = {
        "seeds": list(options.seeds),
        "most_rows": options.most_rows,
        "rows": {family: len(table) for family, table in tables.items()},
        "validation_mape_by_octaves": {
            family: {str(octaves or "alike"): round(error, 6) for octaves, error in own.items()}
            for family, own in scores.items()
        },
    }
    return OperatorModel(fits, octaves, known, {**facts, **(about or {})}, errors)


def _errors(
    tables: Mapping[str, OperatorTable],
    left_out: Mapping[str, Mapping[str, FamilyFit]],
    known: Mapping[str, Hardware],
    octaves: float | None,
    options: FitOptions,
) -> OperatorErrors:
    by_device: DeviceErrors = {}
    larger: dict[str, LogErrors] = {}
    largest: dict[str, dict[str, float]] = {}
    for family, table in tables.items():
        logger.info("evaluating %s", family)
        found = held_out_errors(
            table, family, known,
            octaves=octaves, seed=options.seeds[0], most_rows=options.most_validation_rows,
        )  # fmt: skip
        for label, own in found.items():
            by_device.setdefault(label, {}).update(own)
        large = table[large_shapes(table)]
        larger |= larger_errors(large, left_out[family], family, known, octaves=octaves)
        largest |= largest_sizes(table.operators)
    return OperatorErrors(by_device, larger, largest)


def _best(scores: Mapping[str, Mapping[float | None, float]]) -> float | None:
    judged = [own for own in scores.values() if own]
    if not judged:
        return None
    return min(OCTAVES, key=lambda octaves: sum(own[octaves] for own in judged))


def left_out_fits(
    table: OperatorTable,
    family: str,
    known: Mapping[str, Hardware],
    options: FitOptions,
) -> dict[str, FamilyFit]:
    """Returns label of a GPU -> the fit without its chip and the large shapes, for chips
    whose small shapes are not all.
    """
    small = table[~large_shapes(table)]
    chips = chips_of(table, known)
    found: dict[str, FamilyFit] = {}
    for chip in chips:
        others = small[~np.isin(small.device, chip)]
        if len(others):
            fit = fit_family(
                others, family, known,
                seed=options.seeds[0], most_rows=options.most_validation_rows,
            )  # fmt: skip
            found |= dict.fromkeys(chip, fit)
    return found


def validate(
    table: OperatorTable,
    fits: Mapping[str, FamilyFit],
    family: str,
    known: Mapping[str, Hardware],
    options: FitOptions,
) -> dict[float | None, float]:
    """Returns octaves -> mean absolute error (a fraction) on the large shapes, averaged over the
    held-out GPUs that have such shapes; empty without any.

    Args:
        fits: result of `left_out_fits`.
    """
    is_large = large_shapes(table)
    errors: dict[float | None, list[float]] = {octaves: [] for octaves in OCTAVES}
    for left_out, fit in fits.items():
        judged = table[(table.device == left_out) & is_large]
        judged = judged[_spread(len(judged), options.most_validation_rows)]
        for octaves, own in errors.items() if len(judged) else ():
            model = OperatorModel({family: (fit,)}, octaves, dict(known), {})
            predicted = model.predict(judged.operators, judged.device, known)
            own.append(float(np.mean(np.abs(predicted / judged.latency_s - 1.0))))
    return {octaves: float(np.mean(values)) for octaves, values in errors.items() if values}


def _spread(count: int, most: int) -> NDArray[np.intp]:
    """Returns at most `most` row numbers, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.intp))


def large_shapes(table: OperatorTable) -> BoolArray:
    """Returns bool [N], whether a shape is in the top quarter of its kind by work: operations of
    matrix products, bytes of other operators.
    """
    operators = table.operators
    work = np.where(is_matmul(operators.kind), operators.flop, operators.bytes)
    result = np.zeros(len(table), np.bool_)
    for name in np.unique(operators.kind):
        rows = operators.kind == name
        result[rows] = work[rows] > np.quantile(work[rows], 1.0 - LARGE_SHARE)
    return result
