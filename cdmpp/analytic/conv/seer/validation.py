"""A fit of measured kernels with its validation on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.errors import ConvErrors, filters_of
from cdmpp.analytic.conv.seer.fitting import (
    FFT_TABLES,
    FFT_TILING_TABLE,
    SeerOptions,
    fit_seer,
)
from cdmpp.analytic.conv.seer.model import SeerModel
from cdmpp.analytic.conv.seer.polynomials import fft_tiling_columns
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.intervals import ErrorSamples
from cdmpp.arrays import FloatArray
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError

#: Number of validation fits.
_FITS = 2
#: Maximum number of settings that a validation fit tries per tree; the search dominates its time.
_SEARCH_EVALUATIONS = 10


def fit_validated_seer(
    tables: Mapping[str, ConvTable],
    device: DeviceSpec,
    options: SeerOptions | None = None,
    *,
    seed: int = 0,
) -> SeerModel:
    """Fits the model of a device and measures its errors on held-out rows.

    Each of two fits holds values of channels and width out of every table (`family_split`) and is
    evaluated, by algorithm, on the rows with such a value; its trees get a shorter search. Tables
    that cannot be split are used in full and not evaluated.

    Raises:
        DataError: as `fit_seer`.
    """
    options = options or SeerOptions()
    evaluations = min(options.trees.search_evaluations, _SEARCH_EVALUATIONS)
    quick = replace(options, trees=replace(options.trees, search_evaluations=evaluations))
    samples = ErrorSamples()
    for fold in range(_FITS):
        train, test = dict(tables), {}
        for name, table in tables.items():
            try:
                kept, left_out = family_split(table.shapes, seed=seed + fold)
            except DataError:  # a single value of each
                continue
            train[name], test[name] = table[kept], table[left_out]
        try:
            fitted = fit_seer(train, device, quick)
        except DataError:  # the remaining rows have no counters
            continue
        for algorithm, measured, predicted in judged_kernels(fitted, test):
            samples.add(device.name, algorithm.name, measured, predicted, is_seen=True)
    errors = ConvErrors(
        samples.by_device(), filters_of([table.shapes for table in tables.values()])
    )
    return replace(fit_seer(tables, device, options), errors=errors)


def judged_kernels(
    model: SeerModel, tables: Mapping[str, ConvTable]
) -> Iterator[tuple[ConvAlgorithm, FloatArray, FloatArray]]:
    """Yields (algorithm, measured, predicted) milliseconds of each table's main kernel."""
    for name, table in tables.items():
        shapes = table.shapes
        if name in model.variants:
            variant = model.variants[name]
            found = variant.predict(shapes, model.launch(name, shapes)).time_ms
            yield variant.variant.algorithm, table.time_ms, found
        elif name in FFT_TABLES and model.fft is not None:
            yield ConvAlgorithm.FFT, table.time_ms, model.fft.predict(shapes)
        elif name == FFT_TILING_TABLE and model.fft_tiling is not None:
            found = model.fft_tiling.predict(fft_tiling_columns(shapes))
            yield ConvAlgorithm.FFT_TILING, table.time_ms, found
