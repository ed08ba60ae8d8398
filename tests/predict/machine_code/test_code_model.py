"""The machine-code model: training, predictions and files."""

from __future__ import annotations

import json
import lzma
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns, read_machine_code
from cdmpp.devices.registry import get_device
from cdmpp.devices.vector import device_vector
from cdmpp.errors import DataError
from cdmpp.files.boosted_trees import ask_trees, grow_trees, tree_rows
from cdmpp.predict.machine_code import expected_error
from cdmpp.predict.machine_code.cold_memory import NetworkWidths
from cdmpp.predict.machine_code.model import (
    FOLDER,
    CodeCalibration,
    CodeModel,
    CodeRows,
)
from cdmpp.predict.machine_code.net import CodeNet
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES

pytestmark = pytest.mark.training

FILE_NAME = "machine_code.parquet"
_COLUMNS = 20
_SCHEMA = {"leaf": 1, "leaf_extra": 3}
_TARGETS = {"epyc-avx512-1c": '{"kind": "llvm", "mcpu": "skylake-avx512"}'}


def rows(count: int, seed: int, *, hidden: float = 1.0) -> CodeRows:
    """Returns programs whose last column has what the cost model cannot see."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(count, _COLUMNS)).astype(np.float32)
    model_log_s = -7.0 + columns[:, 0].astype(np.float64)
    noise = rng.normal(size=count) * 0.1
    return described(columns, model_log_s, model_log_s + hidden * columns[:, -1] + noise)


def described(columns: Any, model_log_s: Any, log_s: Any) -> CodeRows:
    """Returns rows of tasks with four programs each; every second task is a convolution."""
    task = np.arange(len(log_s)) // 4
    kind = np.where(task % 2, "conv2d", "elementwise")
    core_log_s = np.full(len(log_s), -7.0)
    is_record = np.zeros(len(log_s), bool)
    device = np.full(len(log_s), *_TARGETS)
    vector = np.tile(device_vector(get_device(*_TARGETS)), (len(log_s), 1))
    return CodeRows(
        np.concatenate([columns, vector], axis=1), core_log_s, model_log_s, log_s,
        task.astype(np.str_), kind, is_record, device, np.full(len(log_s), "zen4"),
    )  # fmt: skip


def fitted(*, hidden: float = 1.0, absurd_cycles: float = 1.0) -> CodeModel:
    parts = (rows(240, 0, hidden=hidden), rows(200, 1, hidden=hidden), rows(200, 2, hidden=hidden))
    parts[1].core_log_s[0] += np.log(absurd_cycles)
    return CodeModel.fit(parts, targets=_TARGETS, feature_schema=_SCHEMA, seed=0)


@pytest.fixture(scope="module")
@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def found() -> CodeModel:
    return fitted()


@pytest.mark.exhaustive
def test_they_see_what_the_model_does_not():
    found = fitted()
    errors = found.errors
    assert errors.programs == 200
    assert errors.log_deviation < 0.6 * errors.model_log_deviation
    assert errors.mape < 0.6 * errors.model_mape
    assert errors.coverage == pytest.approx(0.9, abs=0.07)
    assert found.calibration.trees + found.calibration.perceptron >= 0.5


@pytest.mark.exhaustive
def test_one_program_of_absurd_cycles_decides_no_share():
    calibration = fitted(absurd_cycles=3400.0).calibration
    assert calibration.trees + calibration.perceptron >= 0.5


@pytest.mark.exhaustive
def test_a_model_that_sees_more_keeps_its_share():
    calibration = fitted(hidden=0.0).calibration
    assert calibration.trees + calibration.perceptron <= 0.5


def test_they_come_back_from_their_folder(found, tmp_path):
    found.save(tmp_path)
    again = CodeModel.load(tmp_path)
    asked = rows(50, 3)
    assert again.estimate(asked)[0] == pytest.approx(found.estimate(asked)[0], abs=0)
    assert (again.targets, again.errors) == (_TARGETS, found.errors)
    assert again.strange_factor == found.strange_factor >= 1.0
    assert CodeModel.load(tmp_path / "elsewhere") is None


@pytest.mark.exhaustive
def test_records_and_modules_have_shares_of_their_own(tmp_path):
    """What the cost model cannot see matters only for modules."""

    def both(count: int, seed: int) -> CodeRows:
        modules, records = rows(count, seed), rows(count, seed + 100, hidden=0.0)
        shown = replace(records, columns=records.columns * 0, is_record=np.ones(count, bool))
        return CodeRows.joined([modules, shown])

    parts = (both(240, 0), both(200, 1), both(200, 2))
    found = CodeModel.fit(parts, targets=_TARGETS, feature_schema=_SCHEMA, seed=0)
    of_modules, of_records = found.calibration, found.of_records
    assert of_records.trees + of_records.perceptron < 0.3 < of_modules.trees + of_modules.perceptron
    assert found.errors.programs == found.record_errors.programs == 200
    assert found.record_errors.mape < 0.12
    found.save(tmp_path)
    again = CodeModel.load(tmp_path)
    assert (again.of_records, again.record_errors) == (of_records, found.record_errors)
    asked = both(20, 7)
    for one, other in zip(again.estimate(asked), found.estimate(asked), strict=True):
        assert np.array_equal(one, other)


def fastest_of_many(tasks: int, seed: int) -> CodeRows:
    """Returns the fastest of 32 programs of each task, by noise that the cost model cannot see."""
    rng = np.random.default_rng(seed)
    columns = np.repeat(rng.normal(size=(tasks, _COLUMNS)), 32, axis=0).astype(np.float32)
    log_s = -7.0 + columns[:, 0] + rng.normal(size=tasks * 32) * 0.3
    first = np.arange(0, tasks * 32, 32) + log_s.reshape(tasks, 32).argmin(axis=1)
    return described(columns[first], -7.0 + columns[first, 0], log_s[first])


def test_the_fastest_of_many_is_faster_than_it_looks(found, tmp_path):
    def on_two_devices(tasks: int, seed: int) -> CodeRows:
        known = fastest_of_many(tasks, seed)
        slower = replace(known, device=np.full(tasks, "slower"), log_s=known.log_s + 0.4)
        return CodeRows.joined([known, slower])

    before = found.calibration
    found.calibrate_fastest(on_two_devices(200, 5), on_two_devices(100, 6))
    assert found.calibration == before
    own = found.fastest["epyc-avx512-1c"]
    assert found.fastest["slower"].shift == pytest.approx(own.shift + 0.4, abs=0.1)
    assert own.shift == pytest.approx(-0.3 * 2.07, abs=0.1)
    errors = found.fastest_errors["epyc-avx512-1c"]
    assert errors.programs == 100
    assert errors.mape < 0.3 < 0.6 < errors.model_mape
    assert errors.coverage == pytest.approx(0.9, abs=0.1)
    asked = fastest_of_many(20, 7)
    assert found.estimate(asked, are_fastest=True)[0] == pytest.approx(asked.log_s, abs=0.8)
    elsewhere = replace(asked, device=np.full(20, "my-box"))
    looks, _ = found.estimate(elsewhere)
    fastest, _ = found.estimate(elsewhere, are_fastest=True)
    assert fastest - looks == pytest.approx((own.shift + found.fastest["slower"].shift) / 2)
    found.cold_s_per_byte["epyc-avx512-1c"], found.network_widths = 2e-11, NetworkWidths(0.5)
    found.save(tmp_path)
    again = CodeModel.load(tmp_path)
    assert again.cold_s_per_byte == {"epyc-avx512-1c": 2e-11}
    assert again.network_widths == NetworkWidths(0.5)
    assert (again.fastest, again.fastest_errors) == (found.fastest, found.fastest_errors)
    with pytest.raises(
        DataError, match="test part has no searched task on epyc-avx512-1c with 8 measured programs"
    ):
        found.calibrate_fastest(asked, rows(0, 1))
    facts = json.loads((tmp_path / FOLDER / "machine_code.json").read_text())
    of_one = {name: facts[name]["epyc-avx512-1c"] for name in ("fastest", "fastest_test")}
    earlier = {**facts, **of_one, "format": 7, "searched": "epyc-avx512-1c", "cold_s_per_byte": 0.0}
    (tmp_path / FOLDER / "machine_code.json").write_text(json.dumps(earlier))
    again = CodeModel.load(tmp_path)
    assert (again.fastest, again.cold_s_per_byte) == ({"epyc-avx512-1c": own}, {})


@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def test_the_vector_of_an_unknown_chip_counts_for_nothing(tmp_path: Path) -> None:
    def on(chip: str, vector: float, seed: int) -> CodeRows:
        """Returns programs; those of a `slow` chip take three times as long."""
        part = rows(200, seed)
        part.columns[:, _COLUMNS:] = vector
        slow = math.log(3.0) if chip == "slow" else 0.0
        return replace(part, chip=np.full(200, chip), log_s=part.log_s + slow)

    def both(seed: int) -> CodeRows:
        return CodeRows.joined([on("fast", 1.0, seed), on("slow", 2.0, seed + 100)])

    model = CodeModel.learned(both(0), both(1), targets=_TARGETS, feature_schema=_SCHEMA, seed=0)
    model.save(tmp_path)
    again = CodeModel.load(tmp_path)
    assert again is not None
    assert again.chips == {"fast", "slow"}
    fast, slow = (again.parts_log_s(on("fast", vector, 2)) for vector in (1.0, 2.0))
    new, other = (again.parts_log_s(on("new", vector, 2)) for vector in (1.0, 2.0))
    for place in range(2):
        assert np.median(slow[place] - fast[place]) > 0.3
        assert np.array_equal(new[place], other[place])
        assert np.median(fast[place]) < np.median(new[place]) < np.median(slow[place])


@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def test_widths_differ_by_program_on_known_devices_only(monkeypatch, tmp_path):
    monkeypatch.setattr(expected_error, "LEAST_PROGRAMS", 200)
    fitted().save(tmp_path)
    again = CodeModel.load(tmp_path)
    asked = rows(20, 3)
    _, half_width = again.estimate(asked)
    expected = again.calibration.width * again.expected_error(asked)
    assert half_width == pytest.approx(expected)
    assert half_width.max() > half_width.min()
    _, elsewhere = again.estimate(replace(asked, device=np.full(20, "my-box")))
    assert elsewhere == pytest.approx(again.calibration.width * again.typical_error)
    assert half_width.min() < elsewhere[0] < half_width.max()


def test_a_device_that_it_was_adapted_to_comes_back(found, tmp_path):
    own = CodeCalibration(0.7, 0.1, 0.4, -0.2)
    plain = found.adapted("my-box", '{"kind": "llvm"}', own)
    learned = rows(200, 5)
    label = tree_rows(found.error_columns(learned), learned.log_s - learned.model_log_s)
    trees = grow_trees({"max_depth": 2}, label, trees=5)
    adapted = plain.adapted("my-box", '{"kind": "llvm"}', own, trees)
    adapted.save(tmp_path)
    again = CodeModel.load(tmp_path)
    assert (again.of_device, again.targets) == ({"my-box": own}, adapted.targets)
    asked = rows(20, 3)
    here = replace(asked, device=np.full(20, "my-box"))
    assert np.array_equal(again.estimate(here), adapted.estimate(here))
    assert again.estimate(here)[1] == pytest.approx(0.4)
    assert np.array_equal(again.estimate(asked), found.estimate(asked))
    added = again.estimate(here)[0] - plain.estimate(here)[0]
    assert added == pytest.approx(ask_trees(trees, again.error_columns(here)), abs=1e-6)
    assert added.std() > 0.01
    assert plain.device_trees == adapted.adapted("my-box", "", own).device_trees == {}


def test_a_damaged_part_names_the_command_that_made_the_folder(found, tmp_path):
    """Folders of `device add` and `finetune` named `train-code`, which leaves their device out."""
    own = CodeCalibration(0.7, 0.1, 0.4, -0.2)
    learned = rows(200, 5)
    label = tree_rows(found.error_columns(learned), learned.log_s - learned.model_log_s)
    trees = grow_trees({"max_depth": 2}, label, trees=5)
    found.adapted("my-box", '{"kind": "llvm"}', own, trees).save(tmp_path)
    (tmp_path / FOLDER / "device-0.ubj.xz").write_bytes(b"cut")
    for name, text, command in (
        ("config.yaml", "model: ensemble", "cdmpp train-code"),
        ("config.yaml", "from_run: pretrained", "cdmpp finetune"),
        ("plan.json", "{}", "cdmpp device add"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"`{command}`"):
            CodeModel.load(tmp_path)


def test_damaged_and_foreign_folders(found, tmp_path):
    found.save(tmp_path)
    facts = tmp_path / FOLDER / "machine_code.json"
    content = json.loads(facts.read_text())
    facts.write_text(json.dumps({**content, "machine_code_schema": 99}))
    with pytest.raises(DataError, match="99"):
        CodeModel.load(tmp_path)
    facts.write_text(
        json.dumps({name: content[name] for name in ("format", "machine_code_schema")})
    )
    with pytest.raises(DataError, match="damaged"):
        CodeModel.load(tmp_path)
    facts.write_text(json.dumps(content))
    file = tmp_path / FOLDER / "trees.ubj.xz"
    packed = file.read_bytes()
    for damaged in (b"", lzma.compress(b""), packed[:-20], packed[:30] + b"x" * 9 + packed[39:]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot read the trees"):
            CodeModel.load(tmp_path)
    file.write_bytes(packed)
    file = tmp_path / FOLDER / "perceptron.safetensors"
    tensors = load_file(file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot read the perceptron"):
        CodeModel.load(tmp_path)
    save_file({**tensors, "kept": tensors["kept"][1:]}, file)
    with pytest.raises(DataError, match="cannot read the perceptron"):
        CodeModel.load(tmp_path)


@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def test_one_perceptron_of_an_earlier_form_is_read(tmp_path):
    part = rows(40, 0)
    net = CodeNet.fit(part.columns, part.log_s, seed=0)
    file = tmp_path / "perceptron.safetensors"
    net.save(file)
    assert np.array_equal(CodeNet.load(file, hint="").log_s(part.columns), net.log_s(part.columns))
    tensors = load_file(file)
    save_file(
        {
            name: value[1] if name.startswith("network.") else value
            for name, value in tensors.items()
        },
        file,
    )
    assert np.array_equal(
        CodeNet.load(file, hint="").log_s(part.columns),
        replace(net, members=net.members[1:2]).log_s(part.columns),
    )


def test_a_part_without_programs_is_refused():
    full, empty = rows(20, 0), rows(0, 1)
    for parts in ((empty, full, full), (full, empty, full), (full, full, empty)):
        with pytest.raises(DataError, match="part has no program"):
            CodeModel.fit(parts, targets=_TARGETS, feature_schema=_SCHEMA, seed=0)


def test_tables_come_back(tmp_path):
    values = np.arange(2 * len(MACHINE_CODE_NAMES), dtype=np.float32).reshape(2, -1)
    table = MachineCode(_TARGETS, {"one": values[0], "two": values[1]})
    table.save(tmp_path)
    (again,) = read_machine_code(tmp_path)
    assert again.targets == _TARGETS
    assert list(again.columns) == ["one", "two"]
    assert np.array_equal(np.stack(list(again.columns.values())), values)
    other = {label: text.replace("skylake-avx512", "core-avx2") for label, text in _TARGETS.items()}
    assert list(known_columns(tmp_path, _TARGETS)) == ["one", "two"]
    assert known_columns(tmp_path, other) == {}
    narrow = MachineCode(other, {"one": values[1]})
    narrow.save(tmp_path, name="core-avx2")
    assert [one.targets for one in read_machine_code(tmp_path)] == [other, _TARGETS]
    assert np.array_equal(known_columns(tmp_path, other)["one"], values[1])
    replace(table, columns={}).save(tmp_path)
    assert read_machine_code(tmp_path)[1].columns == {}


def test_tables_of_an_earlier_version_are_written_anew(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    earlier = pa.table({"program_id": ["one"]})
    metadata = {b"cdmpp.machine_code": b"1", b"cdmpp.target": b"{}"}
    pq.write_table(earlier.replace_schema_metadata(metadata), tmp_path / FILE_NAME)
    assert known_columns(tmp_path, _TARGETS) == {}
    with pytest.raises(DataError, match="version 1, expected 2 or gpu 1; regenerate it"):
        read_machine_code(tmp_path)


def test_damaged_tables_are_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert read_machine_code(tmp_path) == ()
    (tmp_path / FILE_NAME).write_bytes(b"nonsense")
    with pytest.raises(DataError, match="damaged"):
        read_machine_code(tmp_path)
    pq.write_table(pa.table({"program_id": ["one"]}), tmp_path / FILE_NAME)
    with pytest.raises(DataError, match="version none"):
        read_machine_code(tmp_path)
