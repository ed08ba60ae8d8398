"""Kernels without a closed form: a small perceptron from log sizes to log time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cdmpp.analytic.embedding.errors import kernel_errors
from cdmpp.analytic.kernels.kernel_models import KernelModel, size_table
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json

FloatArray = NDArray[np.float64]

_SCHEMA = "learned-kernel-1"
_VALIDATION_SHARE = 0.2


def learned_kernel_columns() -> dict[str, tuple[str, ...]]:
    """Returns kernel -> names of its sizes."""
    return {
        "gemm": ("batch", "m", "n", "k"),
        "transpose": ("batch", "m", "n"),
        "tril": ("batch", "m", "n", "diagonal"),
        "tril-backward": ("batch", "m", "n", "diagonal"),
    }


@dataclass(frozen=True)
class PerceptronOptions:
    """One point of the search.

    Attributes:
        width: units of a hidden layer.
        layers: hidden layers.
        learning_rate: of Adam.
        epochs: at most; training stops when the loss no longer falls.
    """

    width: int = 64
    layers: int = 3
    learning_rate: float = 1e-3
    epochs: int = 800


def search_grid() -> tuple[PerceptronOptions, ...]:
    """Returns the points that `fit_learned_kernel` tries by default, small ones first."""
    return tuple(
        PerceptronOptions(width, layers, rate)
        for width, layers, rate in product((64, 128, 256), (3, 5), (1e-3, 5e-3))
    )


@dataclass(frozen=True)
class LearnedKernelModel(KernelModel):
    """A fitted perceptron; predicts with numpy alone.

    Attributes:
        kernel: a name of `learned_kernel_columns`.
        mean, scale: float64 [K], of the logarithms of the sizes.
        offset: mean log time.
        weights, biases: of each layer; the last one gives the log time.
        options: the point of the search that won.
        validation_gmae: its geometric mean error on the part left out for the choice.
    """

    kernel: str
    mean: FloatArray
    scale: FloatArray
    offset: float
    weights: tuple[FloatArray, ...]
    biases: tuple[FloatArray, ...]
    options: PerceptronOptions
    validation_gmae: float

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the sizes."""
        return learned_kernel_columns()[self.kernel]

    def latency_s(self, sizes: Mapping[str, ArrayLike]) -> FloatArray:
        """Returns float64 [N], seconds (see `KernelModel`)."""
        value = (_log_sizes(self.columns, sizes) - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            value = np.maximum(value @ weight + bias, 0.0)
        log_time = value @ self.weights[-1] + self.biases[-1]
        return np.asarray(np.exp(log_time[:, 0] + self.offset), np.float64)

    def save(self, path: Path) -> None:
        """Writes the model as JSON.

        Raises:
            DataError: the file cannot be written.
        """
        write_json(
            path,
            {
                "schema": _SCHEMA,
                "kernel": self.kernel,
                "mean": self.mean.tolist(),
                "scale": self.scale.tolist(),
                "offset": self.offset,
                "weights": [weight.tolist() for weight in self.weights],
                "biases": [bias.tolist() for bias in self.biases],
                "options": self.options.__dict__,
                "validation_gmae": self.validation_gmae,
            },
        )


def load_learned_kernel(path: Path) -> LearnedKernelModel:
    """Returns the model of a file that `LearnedKernelModel.save` made.

    Raises:
        DataError: unreadable, or not such a file.
    """
    try:
        value = json.loads(path.read_text("utf-8"))
        if value.get("schema") != _SCHEMA:
            raise DataError(f"{path}: schema {value.get('schema')!r}, expected {_SCHEMA!r}")
        return LearnedKernelModel(
            value["kernel"],
            np.array(value["mean"]),
            np.array(value["scale"]),
            float(value["offset"]),
            tuple(np.array(weight) for weight in value["weights"]),
            tuple(np.array(bias) for bias in value["biases"]),
            PerceptronOptions(**value["options"]),
            float(value["validation_gmae"]),
        )
    except OSError as error:
        raise DataError(f"{path}: cannot read the kernel model ({error.strerror})") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: no kernel model ({error}); fit one and save it") from None


def fit_learned_kernel(
    kernel: str,
    sizes: Mapping[str, ArrayLike],
    measured_s: ArrayLike,
    *,
    seed: int = 0,
    grid: tuple[PerceptronOptions, ...] | None = None,
    stop_below: float = 0.04,
) -> LearnedKernelModel:
    """Returns the perceptron of the grid with the lowest geometric mean error on a validation part.

    Args:
        measured_s: [N], seconds, positive.
        stop_below: the search ends with the first point below this error.

    Raises:
        UsageError: an unknown kernel or an empty grid.
        DataError: fewer than 10 kernels, or times that are not positive.
    """
    known = learned_kernel_columns()
    grid = search_grid() if grid is None else grid
    if kernel not in known or not grid:
        raise UsageError(f"kernel {kernel!r} cannot be learned; known: {', '.join(known)}")
    features = _log_sizes(known[kernel], sizes)
    measured = np.asarray(measured_s, np.float64)
    if len(features) != len(measured) or len(measured) < 10 or not np.all(measured > 0):
        raise DataError(
            f"kernel {kernel}: {len(features)} sizes and {len(measured)} times; expected as "
            "many of both, at least 10, all times positive"
        )
    order = np.random.default_rng(seed).permutation(len(measured))
    cut = max(1, round(_VALIDATION_SHARE * len(order)))
    validation, training = order[:cut], order[cut:]
    asked = {name: np.asarray(sizes[name], np.float64)[validation] for name in known[kernel]}
    best: LearnedKernelModel | None = None
    for options in grid:
        model = _fit_one(kernel, features[training], np.log(measured[training]), options, seed)
        gmae = kernel_errors(measured[validation], model.latency_s(asked)).gmae
        if best is None or gmae < best.validation_gmae:
            best = replace(model, validation_gmae=gmae)
        if gmae < stop_below:
            break
    assert best is not None
    return best


def _fit_one(
    kernel: str, features: FloatArray, log_time: FloatArray, options: PerceptronOptions, seed: int
) -> LearnedKernelModel:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    mean, deviation = features.mean(axis=0), features.std(axis=0)
    scale = np.where(deviation > 0, deviation, 1.0)
    offset = float(log_time.mean())
    network = MLPRegressor(
        hidden_layer_sizes=(options.width,) * options.layers,
        learning_rate_init=options.learning_rate,
        max_iter=options.epochs,
        alpha=0.0,
        n_iter_no_change=50,
        random_state=seed,
    )
    with warnings.catch_warnings():
        # The number of epochs is a setting; reaching it is no fault.
        warnings.simplefilter("ignore", ConvergenceWarning)
        network.fit((features - mean) / scale, log_time - offset)
    return LearnedKernelModel(
        kernel,
        mean,
        scale,
        offset,
        tuple(np.asarray(weight, np.float64) for weight in network.coefs_),
        tuple(np.asarray(bias, np.float64) for bias in network.intercepts_),
        options,
        float("inf"),
    )


def _log_sizes(columns: tuple[str, ...], sizes: Mapping[str, ArrayLike]) -> FloatArray:
    table = size_table(columns, sizes)
    # The diagonal is a flag: its logarithm would not exist.
    for index, name in enumerate(columns):
        if name != "diagonal":
            if np.any(table[:, index] <= 0):
                raise DataError(f"kernel sizes: {name} is not positive everywhere")
            table[:, index] = np.log(table[:, index])
    return table
