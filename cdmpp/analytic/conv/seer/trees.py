"""Small decision trees as plain arrays, stored as JSON; only the fit needs scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, IntArray

TreeKind = Literal["classifier", "regressor"]

_FOLDS = 5
_LEAF = -1


@dataclass(frozen=True)
class TreeOptions:
    """Options of a fit.

    Attributes:
        max_splits: maximum number of inner nodes.
        search_evaluations: number of hyper-parameter settings tried by cross-validation; 0 = the
            largest tree that `max_splits` allows.
        seed: seed of the search.
    """

    max_splits: int = 64
    search_evaluations: int = 30
    seed: int = 0


@dataclass(frozen=True)
class SmallTree:
    """A fitted tree. Node 0 is the root.

    Attributes:
        feature: int64 [nodes], column that a node tests; -1 = a leaf.
        threshold: float64 [nodes]; a row goes left if its value, as float32, is at most this.
        left: int64 [nodes], left child.
        right: int64 [nodes], right child.
        value: float64 [nodes, V], output of a leaf: one number, or a probability per class.
        classes: labels of a classifier's columns; empty for a regressor.
    """

    feature: IntArray
    threshold: FloatArray
    left: IntArray
    right: IntArray
    value: FloatArray
    classes: tuple[int, ...] = ()

    def leaf_values(self, columns: FloatArray) -> FloatArray:
        """Returns float64 [R, V], the leaf's values for every row of `columns` float64 [R, F]."""
        # scikit-learn chose the thresholds between float32 values; a comparison in float64 could
        # send a row the other way.
        rows = columns.astype(np.float32)
        node = np.zeros(len(rows), np.int64)
        while True:
            inner = np.flatnonzero(self.feature[node] != _LEAF)
            if not len(inner):
                return np.asarray(self.value[node], np.float64)
            at = node[inner]
            goes_left = rows[inner, self.feature[at]] <= self.threshold[at]
            node[inner] = np.where(goes_left, self.left[at], self.right[at])

    def predict(self, columns: FloatArray) -> FloatArray:
        """Returns float64 [R], the regressor's value, or the classifier's most likely label."""
        values = self.leaf_values(columns)
        if not self.classes:
            return np.asarray(values[:, 0], np.float64)
        labels = np.array(self.classes, np.float64)
        return np.asarray(labels[values.argmax(axis=1)], np.float64)


def fit_tree(
    columns: FloatArray,
    target: NDArray[np.float64] | NDArray[np.int64],
    kind: TreeKind,
    options: TreeOptions,
) -> SmallTree:
    """Fits a tree with at most `max_splits` inner nodes.

    The smallest leaf and the number of splits are tuned by Bayesian search on the cross-validated
    error.
    """
    settings = {"max_leaf_nodes": options.max_splits + 1, "min_samples_leaf": 1}
    if options.search_evaluations and len(target) >= 2 * _FOLDS and len(np.unique(target)) > 1:
        settings = _search(columns, target, kind, options)
    return _plain(_estimator(kind, options.seed, settings).fit(columns, target), kind)


def _search(
    columns: FloatArray, target: Any, kind: TreeKind, options: TreeOptions
) -> dict[str, int]:
    import optuna

    order = np.random.default_rng(options.seed).permutation(len(target)) % _FOLDS
    largest_leaf = max(1, len(target) // (2 * _FOLDS))
    # The layout that scikit-learn's own checks produce; they take longer than fitting small trees.
    narrow = np.ascontiguousarray(columns, np.float32)
    folds = [(order != fold, order == fold) for fold in range(_FOLDS)]

    def error(trial: Any) -> float:
        settings = {
            "max_leaf_nodes": trial.suggest_int("max_leaf_nodes", 2, options.max_splits + 1),
            "min_samples_leaf": trial.suggest_int("min_samples_leaf", 1, largest_leaf, log=True),
        }
        losses = []
        for train, test in folds:
            fitted = _estimator(kind, options.seed, settings)
            fitted.fit(narrow[train], target[train], check_input=False)
            found = fitted.predict(narrow[test], check_input=False)
            wrong = found != target[test] if kind == "classifier" else (found - target[test]) ** 2
            losses.append(float(np.mean(wrong)))
        return float(np.mean(losses))

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=options.seed))
        # Includes the largest tree, so that the search is never worse in cross-validation.
        study.enqueue_trial({"max_leaf_nodes": options.max_splits + 1, "min_samples_leaf": 1})
        study.optimize(error, n_trials=options.search_evaluations)
    finally:
        optuna.logging.set_verbosity(verbosity)
    best: dict[str, int] = study.best_params
    return best


def _estimator(kind: TreeKind, seed: int, settings: dict[str, int]) -> Any:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    made = DecisionTreeClassifier if kind == "classifier" else DecisionTreeRegressor
    return made(random_state=seed, **settings)


def _plain(fitted: Any, kind: TreeKind) -> SmallTree:
    tree = fitted.tree_
    values = np.asarray(tree.value, np.float64)[:, 0, :]
    classes: tuple[int, ...] = ()
    if kind == "classifier":
        values = values / values.sum(axis=1, keepdims=True)
        classes = tuple(int(label) for label in fitted.classes_)
    left = np.asarray(tree.children_left, np.int64)
    return SmallTree(
        feature=np.where(left < 0, _LEAF, np.asarray(tree.feature, np.int64)),
        threshold=np.asarray(tree.threshold, np.float64),
        left=left,
        right=np.asarray(tree.children_right, np.int64),
        value=values,
        classes=classes,
    )
