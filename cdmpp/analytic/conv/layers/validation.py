"""A fit of measured layers with its validation on held-out layers and devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.errors import LAYER, ConvErrors, filters_of
from cdmpp.analytic.conv.layers.model import LayerModel, LayerOptions, fit_layers, remove_drifts
from cdmpp.analytic.conv.layers.table import LayerTable, device_rows
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.analytic.intervals import ErrorSamples
from cdmpp.errors import DataError

#: Minimum number of validation fits; with more devices there is one per device.
_LEAST_FITS = 3


def fit_validated_layers(
    table: LayerTable, options: LayerOptions | None = None, *, seed: int = 0
) -> LayerModel:
    """Fits the model to measured layers and measures its errors on held-out data.

    Raises:
        DataError: as `fit_layers`.
    """
    model = fit_layers(table, options, seed=seed)
    return replace(model, errors=held_out_errors(model, table, seed=seed))


def held_out_errors(model: LayerModel, table: LayerTable, *, seed: int = 0) -> ConvErrors:
    """Returns the errors of refits on held-out layers and devices.

    There is one fit per device, but at least three. Each fit holds out values of channels and width
    (`family_split`) and all rows of one device. It is evaluated on the layers with a held-out
    value: these are `UNSEEN` on the held-out device and seen on the others. Times are without the
    model's drift. Rows that cannot be split have unknown errors.

    Args:
        table: the rows that the model was fitted to.
    """
    clean = remove_drifts(table, model.drifts)
    options = replace(model.options, has_drift=False)
    labels = [spec.name for spec, _ in device_rows(table)]
    samples = ErrorSamples()
    for fold in range(max(_LEAST_FITS, len(labels))):
        out = labels[fold % len(labels)] if len(labels) > 1 else ""
        is_out = np.array([spec.name == out for spec in table.devices])[table.device]
        try:
            train, test = family_split(table.shapes, seed=seed + fold)
            fitted = fit_layers(clean[train & ~is_out], options, seed=seed)
            _judge(fitted, clean[test], out, samples)
        except DataError:  # too few values, or no layer of an algorithm left
            continue
    return ConvErrors(samples.by_device(), filters_of([table.shapes]))


def _judge(fitted: LayerModel, judged: LayerTable, out: str, samples: ErrorSamples) -> None:
    found = fitted.predict(judged)
    label = np.array([spec.name for spec in judged.devices])[judged.device]
    whole = np.full(len(judged), LAYER)
    samples.add_rows(label, whole, judged.time_ms, found.time_ms, left_out=(out,))
    named = np.flatnonzero(judged.algorithm >= 0)
    number = judged.algorithm[named]
    samples.add_rows(
        label[named], np.array([ConvAlgorithm(one).name for one in number]), judged.time_ms[named],
        found.closed_ms[named, number], left_out=(out,),
    )  # fmt: skip
