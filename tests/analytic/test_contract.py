"""The contract of fitted models: every family keeps it, and a broken model fails it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cdmpp.analytic.conv.layers.model import BoostOptions, LayerModel, LayerOptions
from cdmpp.analytic.conv.layers.validation import fit_validated_layers
from cdmpp.analytic.conv.seer.fitting import SeerOptions, fit_seer
from cdmpp.analytic.conv.seer.trees import TreeOptions
from cdmpp.analytic.embedding.cpu import CountedWork, CpuConstants, fit_cpu
from cdmpp.analytic.embedding.intervals import with_errors
from cdmpp.analytic.gpu_kernels.calls import Gemm
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.training import fit_kernels
from cdmpp.analytic.operators.evaluate import predict_table
from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.analytic.operators.operators import make_operators
from cdmpp.analytic.operators.tables import OperatorTable
from cdmpp.analytic.operators.training import FitOptions, fit_model
from cdmpp.devices.registry import get_device
from cdmpp.testing import check_analytic_model
from tests.analytic.conv.conv_synthetic import DEVICE, layers, tables
from tests.analytic.conv.test_conv_layers import made_up_layers
from tests.analytic.embedding.test_embedding_cpu import CACHES, some_points
from tests.analytic.gpu_kernels.made_kernels import write_kernels
from tests.analytic.operators.test_operator_model import vector_table


def slower(table):
    return replace(table, time_ms=7.0 * table.time_ms)


def slower_calls(table):
    return replace(table, latency_s=7.0 * table.latency_s)


def _fit_operators(table: OperatorTable) -> OperatorModel:
    """Fits every family on the same table, of which only sizes and times are used."""
    count = len(table)
    sizes = {"rows": table.operators.rows, "cols": table.operators.cols}
    families = {
        "elementwise": table,
        **{
            kind: replace(table, operators=make_operators([kind] * count, sizes))
            for kind in ("softmax", "ln")
        },
    }
    products = {"batch": np.ones(count), "m": sizes["rows"], "n": sizes["cols"], "k": sizes["cols"]}
    families["matmul"] = replace(table, operators=make_operators(["linear"] * count, products))
    return fit_model(families, FitOptions(seeds=(0,), most_rows=60, most_validation_rows=40))


def _predicted_operators(model: OperatorModel, table: OperatorTable) -> np.ndarray:
    return predict_table(model, table, "isolated")


@pytest.mark.slow
def test_operators() -> None:
    check_analytic_model(
        _fit_operators, vector_table(200), _predicted_operators, slower=slower_calls
    )


@pytest.mark.slow
@pytest.mark.parametrize("residual", ["direct", "none"])
def test_layers(residual) -> None:
    options = LayerOptions(residual=residual, boost=BoostOptions(rounds=5, algorithm_rounds=2))
    check_analytic_model(
        lambda table: fit_validated_layers(table, options),
        made_up_layers(drift_ms=0.3, rows=120),
        lambda model, table: model.predict(table).time_ms,
        slower=slower,
    )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["original", "smooth"])
def test_kernels_of_convolutions(form) -> None:
    options = SeerOptions(form=form, trees=TreeOptions(search_evaluations=0))
    check_analytic_model(
        lambda shapes: fit_seer(tables(shapes), DEVICE, options),
        layers()[np.arange(0, 1008, 4)],
        lambda model, shapes: model.predict(shapes).layer_ms,
    )


@pytest.mark.exhaustive
@pytest.mark.slow
def test_serving_kernels(tmp_path) -> None:
    folder = write_kernels(tmp_path)
    calls = np.array([Gemm(2**m, 4096, 2**k) for m in range(10) for k in range(8, 12)], object)
    check_analytic_model(
        lambda calls: fit_kernels(folder),
        calls,
        lambda model, calls: model.times(list(calls), get_device("h100")).latency_s,
    )


@pytest.mark.slow
def test_lookups() -> None:
    points = np.array(some_points(60), object)
    counted = CountedWork(CACHES)
    seconds = np.array([1e-5 + 1e-8 * one.shape.lookup_count for one in points])

    def fit(points: np.ndarray) -> CpuConstants:
        found = fit_cpu(points, seconds, CACHES, counted=counted)
        return with_errors(found, points, seconds, counted=counted)

    check_analytic_model(fit, points, lambda model, points: model.latency_s(points))


@pytest.mark.parametrize("kind", [OperatorModel, LayerModel, GpuKernels])
def test_a_packaged_model_has_a_place(kind) -> None:
    assert kind.packaged_path().exists()
    assert type(kind.at("pretrained")) is kind


@cache
def _fitted_layers() -> tuple[Any, LayerModel]:
    table = made_up_layers(drift_ms=0.0, rows=120)
    return table, fit_validated_layers(table, LayerOptions(residual="none", has_drift=False))


@pytest.mark.parametrize(
    ("predict", "text"),
    [
        (lambda model, table: table.time_ms, "never reads measured times"),
        (lambda model, table: -model.predict(table).time_ms, "positive and finite"),
        (lambda model, table: model.predict(table).time_ms[:-1], "one time for each row"),
        (lambda model, table: np.full(len(table), 1.0 / len(table)), "depends on no other row"),
        (lambda model, table: np.full(len(table), id(model) + 1.0), "a loaded model predicts"),
    ],
)
def test_a_broken_model_is_told_what_it_breaks(predict, text) -> None:
    table, model = _fitted_layers()
    with pytest.raises(AssertionError, match=text):
        check_analytic_model(lambda _: model, table, predict, slower=slower)
