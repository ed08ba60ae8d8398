"""Contract test of a fitted analytic model: `check_analytic_model(fit, table, predict)`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.contract import AnalyticModel
from cdmpp.errors import DataError
from cdmpp.testing.promise import promise, refused

Model = TypeVar("Model", bound=AnalyticModel)
#: (model, table) -> float64 [N], seconds or milliseconds.
Predict = Callable[[Model, Any], NDArray[np.float64]]


def check_analytic_model(
    fit: Callable[[Any], Model],
    table: Any,
    predict: Predict[Model],
    *,
    slower: Callable[[Any], Any] | None = None,
) -> None:
    """Checks that a fitted model predicts each row independently of other rows and of measured
    times, and predicts the same after saving and loading.

    Args:
        fit: table -> model.
        table: N measured rows, indexed like an array (`cdmpp.analytic.rows.Rows`).
        predict: calls the model's prediction method.
        slower: table -> the same rows with longer measured times; None = the table has no times.

    Raises:
        AssertionError: a check failed; the message has the requirement.
    """
    model = fit(table)
    times = predict(model, table)
    promise(times.shape == (len(table),), f"one time for each row, got {times.shape}")
    promise(
        bool(np.all(np.isfinite(times) & (times > 0))), "predicted times are positive and finite"
    )
    promise(np.array_equal(predict(model, table), times), "the same input has the same result")
    few = np.arange(len(table))[::3]
    promise(
        np.allclose(predict(model, table[few]), times[few], rtol=1e-6),
        "the time of a row depends on no other row",
    )
    if slower is not None:
        found = predict(model, slower(table))
        promise(np.array_equal(found, times), "a prediction never reads measured times")
    with tempfile.TemporaryDirectory() as folder:
        _check_files(model, table, predict, times, Path(folder))


def _check_files(
    model: Model, table: Any, predict: Predict[Model], times: NDArray[np.float64], folder: Path
) -> None:
    kind = type(model)
    path = folder / "model"
    text = refused(partial(kind.load, path), DataError, "a missing model is rejected")
    promise(str(path) in text, f"the error names the file, got {text!r}")
    model.save(path)
    again = kind.load(path)
    promise(np.array_equal(predict(again, table), times), "a loaded model predicts the same")
    again.save(folder / "again")
    promise(
        _bytes_of(folder / "again") == _bytes_of(path), "a loaded model is saved as it was loaded"
    )
    for content in ("{}", "[]", "{"):
        for file in [path] if path.is_file() else path.glob("*.json"):
            file.write_text(content)
        refused(partial(kind.load, path), DataError, f"a file with {content} is refused")


def _bytes_of(path: Path) -> list[bytes]:
    files = [path] if path.is_file() else sorted(path.iterdir())
    return [file.read_bytes() for file in files]
