"""Checks shared by all models."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import (
    FIRST_WITH_ACROSS_THREADS,
    FIRST_WITH_SETS,
    LEAF_EXTRA_COUNTS,
    LEAF_EXTRA_SCHEMA_VERSION,
)
from cdmpp.text import agreed, counted

_log = logging.getLogger("cdmpp")


def check_schema(expected: dict[str, int] | None, samples: Samples) -> Samples:
    """Returns samples with the leaf features that a model was trained on.

    Raises:
        UsageError: the model was not trained.
        DataError: some samples do not have these features.
    """
    if expected is None:
        raise UsageError("this model has not been trained; call fit() or load() before predict()")
    found = as_read_by(expected, samples)
    if len(found) < len(samples):
        raise DataError(
            f"{len(samples) - len(found)} of {counted(len(samples), 'program')} "
            f"{agreed(len(samples) - len(found), 'reduce')} across threads, which a model of "
            f"schema {_text(expected)} cannot read; leave them out, or retrain "
            "with `cdmpp train`"
        )
    return found


def as_read_by(expected: Mapping[str, int], samples: Samples) -> Samples:
    """Converts samples to the leaf features of an earlier version, or those of GPUs from the
    version before `FIRST_WITH_SETS` to that version, whose further columns are 0 for GPUs.

    Programs that reduce across threads are dropped if their leaves differ in the earlier version
    (`FIRST_WITH_ACROSS_THREADS`).

    Args:
        expected: versions of the leaf columns, as stored in a saved model; empty = any.

    Raises:
        DataError: the samples do not have these features.
    """
    programs = samples.programs
    got, version = programs.feature_schema, expected.get("leaf_extra", 0)
    if got == expected or not expected:
        return samples
    if version == FIRST_WITH_SETS and got == {**expected, "leaf_extra": version - 1}:
        used = {samples.devices[index].kind for index in np.unique(samples.device)}
        if used <= {"gpu"}:
            more = LEAF_EXTRA_COUNTS[version] - LEAF_EXTRA_COUNTS[version - 1]
            wide = np.pad(programs.leaf_extra, ((0, 0), (0, more)))
            return _with_extra(samples, wide, expected)
    is_part = version in LEAF_EXTRA_COUNTS and got["leaf_extra"] > version
    if not is_part or {**got, "leaf_extra": version} != expected:
        raise DataError(
            f"the model expects leaf features of schema {_text(expected)} but got {_text(got)}; "
            "retrain on the new features or extract the records again with `cdmpp dataset "
            "extract`"
        )
    extra = programs.leaf_extra[:, : LEAF_EXTRA_COUNTS[version]]
    found = _with_extra(samples, extra, expected)
    if version >= FIRST_WITH_ACROSS_THREADS:
        return found
    differing = np.flatnonzero(programs.leaf_extra[:, ACROSS_THREADS_COLUMN] > 0)
    owners = np.searchsorted(programs.leaf_offset, differing, side="right") - 1
    return found.take(~np.isin(found.program, owners)) if len(owners) else found


def _with_extra(samples: Samples, extra: NDArray[np.float32], schema: Mapping[str, int]) -> Samples:
    programs = replace(samples.programs, leaf_extra=extra, feature_schema=dict(schema))
    return replace(samples, programs=programs)


def as_learned(expected: Mapping[str, int], samples: Samples) -> Samples:
    """Returns the result of `as_read_by` and logs the number of dropped samples.

    Raises:
        DataError: the samples do not have these features.
    """
    found = as_read_by(expected, samples)
    if left_out := len(samples) - len(found):
        _log.warning(
            "%d of %d samples are left out: their programs reduce across threads, which a model "
            "of schema %s cannot read", left_out, len(samples), _text(expected),
        )  # fmt: skip
    return found


def warn_of_old_columns(samples: Samples) -> None:
    """Logs a warning if the dataset has leaf features of an earlier version."""
    got = samples.programs.feature_schema
    if 0 < got["leaf_extra"] < LEAF_EXTRA_SCHEMA_VERSION:
        _log.warning(
            "the dataset has leaf features of schema %s, and so will the model; for those of "
            "leaf_extra v%d extract its records again: cdmpp dataset extract --dataset RECORDS "
            "--out DIR (a campaign: cdmpp measure --tables-only --out DIR)",
            _text(got), LEAF_EXTRA_SCHEMA_VERSION,
        )  # fmt: skip


def check_trainable(train: Samples) -> None:
    """Checks that the training part is not empty.

    Raises:
        DataError: the training part is empty.
    """
    if len(train) == 0:
        raise DataError(
            "the training part is empty; expected at least one measured program; inspect the "
            "dataset with `cdmpp dataset stats`"
        )


def state_value(state: dict[str, Any], key: str) -> Any:
    """Returns an entry of a saved model's state.

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


def _text(schema: Mapping[str, int]) -> str:
    return ", ".join(f"{name} v{version}" for name, version in sorted(schema.items()))
