"""Intervals of operator times, from the operator model's errors on held-out data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.intervals import UNSEEN, DeviceErrors, ErrorSamples, Evidence, LogErrors
from cdmpp.analytic.operators.device import Hardware, hardware
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.model import (
    Context,
    FamilyFit,
    OperatorModel,
    fit_family,
)
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.operators.tables import OperatorTable
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError
from cdmpp.files.atomic import read_json
from cdmpp.pretrained import PRETRAINED
from cdmpp.text import counted

#: Share of the shapes that each validation fit holds out.
_HELD_OUT = 0.3

#: Errors in the card: kernels of `KernelTimes`, queued operators, rooflines.
CardEntry = Literal["log_errors", "queued_log_errors", "roofline_log_errors"]
Which = Literal["seen", "unseen"]


def held_out_errors(
    table: OperatorTable,
    family: str,
    known: Mapping[str, Hardware],
    *,
    octaves: float | None,
    seed: int,
    most_rows: int,
) -> DeviceErrors:
    """Returns a family's errors on held-out shapes and devices, by device and `judged_as`.

    There is one fit per chip. Each fit holds out some shapes and all rows of one chip, and is
    evaluated on these shapes: the GPUs of that chip are unseen, the others seen.

    Args:
        octaves: `octaves` of the model.
        most_rows: row limit of each fit, see `FitOptions.most_validation_rows`.
    """
    samples = ErrorSamples()
    shape = _shape_numbers(table)
    chips = chips_of(table, known)
    for fold, chip in enumerate(chips):
        out = chip if len(chips) > 1 else ()
        draw = np.random.default_rng(seed + fold).random(int(shape.max()) + 1)
        is_out = draw[shape] < _HELD_OUT
        rest = table[~is_out & ~np.isin(table.device, out)]
        if len(rest) and is_out.any():
            fit = fit_family(rest, family, known, seed=seed, most_rows=most_rows)
            _judge(samples, fit, table[is_out], family, known, octaves, out)
    return samples.by_device()


def larger_errors(
    table: OperatorTable,
    fits: Mapping[str, FamilyFit],
    family: str,
    known: Mapping[str, Hardware],
    *,
    octaves: float | None,
) -> dict[str, LogErrors]:
    """Returns `judged_as` -> errors on shapes larger than those of a fit, on GPUs held out of it.

    Args:
        table: the large shapes, which no fit used.
        fits: label of the held-out GPU -> the fit without it.
        octaves: `octaves` of the model.
    """
    samples = ErrorSamples()
    for out, fit in fits.items():
        _judge(samples, fit, table[table.device == out], family, known, octaves, (out,))
    return samples.by_device().get(UNSEEN, {})


def _judge(
    samples: ErrorSamples,
    fit: FamilyFit,
    judged: OperatorTable,
    family: str,
    known: Mapping[str, Hardware],
    octaves: float | None,
    out: Sequence[str],
) -> None:
    model = OperatorModel({family: (fit,)}, octaves, dict(known), {})
    predicted_s = model.predict(judged.operators, judged.device, known)
    groups = np.array([judged_as(str(kind)) for kind in judged.operators.kind])
    samples.add_rows(judged.device, groups, judged.latency_s, predicted_s, left_out=out)


def chips_of(table: OperatorTable, known: Mapping[str, Hardware]) -> list[tuple[str, ...]]:
    """Returns the labels of a table's GPUs, grouped by chip: GPUs of one chip differ only in their
    memory, so measurements of one predict the others.
    """
    chips: dict[object, list[str]] = {}
    for label in map(str, np.unique(table.device)):
        one = known[label]
        chips.setdefault((one.core_count, one.clock_hz, one.peak_flop_per_s), []).append(label)
    return [tuple(labels) for labels in chips.values()]


def operator_errors(
    model: OperatorModel,
    place: Path | str,
    kind: str,
    device: str,
    context: Context,
    *,
    is_larger: bool,
) -> tuple[LogErrors | None, Evidence]:
    """Returns the errors of an operator's time on a device (None if unknown) and their source.

    The errors of an isolated call are from the model's validation. The errors of queued operators
    were measured inside whole models, for the packaged model only (`packaged_operators`).

    Args:
        place: file of the model, or `pretrained`.
        device: label from `OperatorModel.measured_as`.
        is_larger: whether the operator is larger than all measured ones.
    """
    if context == "queued" and str(place) == PRETRAINED:
        judged = packaged_operators()
        return judged.errors_of(kind, device, "queued_log_errors"), judged.evidence(kind, device)
    if context == "queued":
        why = "this model was not evaluated on queued operators; use --context isolated"
        return None, Evidence(why, False)
    again = "cdmpp analytic operator fit"
    if model.errors is None:
        return None, Evidence.missing(None, device, again)
    errors = model.errors.of(kind, device, is_larger=is_larger)
    group = judged_as(kind)
    if errors is None and is_larger:
        why = (
            f"no {group} of this size is in the training data, and too few rows to validate "
            "larger sizes"
        )
        return None, Evidence(f"{why}; add rows, and {again}", False)
    if errors is None:
        return None, Evidence.missing(model.errors.on(group), device, again)
    what = f"{counted(errors.count, 'call')} of {group}"
    if is_larger:
        where = "larger than those of a fit, each on a GPU left out of it (the widest)"
        return errors, Evidence(f"90 % of {what} {where}", True)
    return errors, Evidence.of_devices(model.errors.on(group), device, what, "shapes")


def operators_are_larger(
    model: OperatorModel, operators: Operators, context: Context
) -> list[bool]:
    """Returns for each operator whether it is larger than all operators of the model's validation;
    False for queued operators, which were evaluated at any size.
    """
    if model.errors is None or context == "queued":
        return [False] * len(operators)
    return [bool(one) for one in model.errors.is_larger(operators)]


@dataclass(frozen=True)
class JudgedOperators:
    """An operator model and its errors inside whole models, which were not in its fit.

    Attributes:
        errors: entry of the card -> group -> `seen` or `unseen` GPU -> errors.
    """

    model: OperatorModel
    errors: Mapping[CardEntry, Mapping[str, Mapping[Which, LogErrors]]]

    def measured_as(self, device: DeviceSpec) -> str:
        """Returns the fitted label of this device, see `OperatorModel.measured_as`; its own label
        if the registry lacks values of the device.
        """
        try:
            return self.model.measured_as(device.name, hardware(device))
        except DeviceError:
            return device.name

    def errors_of(
        self, kind: str, device: str, entry: CardEntry, *, group: str | None = None
    ) -> LogErrors:
        """Returns the errors of an operator kind on a device.

        Args:
            device: label from `OperatorModel.measured_as`.
            group: group that the operator is evaluated in; None = `judged_as(kind)`.
        """
        which: Which = "seen" if self.model.is_fitted(kind, device) else "unseen"
        return self.errors[entry][group or judged_as(kind)][which]

    def evidence(self, kind: str, device: str) -> Evidence:
        """Returns the source of the errors of `errors_of`."""
        where = "GPUs of the fit"
        if not self.model.is_fitted(kind, device):
            where = f"GPUs left out of a fit (the widest); {device} is an unseen device"
        what = f"{judged_as(kind)} operators inside whole models"
        return Evidence(f"90 % of {what} on {where}", True)


@lru_cache
def packaged_operators() -> JudgedOperators:
    """Returns the packaged model and the errors in its card.

    Raises:
        DataError: the model or its card cannot be read.
    """
    path = OperatorModel.packaged_path()
    card = read_json(
        path.with_name("card.json"), what="card of the operator model", hint="reinstall cdmpp"
    )
    errors = {
        entry: {
            group: {which: LogErrors.from_json([*ends, 0]) for which, ends in own.items()}
            for group, own in card[entry].items()
        }
        for entry in get_args(CardEntry)
    }
    return JudgedOperators(OperatorModel.load(path), errors)


def _shape_numbers(table: OperatorTable) -> NDArray[np.intp]:
    """Returns int [N], one number per shape, independent of kind and GPU."""
    one = table.operators
    sizes = np.stack([one.batch, one.m, one.n, one.k, one.rows, one.cols], axis=1)
    return np.unique(sizes, axis=0, return_inverse=True)[1].ravel()
