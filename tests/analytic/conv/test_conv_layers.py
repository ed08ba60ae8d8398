"""Layers without counters: latent work, drift, closed forms, trees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.algorithms import (
    ConvAlgorithm,
    find_variant,
    least_product_share,
    nonfused_tile,
)
from cdmpp.analytic.conv.errors import LAYER
from cdmpp.analytic.conv.layers.closed_form_model import POOLED, fit_latent
from cdmpp.analytic.conv.layers.closed_forms import fft_work, latent_work, roofline_ms
from cdmpp.analytic.conv.layers.drift import Drift, fit_drift
from cdmpp.analytic.conv.layers.evaluate import evaluate_layers, split_layers
from cdmpp.analytic.conv.layers.model import (
    BoostOptions,
    LayerModel,
    LayerOptions,
    fit_layers,
    remove_drifts,
)
from cdmpp.analytic.conv.layers.table import LayerTable, read_layers
from cdmpp.analytic.conv.layers.validation import fit_validated_layers
from cdmpp.analytic.conv.predict import least_ms
from cdmpp.analytic.conv.seer.evaluate import time_errors
from cdmpp.analytic.conv.seer.splits import family_split
from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, DeviceError
from cdmpp.files.stored import from_json, to_json
from cdmpp.networks.account import convolution_account
from tests.analytic.conv.written import write_layers
from tests.paths import shared

DEVICES = ("t4", "v100")
QUICK = BoostOptions(rounds=60, depth=4, algorithm_rounds=10)


def made_up_layers(*, drift_ms: float, rows: int = 600, seed: int = 0) -> LayerTable:
    """Returns layers whose time follows one form a algorithm, on two devices, with a drift."""
    rng = np.random.default_rng(seed)
    parts = []
    for index, label in enumerate(DEVICES):
        spec = get_device(label)
        cin, cout = (np.exp(rng.uniform(1, 6.5, rows)).astype(int) + 1 for _ in range(2))
        shapes = ConvShapes.of(
            rng.integers(1, 64, rows), cin, rng.integers(5, 120, rows), cout, 3, 1, 1
        )
        times = []
        for name, share in (("algo1_128x64", 0.7), ("algo6_148", 0.5)):
            work = latent_work(find_variant(name), shapes, spec)
            times.append(work.tail_ms / share + work.compulsory_ms / 0.8 + 0.05)
        position = np.linspace(0, 1, rows)
        best = np.argmin(times, axis=0)
        algorithm = np.where(best == 0, 1, 6)
        time_ms = np.min(times, axis=0) + drift_ms * position
        parts.append((shapes, np.full(rows, index), time_ms, algorithm, position))
    shapes = ConvShapes(
        *(
            np.concatenate([getattr(part[0], name) for part in parts])
            for name in ConvShapes.__dataclass_fields__
        )
    )
    columns = [np.concatenate([part[i] for part in parts]) for i in range(1, 5)]
    return LayerTable(shapes, tuple(get_device(label) for label in DEVICES), *columns)


def test_work_of_a_kernel_on_an_ideal_device() -> None:
    device = get_device("t4")
    shapes = ConvShapes.of(32, 64, 56, 64, 3, 1, 1)
    work = latent_work(find_variant("algo1_128x64"), shapes, device)
    flop_per_s, bytes_per_s = device.peak_fp32_flop_per_s, device.mem_bandwidth_bytes_per_s
    direct_ms = 2e3 * float(shapes.multiplications[0]) / flop_per_s
    # 784 blocks of a multiple of 8 products: no padding; whole waves cost more, never less.
    assert work.waves_ms[0] >= work.tail_ms[0] >= direct_ms * (1 - 1e-12)
    assert work.waves_ms[0] == pytest.approx(work.waves[0] * 160 / 784 * direct_ms)
    assert work.compulsory_ms[0] == pytest.approx(
        1e3 * float(shapes.compulsory_bytes[0]) / bytes_per_s
    )
    assert work.tiles_ms[0] == pytest.approx(784 * (128 + 64) * 576 * 4e3 / bytes_per_s)
    assert work.helpers_ms[0] == 0.0
    assert roofline_ms(shapes, device)[0] == pytest.approx(max(direct_ms, work.compulsory_ms[0]))


def test_winograd_multiplies_less() -> None:
    shapes = ConvShapes.of(32, 64, 56, 128, 3, 1, 1)
    device = get_device("v100")
    direct = latent_work(find_variant("algo1_128x128"), shapes, device).tail_ms[0]
    fused = latent_work(find_variant("algo6_148"), shapes, device).tail_ms[0]
    large = latent_work(find_variant("algo7_128x128_3x3"), shapes, device)
    assert 1.8 < direct / fused < 3.0  # 36 / 16 without tails and padding
    assert 3.0 < direct / large.tail_ms[0] < 5.5  # 144 / 36
    assert large.helpers_ms[0] > large.compulsory_ms[0]
    assert fft_work(ConvAlgorithm.FFT, shapes, device).helpers_ms[0] > 0
    with pytest.raises(DeviceError, match="needs peak_fp32_flop_per_s"):
        roofline_ms(shapes, replace(device, core_count=None))


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7, 11])
@pytest.mark.parametrize("stride", [1, 2])
def test_lower_bounds_of_layers_and_networks_agree(kernel: int, stride: int) -> None:
    device, width = get_device("v100"), 56
    shapes = ConvShapes.of(256, 512, width, 512, kernel, stride, kernel // 2)
    flop_per_s = device.peak_fp32_flop_per_s
    assert flop_per_s is not None
    products_s = 2 * float(shapes.multiplications[0]) / flop_per_s
    account = convolution_account(
        (256, 512, width, width), (512, 512, kernel, kernel), int(shapes.outputs[0]),
        groups=1, stride=stride, is_transposed=False,
    )  # fmt: skip
    assert account.product_flop == 2 * float(shapes.multiplications[0])
    assert least_ms(shapes, device)[0] == pytest.approx(1e3 * account.least_share * products_s)


def test_no_winograd_algorithm_is_below_the_lower_bound() -> None:
    """A tile of m x m outputs takes (m + k - 1) x (m + k - 1) products of its m x m x k x k."""
    tiles = [(2, 3), (6, 3), *((nonfused_tile(kernel), kernel) for kernel in (3, 5))]
    for tile, kernel in tiles:
        share = ((tile + kernel - 1) / (tile * kernel)) ** 2
        assert least_product_share(kernel**2, 1) <= share


def test_a_drift_is_found_and_taken_out() -> None:
    rng = np.random.default_rng(0)
    position = np.linspace(0, 1, 2000)
    work = rng.lognormal(0, 1, 2000)
    time_ms = 0.05 + 1.4 * work + 0.9 * position
    drift = fit_drift(time_ms, position, work)
    np.testing.assert_allclose(drift.added_ms(position), 0.9 * position, atol=1e-6)
    np.testing.assert_allclose(drift.corrected(time_ms, position), 0.05 + 1.4 * work, rtol=1e-4)
    assert drift.row_count == 300
    again = from_json(Drift, to_json(drift))
    assert np.array_equal(again.added_ms(position), drift.added_ms(position))


def test_no_drift_where_there_is_none_or_too_little() -> None:
    rng = np.random.default_rng(0)
    work = rng.lognormal(0, 1, 2000)
    time_ms = (0.05 + 1.4 * work) * rng.normal(1.0, 0.03, 2000)
    position = np.linspace(0, 1, 2000)
    assert fit_drift(time_ms, position, work).added_ms(position).max() < 0.03
    few = fit_drift(time_ms[:100], position[:100], work[:100])
    assert few.row_count == 0
    assert not few.added_ms(position).any()


def test_closed_forms_find_times_and_algorithms() -> None:
    table = made_up_layers(drift_ms=0.0)
    train, test = family_split(table.shapes, seed=0)
    closed = fit_latent(table[train])
    assert set(closed.forms) == {*DEVICES, POOLED}
    rows = np.flatnonzero(test & (table.device == 0))
    found, kinds = closed.predict(table.shapes[rows], table.devices[0])
    error = time_errors(table.time_ms[rows], found.min(axis=1))
    assert error.median_ape < 0.12
    assert np.mean(found.argmin(axis=1) == table.algorithm[rows]) > 0.8
    assert set(np.unique(kinds[:, 6])) <= {0, 1, 2}
    # Coefficients are shares of a peak: a device that was never measured is served as well.
    other, _ = closed.predict(table.shapes[rows], get_device("p100"))
    assert np.isfinite(other.min(axis=1)).all()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_model_sees_through_the_drift(tmp_path: Path) -> None:
    table = made_up_layers(drift_ms=2.0)
    train, test = (table[side] for side in family_split(table.shapes, seed=0))
    options = LayerOptions(boost=QUICK)
    model = fit_layers(train, options)
    found = model.predict(test)
    seeing = time_errors(test.time_ms, found.time_ms + model.drift_ms(test))
    blind = time_errors(
        test.time_ms,
        fit_layers(train, replace(options, has_drift=False)).predict(test).time_ms,
    )
    assert seeing.rmspe < 0.6 * blind.rmspe
    clean = remove_drifts(test, model.drifts)
    assert (clean.time_ms <= test.time_ms).all()
    folder = tmp_path / "model"
    model.save(folder)
    again = LayerModel.load(folder).predict(test)
    assert np.array_equal(again.time_ms, found.time_ms)
    assert np.array_equal(again.algorithm, found.algorithm)
    same = fit_layers(train, options).predict(test)
    assert np.array_equal(same.time_ms, found.time_ms)
    (folder / "time-trees.json").write_bytes(b"")  # XGBoost itself ends the process over it
    with pytest.raises(DataError, match=r"cannot read the trees .*time-trees\.json"):
        LayerModel.load(folder)


def test_models_that_cannot_be_fitted_or_read(tmp_path: Path) -> None:
    table = made_up_layers(drift_ms=0.0, rows=50)
    with pytest.raises(DataError, match="names its algorithm"):
        fit_layers(replace(table, algorithm=np.full(len(table), -1)))
    with pytest.raises(DataError, match="no convolution model at"):
        LayerModel.load(tmp_path)
    (tmp_path / "conv.json").write_text('{"format": "x"}')
    with pytest.raises(DataError, match="has format 'x'"):
        LayerModel.load(tmp_path)


@pytest.mark.parametrize("name", ["layers.csv", "layers.csv.gz"])
def test_layer_files_come_back(tmp_path: Path, name: str) -> None:
    table = made_up_layers(drift_ms=0.5, rows=20)
    write_layers(tmp_path / name, table)
    found = read_layers(tmp_path / name)
    assert [spec.name for spec in found.devices] == list(DEVICES)
    assert np.array_equal(found.time_ms, table.time_ms)
    assert np.array_equal(found.algorithm, table.algorithm)
    np.testing.assert_allclose(found.position, table.position)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column device"),
        ("device,batch\nt4,1\n", "no column in_channels"),
        ("device,batch,batch\nt4,1,2\n", "several columns have the title 'batch'"),
        ("device,batch\nt4,1,\nt4,1,2\n", "row 2 has 3 cells; expected 2"),
        ("device,batch,in_channels,in_width,out_channels,kernel,stride,padding,time_ms\n"
         "t4,1,2,3,4,3,1,1,0\n", "row 1, column 'time_ms': cannot read '0'"),
        ("device,batch,in_channels,in_width,out_channels,kernel,stride,padding,time_ms\n"
         "t4,1,2,3,4,3.9,1,1,1\n", "row 1, column 'kernel': cannot read '3.9' as a whole number"),
        ("device,batch,in_channels,in_width,out_channels,kernel,stride,padding,time_ms,algorithm\n"
         "t4,1,2,3,4,3,1,1,1,magic\n", "unknown algorithm 'magic'; known: implicit"),
    ],
)  # fmt: skip
def test_malformed_layer_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "layers.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_layers(path)


def test_spellings_of_a_device_are_one_device(tmp_path: Path) -> None:
    path = tmp_path / "layers.csv"
    write_layers(path, made_up_layers(drift_ms=0.5, rows=20))
    plain = read_layers(path)
    path.write_text(path.read_text().replace("t4,", "Tesla T4,", 5))
    found = read_layers(path)
    assert [spec.name for spec in found.devices] == list(DEVICES)
    assert np.array_equal(found.device, plain.device)
    assert np.array_equal(found.position, plain.position)


def test_the_original_split_needs_a_test_part() -> None:
    table = made_up_layers(drift_ms=0.0, rows=5)
    table = replace(table, time_ms=np.full(len(table), 0.5))
    with pytest.raises(DataError, match="leaves 0 training and 0 test rows"):
        split_layers(table, "original", seed=0)


def test_the_published_table_is_read() -> None:
    table = read_layers(shared("neusight/train/conv.csv.gz"))
    assert len(table) == 24_662
    assert [spec.name for spec in table.devices] == ["a100-80gb", "p100", "p4", "t4", "v100-32gb"]
    t4 = table[table.device == 3]
    assert np.bincount(t4.algorithm, minlength=8).tolist() == [27, 1577, 27, 0, 0, 9, 1141, 2188]
    # The cost that grows while a device is measured: nothing in the last tenth is as fast as the
    # fastest of the first.
    tenths = np.array_split(t4.time_ms, 10)
    assert tenths[-1].min() > 4 * tenths[0].min()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))]
)
def test_intervals_hold_nine_of_ten_layers_with_values_never_seen(seed: int) -> None:
    table = read_layers(shared("neusight/train/conv.csv.gz"))
    table = table[np.isin(table.device, (0, 3))]
    train, test = (table[side] for side in family_split(table.shapes, seed=seed))
    model = fit_validated_layers(train, LayerOptions(residual="none"), seed=seed)
    found, _ = evaluate_layers(model, test)
    assert model.errors is not None
    for label in ("a100-80gb", "t4"):
        assert 0.85 <= found["by_device"][label]["coverage"] <= 0.95
        assert model.errors.of(label)[LAYER].low < 0 < model.errors.of(label)[LAYER].high


@pytest.mark.exhaustive
@pytest.mark.slow
def test_errors_come_back_and_few_rows_have_none(tmp_path: Path) -> None:
    table = made_up_layers(drift_ms=0.0, rows=200)
    model = fit_validated_layers(table, LayerOptions(residual="none"))
    model.save(tmp_path)
    assert LayerModel.load(tmp_path).errors is not None
    assert to_json(LayerModel.load(tmp_path).errors) == to_json(model.errors)
    one = table[np.flatnonzero(table.device == 0)]
    alone = fit_validated_layers(one, LayerOptions(residual="none"))
    assert alone.errors.of("t4")
    assert not alone.errors.of("v100")  # no GPU was left out: nothing is known of another
    few = fit_validated_layers(one[np.arange(20)], LayerOptions(residual="none"))
    assert not few.errors.of("t4")


@pytest.mark.exhaustive
def test_published_layers_are_predicted_within_the_goal() -> None:
    table = read_layers(shared("neusight/train/conv.csv.gz"))
    table = table[np.isin(table.device, (1, 3))]
    train, test = (table[side] for side in family_split(table.shapes, seed=0))
    model = fit_layers(train, LayerOptions(boost=replace(BoostOptions(), rounds=250)))
    predicted = model.predict(test).time_ms + model.drift_ms(test)
    for index in (1, 3):
        rows = test.device == index
        assert time_errors(test.time_ms[rows], predicted[rows]).rmspe < 0.1471
