"""Boosted trees: training with early stopping, prediction, and files."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cdmpp.arrays import FloatArray
from cdmpp.errors import IS_COMMAND, DataError
from cdmpp.files.atomic import write_bytes

_MOST_BYTES = 256_000_000
#: Statistics of the training of each node, which predictions do not use.
_STATISTICS = ("base_weights", "loss_changes", "sum_hessian")
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


def _xgboost() -> Any:
    """Imports XGBoost; in commands without scikit-learn, which takes a second to load.

    XGBoost needs it for wrappers that cdmpp does not use; other processes may use them.
    """
    is_left_out = IS_COMMAND in os.environ and "sklearn" not in sys.modules
    if is_left_out:
        sys.modules["sklearn"] = None  # type: ignore[assignment]
    try:
        import xgboost
    finally:
        if is_left_out:
            del sys.modules["sklearn"]
    return xgboost


def tree_parameters(options: Any, objective: str, seed: int) -> dict[str, Any]:
    """Returns the XGBoost parameters for options (`GbdtOptions` or a similar class)."""
    return {
        "objective": objective,
        "max_depth": options.depth,
        "eta": options.learning_rate,
        "subsample": options.subsample,
        "colsample_bytree": options.column_share,
        "min_child_weight": options.min_child_weight,
        "nthread": options.threads or None,
        "seed": seed,
    }


def tree_rows(
    columns: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    groups: ArrayLike | None = None,
    threads: int = 0,
) -> Any:
    """Returns the `DMatrix` of columns [N, columns] and labels [N].

    Args:
        groups: [N], ascending; rows with equal numbers are ranked against each other.
        threads: number of threads; 0 = all.
    """
    return _xgboost().DMatrix(columns, label=labels, qid=groups, nthread=threads or None)


def grow_trees(
    parameters: Mapping[str, Any], train: Any, watched: Any = None, *, trees: int, patience: int = 0
) -> Any:
    """Trains a booster of at most `trees` trees on rows of `tree_rows`.

    Args:
        parameters: XGBoost parameters; `tree_method` is `hist` unless given.
        watched: validation rows for early stopping; None = no early stopping.
        patience: trees without a smaller validation error before training stops; the trees after
            the best one are dropped.
    """
    booster = _xgboost().train(
        {"tree_method": "hist", **parameters},
        train,
        num_boost_round=trees,
        evals=[] if watched is None else [(watched, "validation")],
        early_stopping_rounds=None if watched is None else patience,
        verbose_eval=False,
    )
    return booster if watched is None else booster[: booster.best_iteration + 1]


def ask_trees(booster: Any, columns: ArrayLike) -> FloatArray:
    """Returns predictions, float64 [N] or [N, classes], for [N, columns].

    Equal to `Booster.predict` on `tree_rows`, without building a `DMatrix`.
    """
    return np.asarray(booster.inplace_predict(columns, validate_features=False), np.float64)


def save_booster(booster: Any, path: Path) -> None:
    """Writes a booster as XZ-compressed UBJSON, XGBoost's own format.

    Statistics of the training become zeros: predictions are the same, files half as large.

    Raises:
        DataError: the file cannot be written.
    """
    content = json.loads(bytes(booster.save_raw("json")))
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        for name in _STATISTICS:
            tree[name] = [0.0] * len(tree[name])
    small = _xgboost().Booster(model_file=bytearray(json.dumps(content).encode()))
    write_bytes(path, lzma.compress(bytes(small.save_raw("ubj")), preset=9))


def load_booster(path: Path, *, hint: str) -> Any:
    """Returns the booster written by `save_booster`, or as JSON by earlier versions.

    Args:
        hint: what to do when the file is missing or damaged.

    Raises:
        DataError: the file is missing or damaged.
    """
    xgboost = _xgboost()
    name = path.name.partition(".")[0]
    earlier = [path.with_name(f"{name}{suffix}") for suffix in (".json.gz", ".json")]
    path = next((one for one in (path, *earlier) if one.exists()), path)
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, Path.open)
    try:
        with opener(path, "rb") as stream:
            content = stream.read(_MOST_BYTES)
        if not content.startswith(b"{"):  # XGBoost aborts the process on an empty text
            raise ValueError("it has no object")
        return xgboost.Booster(model_file=bytearray(content))
    except (*_DAMAGED, xgboost.core.XGBoostError) as error:
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise DataError(f"cannot read the trees {path} ({reason}); {hint}") from error
