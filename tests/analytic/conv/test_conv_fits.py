"""Least squares, trees, the other operators."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.other_operators import (
    GradientModel,
    fit_gradients,
    fit_operator,
    operator_columns,
    operator_ms,
)
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.errors import DataError


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
    assert LinearFit.from_json(fit.to_json()).standard_errors == fit.standard_errors


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
    again = SmallTree.from_json(tree.to_json())
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


OPERATORS = {
    "maxpool": (3e-9, 2e-9, 1e-9, 0.1),
    "maxpool_gradient": (3e-9, 2e-9, 1e-9),
    "conv_1x1_narrow": (3e-9, 2e-9, 1e-11, 0.1),
    "conv_1x1_wide": (1e-11, 0.2),
    "data_layout": (4e-9, 0.05),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_are_recovered(operator: str) -> None:
    rng = np.random.default_rng(0)
    low, high = (1, 129) if operator == "conv_1x1_narrow" else (129, 500)
    kernel = 1 if operator.startswith("conv") else rng.integers(2, 4, 80)
    shapes = ConvShapes.of(
        128, rng.integers(1, 300, 80), rng.integers(14, 100, 80), rng.integers(low, high, 80),
        kernel, 1 if operator.startswith("conv") else rng.integers(1, 3, 80),
    )  # fmt: skip
    columns, names = operator_columns(operator, shapes)
    assert len(names) == len(OPERATORS[operator])
    time_ms = columns @ OPERATORS[operator]
    fit = fit_operator(operator, shapes, time_ms)
    np.testing.assert_allclose(fit.coefficients, OPERATORS[operator], rtol=1e-7)
    np.testing.assert_allclose(operator_ms(operator, fit, shapes), time_ms, rtol=1e-9)


def test_narrow_1x1_layers_are_rounded_up_and_kept_apart() -> None:
    shapes = ConvShapes.of(1, 8, 4, [33, 64], 1)
    columns, _ = operator_columns("conv_1x1_narrow", shapes)
    assert np.array_equal(columns[0], columns[1])
    with pytest.raises(DataError, match="at most 128"):
        operator_columns("conv_1x1_narrow", ConvShapes.of(1, 8, 4, 129, 1))
    with pytest.raises(DataError, match="more than 128"):
        operator_columns("conv_1x1_wide", shapes)
    with pytest.raises(DataError, match="unknown operator"):
        operator_columns("softmax", shapes)  # type: ignore[arg-type]


def test_gradients_are_multiples_of_the_forward_time() -> None:
    rng = np.random.default_rng(0)
    shapes = ConvShapes.of(
        128, rng.integers(1, 300, 200), rng.integers(14, 100, 200), 64, 3, rng.integers(1, 3, 200)
    )
    forward = rng.uniform(1, 50, 200)
    to_input = forward * np.where(shapes.stride == 1, 1.2, 2.5)
    to_filter = forward * np.where(shapes.in_channels <= 100, 0.9, 1.6)
    model = fit_gradients(shapes, forward, to_input, to_filter, TreeOptions(search_evaluations=0))
    found = GradientModel.from_json(model.to_json()).predict(shapes, forward)
    np.testing.assert_allclose(found[0], to_input, rtol=1e-9)
    np.testing.assert_allclose(found[1], to_filter, rtol=1e-9)
