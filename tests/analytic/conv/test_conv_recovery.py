"""Noise-free tables of a made-up GPU: the model finds its times, counters, types and picks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, find_variant
from cdmpp.analytic.conv.networks import NETWORKS, network_layers
from cdmpp.analytic.conv.seer.counters import measured_counters
from cdmpp.analytic.conv.seer.evaluate import kernel_errors, kernel_times, layer_errors, pick_errors
from cdmpp.analytic.conv.seer.fitting import SeerOptions, fit_seer
from cdmpp.analytic.conv.seer.model import SeerModel
from cdmpp.analytic.conv.seer.regimes import fit_regimes, fit_smooth
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.analytic.conv.seer.table import KernelType, PickTable
from cdmpp.analytic.conv.seer.trees import TreeOptions
from cdmpp.analytic.conv.seer.validation import fit_validated_seer, judged_kernels
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json
from tests.analytic.conv.conv_synthetic import (
    DEVICE,
    IM2COL_COEFFICIENTS,
    TRANSFORM_COEFFICIENTS,
    kernel_table,
    kernel_truth,
    layer_truth,
    layers,
    tables,
)

EXACT = TreeOptions(search_evaluations=0)


@pytest.fixture(scope="module")
def model() -> SeerModel:
    shapes = layers()
    rng = np.random.default_rng(0)
    return fit_seer(tables(shapes[rng.random(len(shapes)) < 0.7]), DEVICE, SeerOptions(trees=EXACT))


def test_tables_of_other_variants_are_refused(model: SeerModel) -> None:
    with pytest.raises(DataError, match="the tables are of algo9; expected some of the fitted"):
        kernel_times(model, {"algo9": next(iter(tables(layers()).values()))})


def test_times_and_picks_of_layers(model: SeerModel) -> None:
    shapes = layers()
    truth = layer_truth(shapes)
    found = model.predict(shapes)
    available = np.isfinite(truth)
    assert np.array_equal(available, np.isfinite(found.time_ms))
    np.testing.assert_allclose(found.time_ms[available], truth[available], rtol=1e-9)
    assert np.array_equal(found.pick, truth.argmin(axis=1))
    # A pick test proves something only where several algorithms win.
    assert len(set(found.pick.tolist())) >= 4


def test_counters_and_types_of_kernels(model: SeerModel) -> None:
    shapes = layers()
    test = tables(shapes)
    result = kernel_errors(model, test)
    assert set(result) >= {"all", "IMPLICIT_GEMM", "WINOGRAD", "algo0_32x32", "algo7_128x64_3x3"}
    for name, errors in result.items():
        assert errors["type_error_rate"] == 0.0, name
        for metric in ("instructions_rmspe", "reads_rmspe", "writes_rmspe"):
            assert errors[metric] < 1e-9, (name, metric)
        assert errors["time"]["rmspe"] < 1e-9, name
        assert errors["time"]["n"] > 0
    assert result["all"]["by_type"]["dram_bound"]["n"] > 0


def test_coefficients_are_found(model: SeerModel) -> None:
    np.testing.assert_allclose(model.helpers["algo2"].coefficients, IM2COL_COEFFICIENTS, rtol=1e-9)
    for name in ("algo7_128x64_3x3", "algo7_128x128_5x5"):
        np.testing.assert_allclose(
            model.helpers[name].coefficients, TRANSFORM_COEFFICIENTS, rtol=1e-9
        )
    fit = model.variants["algo0_32x32"].counters.instructions
    np.testing.assert_allclose(fit.coefficients, [900.0, 40.0], rtol=1e-9)
    assert all(error is not None and error < 1e-6 for error in fit.standard_errors)


def test_layer_and_pick_errors_are_zero(model: SeerModel) -> None:
    shapes = layers()
    truth = layer_truth(shapes)
    table = PickTable(shapes, truth, np.zeros(len(shapes), np.int64))
    result = layer_errors(model, table)
    assert result["layer"]["rmspe"] < 1e-9
    assert result["algorithm_accuracy"] == 1.0
    assert result["pick"] == {
        "n": len(shapes), "error_rate": 0.0, "exact_rate": 1.0, "mean_regret": 0.0,
        "p95_regret": 0.0,
    }  # fmt: skip
    # IMPLICIT_GEMM everywhere is a bad pick, and is found to be one.
    assert result["cudnn_pick"]["error_rate"] > 0.2
    assert pick_errors(table, np.full(len(shapes), -1))["n"] == 0


def test_a_saved_model_predicts_the_same(model: SeerModel, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model.save(path)
    again = SeerModel.load(path)
    assert np.array_equal(again.predict(layers()).time_ms, model.predict(layers()).time_ms)
    path.write_text('{"format": "other"}')
    with pytest.raises(DataError, match="has format 'other'"):
        SeerModel.load(path)


def test_a_rare_type_is_pooled_and_said() -> None:
    variant = find_variant("algo0_32x32")
    shapes = layers()
    truth = kernel_truth(variant, shapes)
    table = kernel_table(variant, shapes)
    compute = np.flatnonzero(truth.kind == int(KernelType.COMPUTE_BOUND))
    kept = np.sort(
        np.concatenate([compute[:5], np.flatnonzero(truth.kind != int(KernelType.COMPUTE_BOUND))])
    )
    part = table[kept]
    fitted = fit_regimes(part.kernel_type, measured_counters(part), part.launch, part.time_ms)
    assert fitted.pooled == (KernelType.COMPUTE_BOUND,)
    assert fitted.fits[KernelType.COMPUTE_BOUND].row_count == len(kept)
    assert not np.allclose(fitted.fits[KernelType.COMPUTE_BOUND].coefficients, 1.0)
    full = fit_regimes(table.kernel_type, measured_counters(table), table.launch, table.time_ms)
    assert full.pooled == ()


@pytest.mark.parametrize("power", [1.5, 4.0])
def test_the_smooth_form_is_found(power: float) -> None:
    table = kernel_table(find_variant("algo1_128x64"), layers())
    launch, counters = table.launch, measured_counters(table)
    compute = launch.waves * (2e-8 * launch.resident * counters.instructions + 0.003)
    memory = launch.blocks * (3e-7 * counters.reads + 2e-7 * counters.writes)
    time_ms = (compute**power + memory**power) ** (1 / power) + 0.2
    fitted = fit_smooth(counters, launch, time_ms)
    assert fitted.rmspe < 1e-3
    assert fitted.power == pytest.approx(power, rel=0.05)
    found = fitted.predict(table.kernel_type, counters, launch)
    np.testing.assert_allclose(found, time_ms, rtol=0.01)


def test_the_smooth_form_has_no_jump() -> None:
    shapes = layers()
    variant = find_variant("algo0_32x32")
    table = kernel_table(variant, shapes)
    smooth = fit_smooth(measured_counters(table), table.launch, table.time_ms)
    a = smooth.predict(np.zeros(len(shapes), np.int64), measured_counters(table), table.launch)
    b = smooth.predict(np.ones(len(shapes), np.int64), measured_counters(table), table.launch)
    assert np.array_equal(a, b)


def test_layers_of_networks() -> None:
    counts = {name: int(network_layers(name)[1].sum()) for name in NETWORKS}
    assert counts == {"vgg19": 16, "inception-v1": 57, "resnet50": 53}
    products = {}
    for name in NETWORKS:
        shapes, count = network_layers(name, 1)
        products[name] = float((shapes.multiplications * count).sum())
    # Published counts of multiply-adds: 19.6, 1.5 and 4.1 billion with the fully connected layers.
    assert products["vgg19"] == pytest.approx(19.5e9, rel=0.01)
    assert products["inception-v1"] == pytest.approx(1.58e9, rel=0.05)
    assert products["resnet50"] == pytest.approx(4.09e9, rel=0.01)


def test_tables_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="unknown tables: algo9"):
        fit_seer({"algo9": tables(layers())["algo4"]}, DEVICE)
    with pytest.raises(DataError, match="none of a main kernel"):
        fit_seer({"algo2_pre": tables(layers())["algo2_pre"]}, DEVICE)
    with pytest.raises(DataError, match=r"none of its .* rows has every counter"):
        fit_seer({"algo0_32x32": tables(layers())["algo4"]}, DEVICE)
    only_fft = fit_seer({"algo4": tables(layers())["algo4"]}, DEVICE)
    with pytest.raises(DataError, match="no fitted algorithm serves"):
        only_fft.predict(layers())
    assert ConvAlgorithm.FFT == 4


@pytest.mark.slow
def test_intervals_hold_nine_of_ten_kernels_with_values_never_seen(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train, test = {}, {}
    for name, table in tables(layers()).items():
        noisy = replace(table, time_ms=table.time_ms * np.exp(rng.normal(0, 0.05, len(table))))
        sides = family_split(table.shapes, seed=10)
        train[name], test[name] = (noisy[side] for side in sides)
    model = fit_validated_seer(train, DEVICE, SeerOptions(trees=EXACT))
    assert model.errors is not None
    errors = model.errors.of(DEVICE.name)
    is_inside = []
    for algorithm, measured_ms, predicted_ms in judged_kernels(model, test):
        own, found = errors[algorithm.name], np.log(measured_ms / predicted_ms)
        assert own.low <= 0 <= own.high
        is_inside.append((own.low <= found) & (found <= own.high))
    assert 0.85 <= np.concatenate(is_inside).mean() <= 0.95
    model.save(tmp_path / "seer.json")
    assert SeerModel.load(tmp_path / "seer.json").errors is not None
    without = to_json(model)
    del without["errors"]
    assert from_json(SeerModel, without).errors is None
    assert without == to_json(fit_seer(train, DEVICE, SeerOptions(trees=EXACT)))
