"""The operator model: roofline forms with efficiencies fitted to measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.analytic.operators import matmul as operator_matmul
from cdmpp.analytic.operators import rows as operator_rows
from cdmpp.analytic.operators.device import (
    Hardware,
    hardware_rows,
    similarity_weights,
)
from cdmpp.analytic.operators.errors import OperatorErrors
from cdmpp.analytic.operators.fit import Layout, Parameter, fit_parameters
from cdmpp.analytic.operators.operators import MATMUL_KINDS, Operators
from cdmpp.analytic.operators.tables import OperatorTable
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json
from cdmpp.files.stored import read_model, to_json

#: `isolated`: one call that waits for the host, as a microbenchmark times it. `queued`: a call
#: behind other operators, which hide the host's dispatch.
Context = Literal["isolated", "queued"]

FORMAT_VERSION = 1
#: Families that are fitted separately; `matmul` is bmm and linear together.
FAMILIES = ("matmul", "elementwise", "softmax", "ln")


@dataclass(frozen=True)
class FamilyFit:
    """One fit of one family.

    Attributes:
        values: parameter -> float64 [width], see `cdmpp.analytic.operators.fit`.
        devices: labels of the devices in the fit, in the order of the values.
    """

    values: dict[str, FloatArray]
    devices: tuple[str, ...]

    def rounded(self) -> FamilyFit:
        """Returns the fit rounded to seven digits, as a file stores it."""
        values = {
            name: np.array([float(f"{value:.7g}") for value in own])
            for name, own in self.values.items()
        }
        return FamilyFit(values, self.devices)


@dataclass(frozen=True)
class OperatorModel(AnalyticModel):
    """Predicts the time of an operator on a GPU, with or without measurements on that GPU.

    Attributes:
        fits: family -> fits to different draws of the rows; predictions are their geometric mean.
        octaves: distance over which the weight of a fitted device falls by e for an unseen device;
            None = equal weights.
        known: label -> hardware of the devices of the fits.
        about: free-form facts: data, seeds, versions.
        errors: errors of its validation; None if the model was fitted without validation.
    """

    what = "operator model"
    again = "refit it: cdmpp analytic operator fit"
    place = "operators/operators.json"

    fits: dict[str, tuple[FamilyFit, ...]] = field(metadata={"entry": "families"})
    octaves: float | None
    known: dict[str, Hardware] = field(metadata={"entry": "devices"})
    about: dict[str, Any]
    errors: OperatorErrors | None = None

    def predict(
        self,
        operators: Operators,
        device: TextArray,
        hardware: Mapping[str, Hardware],
        *,
        context: Context = "isolated",
    ) -> FloatArray:
        """Returns float64 [N], seconds.

        Args:
            device: text [N], labels; a device of the fit has its own efficiencies, any other one a
                weighted mean of those of similar devices.
            hardware: label -> hardware, for every label in `device`.
        """
        seconds = np.empty(len(operators))
        families = family_of(operators)
        for family in np.unique(families):
            rows = np.flatnonzero(families == family)
            members = [
                self._predict(
                    fit, str(family), operators[rows], device[rows], hardware, context=context
                )
                for fit in self.fits[str(family)]
            ]
            seconds[rows] = np.exp(np.mean(members, axis=0))
        return seconds

    def measured_as(self, label: str, device: Hardware) -> str:
        """Returns the fitted label with the same hardware, if there is one, else `label`: a V100 of
        32 GB has the numbers of one of 16 GB.
        """
        same = (name for name, one in self.known.items() if one == device)
        return label if label in self.known else next(same, label)

    def is_fitted(self, kind: str, label: str) -> bool:
        """Returns whether a device was in the fit of a kind of operator.

        Args:
            label: label from `measured_as`.
        """
        return any(label in fit.devices for fit in self.fits[_family(kind)])

    def launch_s(self, label: str, device: Hardware) -> float:
        """Returns seconds of an empty launch on a GPU, from the fit of element-wise operators."""
        logs = []
        for fit in self.fits["elementwise"]:
            weights = self._weights(fit, label, device)
            logs.append(float(weights @ fit.values["launch"]))
        return float(np.exp(np.mean(logs)))

    def _weights(self, fit: FamilyFit, label: str, device: Hardware) -> FloatArray:
        """Returns float64 [D], the weight of each device of a fit for this device."""
        if label in fit.devices:
            return np.array([float(name == label) for name in fit.devices])
        others = [self.known[name] for name in fit.devices]
        return similarity_weights(device, others, octaves=self.octaves)

    def _predict(
        self,
        fit: FamilyFit,
        family: str,
        operators: Operators,
        device: TextArray,
        hardware: Mapping[str, Hardware],
        *,
        context: Context,
    ) -> FloatArray:
        names, place = np.unique(device, return_inverse=True)
        weights = np.stack([self._weights(fit, str(name), hardware[str(name)]) for name in names])
        form = form_of(family)
        classes = form.classes(operators)
        values = {
            item.name: _row_values(item, fit.values[item.name], weights[place], classes)
            for item in form.parameters
        }
        inputs = form.inputs(operators, hardware_rows(device, hardware))
        return form.log_time(inputs, values, is_queued=context == "queued")

    def save(self, path: Path) -> None:
        write_json(path, {"format_version": FORMAT_VERSION, **to_json(self)})

    @classmethod
    def load(cls, path: Path) -> OperatorModel:
        model = read_model(
            cls, path, what=cls.what, again=cls.again, format=FORMAT_VERSION, entry="format_version"
        )
        try:
            _check(model)
        except (ValueError, KeyError) as error:
            raise DataError(
                f"{path}: cannot read the {cls.what} ({error!r}); {cls.again}"
            ) from None
        return model


@dataclass(frozen=True)
class Form:
    """The closed form of a family; see the modules `matmul` and `rows`.

    Attributes:
        class_count: number of classes with their own parameters.
        parameters: parameters of the form.
        classes: operators -> int [N], class of each.
        inputs: (operators, hardware rows) -> inputs of `log_time`.
        log_time: (inputs, row values, is_queued) -> float64 [N], log seconds.
    """

    class_count: int
    parameters: tuple[Parameter, ...]
    classes: Callable[[Operators], NDArray[np.intp]]
    inputs: Callable[[Operators, Mapping[str, FloatArray]], Mapping[str, FloatArray]]
    log_time: Callable[..., FloatArray]


def form_of(family: str) -> Form:
    """Returns the closed form of one of `FAMILIES`."""
    if family == "matmul":
        form = operator_matmul
        return Form(2, form.parameters(), form.classes, form.inputs, form.log_time)
    return Form(
        2 if family == "softmax" else 1,
        operator_rows.parameters(family),
        partial(operator_rows.classes, family=family),
        partial(operator_rows.inputs, family=family),
        partial(operator_rows.log_time, family=family),
    )


def family_of(operators: Operators) -> TextArray:
    """Returns text [N], the family of each operator."""
    kinds, place = np.unique(operators.kind, return_inverse=True)
    return np.array([_family(str(kind)) for kind in kinds])[place]


def _family(kind: str) -> str:
    if kind in MATMUL_KINDS:
        return "matmul"
    return kind if kind in FAMILIES else "elementwise"


def fit_family(
    table: OperatorTable,
    family: str,
    hardware: Mapping[str, Hardware],
    *,
    seed: int,
    most_rows: int,
) -> FamilyFit:
    """Fits the parameters of one family to a draw of the rows.

    Args:
        most_rows: maximum number of rows per class, drawn evenly over the devices.

    Raises:
        UsageError: the table is empty.
    """
    if not len(table):
        raise UsageError(f"no measurements of {family} to fit on")
    rng = np.random.default_rng(seed)
    form = form_of(family)
    of_class = form.classes(table.operators)
    drawn = np.concatenate(
        [
            _evenly(rng.permutation(np.flatnonzero(of_class == c)), table.device)[:most_rows]
            for c in np.unique(of_class)
        ]
    )
    chosen = table[drawn]
    devices, device_index = np.unique(chosen.device, return_inverse=True)
    layout = Layout(of_class[drawn], device_index, form.class_count, len(devices))
    ready = form.inputs(chosen.operators, hardware_rows(chosen.device, hardware))
    values = fit_parameters(
        form.parameters,
        layout,
        lambda values: form.log_time(ready, values, is_queued=False),
        np.log(chosen.latency_s),
    )
    return FamilyFit(values, tuple(str(name) for name in devices))


def _evenly(rows: NDArray[np.intp], device: TextArray) -> NDArray[np.intp]:
    """Returns the rows reordered: the first of each device, then the second of each, and so on."""
    turn = np.empty(len(rows), np.intp)
    for label in np.unique(device[rows]):
        own = np.flatnonzero(device[rows] == label)
        turn[own] = np.arange(len(own))
    return rows[np.argsort(turn, kind="stable")]


def _check(model: OperatorModel) -> None:
    none = np.zeros(0, np.intp)
    for family in FAMILIES:
        form = form_of(family)
        for fit in model.fits[family]:
            layout = Layout(none, none, form.class_count, len(fit.devices))
            for item in form.parameters:
                width = layout.width(item.scope)
                if fit.values[item.name].shape != (width,):
                    raise ValueError(f"{family}: {item.name} does not have {width} values")
            if not set(fit.devices) <= set(model.known):
                raise ValueError(f"{family}: a device without its hardware")


def _row_values(
    item: Parameter, values: FloatArray, weights: FloatArray, classes: NDArray[np.intp]
) -> FloatArray:
    """Returns float64 [N], the value of a parameter in each row, weighted over the devices."""
    if item.scope == "all":
        return np.full(len(classes), values[0])
    if item.scope == "class":
        return np.asarray(values[classes], np.float64)
    table = values.reshape(-1, weights.shape[1])
    if item.is_coolest:
        table = np.broadcast_to(table.min(axis=0), table.shape)
    chosen = table[classes] if item.scope == "class_device" else table[np.zeros_like(classes)]
    return np.asarray((weights * chosen).sum(axis=1), np.float64)


def known_hardware(labels: Sequence[str]) -> dict[str, Hardware]:
    """Returns label -> hardware, from the registry.

    Raises:
        DeviceError: an unknown label, or the registry lacks values of a device.
    """
    from cdmpp.analytic.operators.device import hardware
    from cdmpp.devices.registry import get_device

    return {label: hardware(get_device(label)) for label in labels}
