"""Boosted trees, one booster per target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.files.boosted_trees import (
    ask_trees,
    grow_trees,
    load_booster,
    save_booster,
    tree_parameters,
    tree_rows,
)
from cdmpp.networks.models.options import GraphTreeOptions


@dataclass(frozen=True)
class Boosters:
    """Boosters by the name of the target."""

    by_name: dict[str, Any]

    @classmethod
    def fit(
        cls,
        train: tuple[FloatArray, FloatArray],
        validation: tuple[FloatArray, FloatArray],
        names: Iterable[str],
        options: GraphTreeOptions,
        *,
        seed: int,
    ) -> Boosters:
        """Returns boosters fitted with early stopping on the validation part.

        Args:
            train, validation: float64 [N, features] and labels float64 [N, names]; NaN labels are
                ignored.
            names: names of the labels; a name without labels in both parts gets no booster.
        """
        parameters = tree_parameters(options, "reg:absoluteerror", seed)
        found = {}
        for column, name in enumerate(names):
            known = [np.isfinite(part[1][:, column]) for part in (train, validation)]
            if not all(rows.any() for rows in known):
                continue
            grown, watched = (
                tree_rows(part[0][rows], part[1][rows, column], threads=options.threads)
                for part, rows in zip((train, validation), known, strict=True)
            )
            found[name] = grow_trees(
                parameters, grown, watched, trees=options.trees, patience=options.patience
            )
        return cls(found)

    def predict(self, name: str, rows: FloatArray) -> FloatArray:
        """Returns float64 [N], predictions of a booster.

        Args:
            rows: float64 [N, features].
        """
        return ask_trees(self.by_name[name], rows)

    def save(self, directory: Path) -> list[str]:
        """Writes the boosters; returns their names."""
        for name, booster in self.by_name.items():
            save_booster(booster, _path(directory, name))
        return list(self.by_name)

    @classmethod
    def load(cls, directory: Path, names: Iterable[str]) -> Boosters:
        """Reads the boosters that `save` wrote.

        Raises:
            DataError: a file is missing or damaged.
        """
        hint = "retrain with `cdmpp networks train`"
        found = {name: load_booster(_path(directory, name), hint=hint) for name in names}
        return cls(found)


def _path(directory: Path, name: str) -> Path:
    return directory / f"trees-{name}.ubj.xz"
