"""The fitted operator model: recovery, unknown devices, files, accuracy beside recorded peers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.operators import matmul as operator_matmul
from cdmpp.analytic.operators import rows as operator_rows
from cdmpp.analytic.operators.device import Hardware, hardware_rows
from cdmpp.analytic.operators.errors import OperatorErrors
from cdmpp.analytic.operators.evaluate import evaluate
from cdmpp.analytic.operators.fit import Layout, Parameter, fit_parameters
from cdmpp.analytic.operators.intervals import chips_of, packaged_operators
from cdmpp.analytic.operators.model import (
    FAMILIES,
    FamilyFit,
    OperatorModel,
    fit_family,
    known_hardware,
)
from cdmpp.analytic.operators.operators import Operators, make_operators
from cdmpp.analytic.operators.tables import PEERS, OperatorTable, read_instances, read_table
from cdmpp.analytic.operators.training import FitOptions, fit_model, large_shapes
from cdmpp.errors import DataError
from cdmpp.files.stored import from_json, to_json
from tests.paths import shared

KNOWN = {
    "v100": Hardware(80, 1.38e9, 14e12, 9e11, 6e6, 2e12),
    "t4": Hardware(40, 1.59e9, 8e12, 3.2e11, 4e6, 1.3e12),
}


def vector_table(count: int = 400) -> OperatorTable:
    """Additions that take exactly launch + bytes / (efficiency x bandwidth)."""
    rng = np.random.default_rng(0)
    rows = np.floor(2.0 ** rng.uniform(10, 17, count))
    operators = make_operators(["add"] * count, {"rows": rows, "cols": np.full(count, 1024.0)})
    device = np.array(["t4", "v100"])[rng.integers(0, 2, count)]
    numbers = hardware_rows(device, KNOWN)
    efficiency = np.where(device == "t4", 0.75, 0.9)
    seconds = 2e-5 + operators.bytes / numbers["dram_bytes_per_s"] / efficiency
    return OperatorTable(operators, device, seconds)


def test_fit_recovers_what_made_the_times() -> None:
    table = vector_table()
    fit = fit_family(table, "elementwise", KNOWN, seed=0, most_rows=1000)
    assert fit.devices == ("t4", "v100")
    assert np.exp(fit.values["memory"]) == pytest.approx([0.75, 0.9], rel=0.02)
    model = OperatorModel({"elementwise": (fit,)}, None, KNOWN, {})
    predicted = model.predict(table.operators, table.device, KNOWN)
    assert np.median(np.abs(predicted / table.latency_s - 1)) < 0.03


def test_a_device_with_few_rows_has_its_share_of_a_draw() -> None:
    table = vector_table(3000)
    is_few = np.flatnonzero(table.device == "v100")[:60]
    rows = np.concatenate([np.flatnonzero(table.device == "t4"), is_few])
    for seed in range(3):
        fit = fit_family(table[rows], "elementwise", KNOWN, seed=seed, most_rows=120)
        assert np.exp(fit.values["memory"]) == pytest.approx([0.75, 0.9], rel=0.02)


def test_labels_of_one_chip_are_left_out_together() -> None:
    twin = replace(KNOWN["v100"], dram_bytes_per_s=1.2e12)
    known = {**KNOWN, "v100-32gb": twin}
    table = vector_table(300)
    device = np.where(np.arange(300) % 3 == 0, "v100-32gb", table.device)
    table = OperatorTable(table.operators, device, table.latency_s)
    assert sorted(chips_of(table, known)) == [("t4",), ("v100", "v100-32gb")]


def test_a_label_with_the_numbers_of_a_measured_one_is_that_one() -> None:
    fit = fit_family(vector_table(), "elementwise", KNOWN, seed=0, most_rows=100)
    model = OperatorModel({"elementwise": (fit,), "ln": ()}, None, KNOWN, {})
    assert model.measured_as("tesla", KNOWN["v100"]) == "v100"
    assert model.measured_as("other", replace(KNOWN["v100"], l2_bytes=1.0)) == "other"
    assert model.is_fitted("add", "v100")
    assert not model.is_fitted("ln", "v100")


def test_jacobian_by_scope_equals_one_value_at_a_time() -> None:
    """A parameter of a class and device reaches its own rows only, so a line is found exactly."""
    rng = np.random.default_rng(1)
    layout = Layout(rng.integers(0, 2, 300), rng.integers(0, 3, 300), 2, 3)
    truth = rng.normal(size=6)
    x = rng.normal(size=300)
    target = 0.5 * x + truth[layout.place("class_device")]
    found = fit_parameters(
        (Parameter("slope", "all", 0.0, 1e-6), Parameter("level", "class_device", 0.0, 1e-6)),
        layout,
        lambda values: values["slope"] * x + values["level"],
        target,
    )
    assert found["slope"] == pytest.approx([0.5], abs=1e-5)
    assert found["level"] == pytest.approx(truth, abs=1e-5)


def test_the_cooler_campaign_of_a_device_predicts() -> None:
    """A board that ran hot in one campaign is not taken to be slow in the other operator."""
    operators = make_operators(["linear"], {"batch": [1], "m": [4096], "n": [4096], "k": [4096]})
    fit = _matmul_fit(heat=[0.2, 0.2, 1.5, 0.3])
    hot = OperatorModel({"matmul": (fit,)}, None, KNOWN, {})
    cool = OperatorModel({"matmul": (_matmul_fit(heat=[0.2, 0.2, 0.2, 0.2]),)}, None, KNOWN, {})
    for label in KNOWN:
        device = np.array([label])
        assert hot.predict(operators, device, KNOWN) == cool.predict(operators, device, KNOWN)


def test_waves_are_rounded_up_in_part() -> None:
    """One tile more than a full wave costs more than the share of its work."""
    sizes = np.array([80.0, 81.0]) * 128
    operators = make_operators(
        ["bmm"] * 2, {"batch": [1, 1], "m": sizes, "n": [128.0] * 2, "k": [4096.0] * 2}
    )
    fit = _matmul_fit(heat=[0.0] * 4, quantised=8.0, tile=5)
    model = OperatorModel({"matmul": (fit,)}, None, KNOWN, {})
    first, second = model.predict(operators, np.array(["v100"] * 2), KNOWN, context="queued")
    assert second / first > 1.3


def test_queued_is_never_slower() -> None:
    model = OperatorModel.load(OperatorModel.packaged_path())
    for operators in _examples():
        device = np.array(["t4"] * len(operators))
        known = known_hardware(["t4"])
        alone = model.predict(operators, device, known)
        queued = model.predict(operators, device, known, context="queued")
        assert np.all(queued <= alone * (1 + 1e-12))


def test_more_rows_take_longer() -> None:
    model = OperatorModel.load(OperatorModel.packaged_path())
    known = known_hardware(["h100"])
    for kind in ("add", "softmax", "ln"):
        rows = 2.0 ** np.arange(5, 22)
        operators = make_operators([kind] * len(rows), {"rows": rows, "cols": np.full(17, 1024.0)})
        seconds = model.predict(operators, np.array(["h100"] * 17), known)
        assert np.all(np.diff(seconds) > 0)


def test_file_round_trip_and_refusals(tmp_path: Path) -> None:
    model = OperatorModel.load(OperatorModel.packaged_path())
    path = tmp_path / "model.json"
    model.save(path)
    again = OperatorModel.load(path)
    operators = _examples()[0]
    device = np.array(["l4"] * len(operators))
    known = known_hardware(["l4"])
    assert np.array_equal(
        again.predict(operators, device, known), model.predict(operators, device, known)
    )
    state = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(state | {"format_version": 99}), "utf-8")
    with pytest.raises(DataError, match="has format_version 99"):
        OperatorModel.load(path)
    state["families"]["ln"][0]["values"]["fill"] = [1.0, 2.0]
    path.write_text(json.dumps(state), "utf-8")
    with pytest.raises(DataError, match="fill does not have 1 values"):
        OperatorModel.load(path)


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    table = vector_table(200)
    labelled = OperatorTable(table.operators, table.device, table.latency_s)
    for name in ("one", "two"):
        fit_model(
            {"elementwise": labelled},
            FitOptions(seeds=(0,), most_rows=100, most_validation_rows=50),
        ).save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("family", ["softmax", "ln"])
def test_intervals_hold_nine_of_ten_calls_of_shapes_never_seen(family: str) -> None:
    table = read_table(shared(f"neusight/train/{family}.csv.gz"))
    shapes = table.operators.rows * 1e6 + table.operators.cols
    is_test = np.isin(shapes, np.random.default_rng(0).permutation(np.unique(shapes))[::3])
    model = fit_model({family: table[~is_test]}, FitOptions(seeds=(0,)))
    judged = table[is_test]
    error = np.log(judged.latency_s / model.predict(judged.operators, judged.device, model.known))
    assert model.errors is not None
    is_larger = model.errors.is_larger(judged.operators)
    assert is_larger.mean() < 0.05
    is_inside = []
    for device, value, larger in zip(judged.device, error, is_larger, strict=True):
        errors = model.errors.of(family, str(device), is_larger=bool(larger))
        assert errors is not None
        assert errors.low <= 0 <= errors.high
        is_inside.append(errors.low <= value <= errors.high)
    assert 0.85 <= np.mean(is_inside) <= 0.95


def test_errors_come_back_from_the_file(tmp_path: Path) -> None:
    options = FitOptions(seeds=(0,), most_rows=100, most_validation_rows=50)
    model = fit_model({"elementwise": vector_table(400)}, options)
    assert model.errors is not None
    again = from_json(OperatorErrors, json.loads(json.dumps(to_json(model.errors))))
    assert to_json(again) == to_json(model.errors)
    assert set(again.by_device) == {"t4", "v100", "unseen"}
    assert again.largest["elementwise"]["cols"] == 1024
    assert again.is_larger(make_operators(["add"], {"rows": [4.0], "cols": [2048.0]})).all()
    alone = vector_table(400)
    model = fit_model({"elementwise": alone[alone.device == "t4"]}, options)
    assert model.errors is not None
    assert model.errors.of("add", "t4", is_larger=False) is not None
    assert model.errors.of("add", "v100", is_larger=False) is None
    assert model.errors.of("add", "t4", is_larger=True) is None


def test_large_shapes_are_a_quarter_of_each_kind() -> None:
    table = vector_table(400)
    assert large_shapes(table).mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("sizes_of_v100", ["small", "large"])
def test_chips_may_have_only_large_or_only_small_shapes(sizes_of_v100: str) -> None:
    table = vector_table(120)
    is_v100 = large_shapes(table) == (sizes_of_v100 == "large")
    table = replace(table, device=np.where(is_v100, "v100", "t4"))
    model = fit_model({"elementwise": table}, FitOptions(seeds=(0,)))
    assert np.isfinite(
        list(model.about["validation_mape_by_octaves"]["elementwise"].values())
    ).all()


def test_packaged_model_is_small_and_complete() -> None:
    path = OperatorModel.packaged_path()
    assert path.stat().st_size < 500_000
    model = OperatorModel.load(path)
    assert set(model.fits) == set(FAMILIES)
    assert len(model.fits["matmul"]) >= 3
    card = json.loads((path.parent / "card.json").read_text("utf-8"))
    assert "MIT" in json.dumps(card["licences"])
    assert set(card["devices"]) == set(model.known)
    judged = packaged_operators()
    for entry, groups in judged.errors.items():
        assert groups, entry
        for group, own in groups.items():
            assert own["seen"].low <= 0 <= own["seen"].high, (entry, group)
            assert own["unseen"].low <= 0 <= own["unseen"].high, (entry, group)


def test_reader_names_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "add.csv"
    path.write_text("device,op,rows,cols\n", "utf-8")
    with pytest.raises(DataError, match="latency_ms"):
        read_table(path)
    path.write_text("device,op,rows,cols,latency_ms\nTesla T4,add,8,x,1\n", "utf-8")
    with pytest.raises(DataError, match=r"add\.csv: row 1, column 'cols': cannot read 'x'"):
        read_table(path)
    for cell in ("0", "-1", "nan"):
        path.write_text(f"device,op,rows,cols,latency_ms\nTesla T4,add,8,4,{cell}\n", "utf-8")
        with pytest.raises(DataError, match=f"cannot read '{cell}' as a number above 0"):
            read_table(path)
    path.write_text("device,op,rows,cols,latency_ms\nTesla T4,add,8,4,0.5\n", "utf-8")
    table = read_table(path)
    assert table.device.tolist() == ["t4"]
    assert table.latency_s.tolist() == [0.0005]


def test_broadcast_operands_are_read_once(tmp_path: Path) -> None:
    header = (
        "device,model,batch,seq,phase,op_index,repeat,op_class,op,node,shape,input_shapes,"
        "output_shape,measured_ms,neusight_ms,roofline_ms,habitat_ms,li_ms\n"
    )
    row = "Tesla T4,m,1,1,inference,0,1,elementwise,add,add,rows=4;cols=8,4x8|1x8,4x8,1,1,1,1,1\n"
    path = tmp_path / "op_instances.csv"
    path.write_text(header + row, "utf-8")
    table = read_instances(path)["elementwise"].table
    assert table.operators.bytes.tolist() == [4 * (32 + 8 + 32)]
    path.write_text(header + row + row.replace("rows=4;cols=8", "rows=4"), "utf-8")
    with pytest.raises(DataError, match="has the sizes rows in one row and rows, cols in another"):
        read_instances(path)


def test_peers_as_published() -> None:
    """The recorded predictions of others give the errors that their authors' tables give."""
    instances = read_instances(shared("neusight/peers/op_instances.csv.gz"))
    expected = {"bmm": (23.8, 17.0), "linear": (26.5, 12.8), "elementwise": (29.6, 7.4),
                "ln": (42.5, 18.4), "softmax": (22.7, 20.1)}  # fmt: skip
    for family, (mean, median) in expected.items():
        rows = instances[family]
        error = 100 * np.abs(rows.peer_s["neusight"] / rows.table.latency_s - 1)
        assert error.mean() == pytest.approx(mean, abs=0.051)
        assert np.median(error) == pytest.approx(median, abs=0.051)


def test_packaged_model_beside_the_peers_on_the_same_rows() -> None:
    """Below NeuSight's mean error on every operator; on whole models below the other three."""
    folder = shared("neusight/peers").parent
    scores = {
        (s.split, s.group, s.model): s
        for s in evaluate(OperatorModel.load(OperatorModel.packaged_path()), folder)
        if s.device == "all" and s.seed in ("all", "-")
    }
    for family in ("bmm", "linear", "elementwise", "ln", "softmax"):
        ours, theirs = (scores["instances", family, name] for name in ("cdmpp", "neusight"))
        assert ours.n == theirs.n
        assert ours.mape < theirs.mape
    whole = {name: scores["whole-models", "all", name] for name in ("cdmpp", *PEERS)}
    assert whole["cdmpp"].n == 48
    for peer in ("roofline", "habitat", "li"):
        assert whole["cdmpp"].mape < whole[peer].mape


def _examples() -> list[Operators]:
    sizes = np.array([3.0, 100.0, 1024.0, 5000.0])
    return [
        make_operators(["linear"] * 4, {"m": sizes, "n": sizes[::-1], "k": sizes}),
        make_operators(["softmax"] * 4, {"rows": sizes, "cols": sizes[::-1]}),
        make_operators(["ln"] * 4, {"rows": sizes, "cols": sizes}),
        make_operators(["pow"] * 4, {"rows": sizes, "cols": sizes}),
    ]


def _matmul_fit(heat: list[float], quantised: float = 0.0, tile: int | None = None) -> FamilyFit:
    layout = Layout(np.zeros(0, np.intp), np.zeros(0, np.intp), 2, 2)
    values = {
        item.name: np.full(layout.width(item.scope), item.start)
        for item in operator_matmul.parameters()
    }
    values["heat"] = np.array(heat)
    values["quantised"][:] = quantised
    if tile is not None:
        for name in values:
            if name.startswith("tile"):
                values[name][:] = 0.0 if name == f"tile{tile}" else -9.0
        values["split_cost"][:] = 9.0
    return FamilyFit(values, ("t4", "v100"))


def test_forms_name_their_parameters_once() -> None:
    for names in (
        [item.name for item in operator_matmul.parameters()],
        *([p.name for p in operator_rows.parameters(f)] for f in ("elementwise", "softmax", "ln")),
    ):
        assert len(names) == len(set(names))
