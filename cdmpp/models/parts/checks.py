"""Checks shared by all models."""

from __future__ import annotations

from typing import Any

from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError


def check_schema(expected: dict[str, int] | None, samples: Samples) -> None:
    """Refuses samples whose leaf features have another schema version than the model was trained
    on.

    Raises:
        UsageError: the model was not trained.
        DataError: the schema versions differ.
    """
    if expected is None:
        raise UsageError("this model has not been trained; call fit() or load() before predict()")
    got = samples.programs.feature_schema
    if got != expected:
        raise DataError(
            f"the model expects leaf features of schema {_text(expected)} but got {_text(got)}; "
            "train again on the new features or extract the records again with "
            "`cdmpp dataset extract`"
        )


def check_trainable(train: Samples) -> None:
    """Refuses an empty training part.

    Raises:
        DataError: there is nothing to learn from.
    """
    if len(train) == 0:
        raise DataError(
            "the training part is empty; expected at least one measured program; "
            "see what the dataset holds with `cdmpp dataset stats`"
        )


def state_value(state: dict[str, Any], key: str) -> Any:
    """Returns one entry of a saved model's state.

    Raises:
        DataError: the entry is missing.
    """
    try:
        return state[key]
    except KeyError as error:
        raise DataError(
            f"the saved model's state has no {key!r}; expected a model.json written by `cdmpp "
            f"train`"
        ) from error


def _text(schema: dict[str, int]) -> str:
    return ", ".join(f"{name} v{version}" for name, version in sorted(schema.items()))
