"""Contract test of a cost model: `check_cost_model(MyCostModel)`."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.models.base import CostModel
from cdmpp.testing.promise import promise, refused
from cdmpp.testing.synthetic import make_samples, split_by_task

_SEED = 3
#: Suffixes of the files that a model may write; pickles are not allowed.
_WRITTEN = {".json", ".xz", ".safetensors"}


def check_cost_model(new_model: Callable[[], CostModel]) -> None:
    """Checks that a cost model keeps the contract of `cdmpp.models.base.CostModel`.

    The model is trained twice on about a hundred synthetic samples, saved and loaded. Choose
    options with which that takes seconds.

    Example:
        >>> from cdmpp.models.constant import ConstantCostModel
        >>> check_cost_model(ConstantCostModel)

    Args:
        new_model: returns an untrained model, e.g. a class whose constructor needs no arguments.

    Raises:
        AssertionError: a check failed; the message has the requirement.
    """
    parts = split_by_task(make_samples(10, 6))
    _untrained_refuses(new_model(), parts)
    model = new_model()
    model.fit(parts[0], parts[1], seed=_SEED)
    trial = _Trial(new_model, model, parts)
    _answers_are_seconds(trial)
    _order_does_not_matter(trial)
    _measurements_are_not_read(trial)
    _strangers_have_answers(trial)
    _another_schema_is_refused(trial)
    with TemporaryDirectory(prefix="cdmpp-contract-") as folder:
        _is_saved(trial, Path(folder))
        _same_seed_same_bytes(trial, Path(folder))


@dataclass(frozen=True)
class _Trial:
    new_model: Callable[[], CostModel]
    model: CostModel
    parts: tuple[Samples, Samples, Samples]

    @property
    def test(self) -> Samples:
        return self.parts[2]


def _untrained_refuses(model: CostModel, parts: tuple[Samples, Samples, Samples]) -> None:
    text = refused(
        lambda: model.predict(parts[2]), UsageError, "an untrained model raises an error"
    )
    promise("not been trained" in text, f"an untrained model raises an error, got {text!r}")
    nothing = parts[0].take(np.zeros(0, np.int64))
    refused(
        lambda: model.fit(nothing, parts[1], seed=0),
        DataError,
        "an empty training part is rejected",
    )


def _answers_are_seconds(trial: _Trial) -> None:
    found = trial.model.predict(trial.test)
    promise(
        found.dtype == np.float64 and found.shape == (len(trial.test),),
        f"predictions are float64 [N], got {found.dtype} {found.shape}",
    )
    promise(
        np.all(np.isfinite(found)) and np.all(found > 0), "predictions are positive finite seconds"
    )
    nothing = trial.model.predict(trial.test.take(np.zeros(0, np.int64)))
    promise(len(nothing) == 0, f"no samples, no predictions, got {len(nothing)}")
    error = np.abs(np.log(found / trial.test.latency_s))
    promise(
        np.median(error) < np.log(1e3),
        "predictions are seconds of the samples' scale, got a median factor of "
        f"{np.exp(np.median(error)):.3g} between predicted and measured",
    )


def _order_does_not_matter(trial: _Trial) -> None:
    order = np.random.default_rng(0).permutation(len(trial.test)).astype(np.int64)
    found, again = (
        trial.model.predict(trial.test)[order],
        trial.model.predict(trial.test.take(order)),
    )
    promise(
        np.allclose(found, again, rtol=1e-4),
        "the order of samples does not change their predictions",
    )


def _measurements_are_not_read(trial: _Trial) -> None:
    blind = replace(trial.test, latency_s=np.full(len(trial.test), np.nan))
    promise(
        np.array_equal(trial.model.predict(blind), trial.model.predict(trial.test)),
        "predict never reads measured latencies, got other predictions without them",
    )


def _strangers_have_answers(trial: _Trial) -> None:
    larger = make_samples(3, 4, seed=9, most_leaves=23)
    unknown = (DeviceSpec("new", "cpu"), DeviceSpec("newer", "cpu"))
    for what, samples in (
        ("programs with more leaves than in training", larger),
        ("devices without known values", replace(trial.test, devices=unknown)),
    ):
        found = trial.model.predict(samples)
        promise(np.all(np.isfinite(found)) and np.all(found > 0), f"{what} have a prediction")


def _another_schema_is_refused(trial: _Trial) -> None:
    other = make_samples(2, 2, leaf_schema=2)
    text = refused(
        lambda: trial.model.predict(other), DataError, "features of another schema are rejected"
    )
    promise(
        "leaf v1" in text and "leaf v2" in text and "cdmpp dataset extract" in text,
        f"the error names both schemas and the next command, got {text!r}",
    )


def _is_saved(trial: _Trial, folder: Path) -> None:
    first, again = folder / "first", folder / "again"
    state = _save(trial.model, first)
    written = [path for path in first.rglob("*") if path.is_file()]
    suffixes = {path.suffix for path in written}
    promise(suffixes <= _WRITTEN, f"no pickle is written, got {sorted(suffixes - _WRITTEN)}")
    promise(
        all(
            lzma.decompress(path.read_bytes()).startswith(b"{")
            for path in written
            if path.suffix == ".xz"
        ),
        "packed parts are JSON",
    )
    loaded = type(trial.model).load(first, json.loads(state))
    promise(
        np.array_equal(loaded.predict(trial.test), trial.model.predict(trial.test)),
        "a loaded model predicts the same",
    )
    promise(_save(loaded, again) == state, "a loaded model saves the same state")


def _same_seed_same_bytes(trial: _Trial, folder: Path) -> None:
    other = trial.new_model()
    other.fit(trial.parts[0], trial.parts[1], seed=_SEED)
    a, b = folder / "a", folder / "b"
    same = _save(trial.model, a) == _save(other, b)
    files = [path for path in a.rglob("*") if path.is_file()]
    promise(
        same and all(path.read_bytes() == (b / path.relative_to(a)).read_bytes() for path in files),
        "the same seed gives the same bytes",
    )


def _save(model: CostModel, folder: Path) -> str:
    """Returns the state that `model.save` returns, as JSON text."""
    folder.mkdir()
    state: dict[str, Any] = model.save(folder)
    try:
        return json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"save returns JSON ({error})") from error
