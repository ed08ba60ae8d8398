"""Least squares and trees."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json


def test_coefficients_and_their_errors() -> None:
    rng = np.random.default_rng(0)
    columns = np.stack([rng.uniform(1, 100, 400), np.ones(400)], axis=1)
    truth = columns @ [0.3, 2.0]
    exact = relative_fit(columns, truth, ("a", "b"))
    np.testing.assert_allclose(exact.coefficients, [0.3, 2.0], rtol=1e-12)
    noisy = [
        relative_fit(columns, truth * rng.normal(1.0, 0.05, 400), ("a", "b")) for _ in range(200)
    ]
    spread = np.std([fit.coefficients for fit in noisy], axis=0)
    said = np.mean([fit.standard_errors for fit in noisy], axis=0)
    np.testing.assert_allclose(said, spread, rtol=0.2)
    assert noisy[0].rmspe == pytest.approx(0.05, rel=0.15)


def test_it_is_the_optimum() -> None:
    rng = np.random.default_rng(1)
    columns = rng.uniform(0.1, 1.0, (50, 3))
    target = rng.uniform(1.0, 2.0, 50)
    fit = relative_fit(columns, target, "abc", is_non_negative=False)
    best = np.mean((columns @ fit.coefficients / target - 1) ** 2)
    for _ in range(50):
        other = fit.coefficients + rng.normal(0, 0.01, 3)
        assert np.mean((columns @ other / target - 1) ** 2) > best


def test_a_coefficient_stops_at_zero() -> None:
    columns = np.stack([np.linspace(1, 10, 30), np.ones(30)], axis=1)
    fit = relative_fit(columns, 5.0 - 0.3 * columns[:, 0], ("slope", "constant"))
    assert fit.coefficients[0] == 0.0
    assert fit.standard_errors[0] is None
    assert fit.coefficients[1] > 0
    assert from_json(LinearFit, to_json(fit)).standard_errors == fit.standard_errors


def test_a_column_of_zeros_has_no_coefficient() -> None:
    columns = np.stack([np.ones(5), np.zeros(5)], axis=1)
    fit = relative_fit(columns, np.full(5, 3.0), ("constant", "nothing"))
    np.testing.assert_allclose(fit.coefficients, [3.0, 0.0])
    assert fit.standard_errors[1] is None


@pytest.mark.parametrize("target", [np.zeros(0), np.array([1.0, 0.0]), np.array([1.0, np.nan])])
def test_targets_that_cannot_be_fitted(target: np.ndarray) -> None:
    with pytest.raises(DataError, match="all of them above 0"):
        relative_fit(np.ones((len(target), 1)), target, ("a",))


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
@pytest.mark.parametrize("evaluations", [0, 4])
def test_a_tree_is_that_of_its_library(kind: str, evaluations: int) -> None:
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    rng = np.random.default_rng(0)
    columns = rng.integers(1, 500, (300, 4)).astype(float) * 1e5 + 0.25
    target = (columns[:, 0] > columns[:, 1]).astype(np.int64) * 2 + (columns[:, 2] > 2e7)
    tree = fit_tree(columns, target, kind, TreeOptions(search_evaluations=evaluations))
    assert (tree.feature >= 0).sum() <= 64
    again = from_json(SmallTree, to_json(tree))
    assert np.array_equal(again.predict(columns), tree.predict(columns))
    if evaluations == 0:
        made = DecisionTreeClassifier if kind == "classifier" else DecisionTreeRegressor
        theirs = made(max_leaf_nodes=65, random_state=0).fit(columns, target).predict(columns)
        np.testing.assert_allclose(tree.predict(columns), theirs, rtol=1e-12)


def test_the_search_prefers_a_small_tree_on_noise() -> None:
    rng = np.random.default_rng(0)
    columns = rng.uniform(size=(200, 3))
    target = rng.normal(size=200)
    searched = fit_tree(columns, target, "regressor", TreeOptions(search_evaluations=20))
    plain = fit_tree(columns, target, "regressor", TreeOptions(search_evaluations=0))
    assert len(searched.feature) < len(plain.feature) / 2
