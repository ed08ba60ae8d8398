"""AutoTVM logs: the reader, the identity of programs, extraction with a made-up featuriser."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.autotvm.logs import (
    AutotvmTask,
    autotvm_program_id,
    find_logs,
    is_autotvm_log,
    log_device,
    operator_shape,
    parse_autotvm_line,
    read_autotvm_log,
    task_of,
    template_operator,
)
from cdmpp.datasets.autotvm.source import AutotvmLogs
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.extraction.source import Featurised
from cdmpp.datasets.read_report import ReadReport
from cdmpp.datasets.splits import split
from cdmpp.datasets.tenset.record_line import RecordLineError
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, ReplayError, UsageError
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.records import predict_source
from cdmpp.pretrained import model_folder
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord
from cdmpp.testing import check_reader
from tests.paths import shared

CUDA = "cuda -keys=cuda,gpu -max_num_threads=1024 -model=t4 -thread_warp_size=32"


def line(
    *,
    template: str = "dense_large_batch.gpu",
    shape: tuple[int, int, int] = (128, 64, 32),
    tile: int = 4,
    costs: list[Any] | None = None,
    error: int = 0,
    target: str = CUDA,
) -> dict[str, Any]:
    rows, columns, inner = shape
    arguments = [["TENSOR", [rows, inner], "float32"], ["TENSOR", [columns, inner], "float32"]]
    entity = [["tile_x", "sp", [-1, tile]], ["auto_unroll_max_step", "ot", 64]]
    return {
        "input": [target, template, [*arguments, None, "float32"], {}],
        "config": {"index": tile, "code_hash": None, "entity": entity},
        "result": [[1e-3 * tile] if costs is None else costs, error, 1.5, 1610301343.7],
        "version": 0.2,
        "tvm_version": "0.8.dev0",
    }


def write_log(path: Path, lines: list[Any]) -> Path:
    texts = [item if isinstance(item, str) else json.dumps(item) for item in lines]
    path.write_bytes(gzip.compress(("\n".join(texts) + "\n").encode()))
    return path


def test_a_line_becomes_a_record() -> None:
    record = parse_autotvm_line(json.dumps(line(costs=[0.25, 0.75])), device="t4", line=7)
    assert (record.device, record.target_kind, record.line) == ("t4", "cuda", 7)
    assert record.latency_s == 0.5
    assert record.measured_at == 1610301343
    assert record.steps[0] == ["tile_x", "sp", [-1, 4]]
    task = task_of(record)
    assert task.template == "dense_large_batch.gpu"
    assert task.arguments[1] == ["TENSOR", [64, 32], "float32"]
    assert task.operator == "dense"


def test_an_old_template_name_is_the_same_task_as_its_present_one() -> None:
    new = parse_autotvm_line(json.dumps(line()))
    old = parse_autotvm_line(json.dumps(line(template="dense_large_batch.cuda")))
    assert task_of(old).template == "dense_large_batch.gpu"
    assert autotvm_program_id(old) == autotvm_program_id(new)


def test_the_identity_follows_from_what_is_run_and_the_target_kind_only() -> None:
    base = autotvm_program_id(parse_autotvm_line(json.dumps(line()), device="t4"))
    other_attributes = line(target="cuda -keys=cuda,gpu -arch=sm_75", costs=[0.5])
    same = parse_autotvm_line(json.dumps(other_attributes), device="gtx1650")
    assert autotvm_program_id(same) == base
    for other in (line(tile=8), line(shape=(64, 64, 32)), line(target="rocm -keys=rocm,gpu")):
        assert autotvm_program_id(parse_autotvm_line(json.dumps(other))) != base


def broken(**changes: Any) -> str:
    return json.dumps(line() | changes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "not JSON"),
        (json.dumps(line())[:-25], "truncated JSON"),
        ("[1, 2]", "not a JSON object"),
        (json.dumps({"input": [], "result": []}), "missing field"),
        (broken(input=[CUDA]), "malformed input"),
        (broken(input=[CUDA, 5, []]), "malformed input"),
        (broken(input=[" ", "x", []]), "malformed input"),
        (broken(input=[CUDA, "x", [float("nan")]]), "malformed input"),
        (broken(input=[CUDA, "x", [], {"a": 1}]), "unsupported keyword arguments"),
        (broken(config=[]), "malformed config"),
        (broken(config={"entity": [["tile_x", "sp"]]}), "malformed config"),
        (broken(config={"entity": [["tile_x", "??", [1]]]}), "malformed config"),
        (broken(result=[[float("nan")], 0, 1, 2]), "cost is not finite"),
        (broken(result=[[-1.0], 0, 1, 2]), "cost is zero or negative"),
        (broken(result=[[], 0, 1, 2]), "no costs"),
        (broken(result=[["slow"], 0, 1, 2]), "malformed result"),
        ("[" * 100_000, "JSON nested too deeply"),
    ],
)
def test_a_bad_line_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(RecordLineError) as error:
        parse_autotvm_line(text)
    assert error.value.reason == reason


def test_the_reader_skips_counts_and_names_bad_lines(tmp_path: Path) -> None:
    failed = line(tile=2, costs=[1e9], error=1)
    unlabelled = line(tile=16, costs=[1e9])
    log = write_log(tmp_path / "t4.json.gz", [line(), "{oops", failed, unlabelled, "", "# note"])
    report = ReadReport()
    records = list(read_autotvm_log(log, report))
    assert [record.error_code for record in records] == [0, 1, 8]
    assert [record.line for record in records] == [1, 3, 4]
    assert {record.device for record in records} == {"t4"}
    assert (report.lines, report.records, report.failed, report.comments) == (4, 3, 2, 2)
    assert [(e.file, e.line, e.reason) for e in report.examples] == [("t4.json.gz", 2, "not JSON")]


def test_a_damaged_archive_is_counted(tmp_path: Path) -> None:
    log = write_log(tmp_path / "t4.json.gz", [line(tile=1 + n) for n in range(400)])
    log.write_bytes(log.read_bytes()[:-400])
    report = ReadReport()
    list(read_autotvm_log(log, report))
    assert report.skipped["truncated or damaged file"] == 1


@pytest.mark.parametrize(
    ("name", "device"),
    [("t4.json.gz", "t4"), ("i7-3770.json", "i7-3770"), ("a.b.log", "a.b"), ("v100", "v100")],
)
def test_the_file_name_is_the_device(name: str, device: str) -> None:
    assert log_device(Path("somewhere") / name) == device


def test_logs_are_told_from_other_data(tmp_path: Path, shipped: Path) -> None:
    log = write_log(tmp_path / "t4.json.gz", ["# a comment", line()])
    assert is_autotvm_log(log)
    assert is_autotvm_log(tmp_path)
    assert not is_autotvm_log(shipped)
    assert not is_autotvm_log(next((shipped / "measure_records" / "xeon-avx2-1c").iterdir()))
    assert not is_autotvm_log(tmp_path / "missing")
    with pytest.raises(DataError, match="no AutoTVM logs"):
        find_logs(shipped)


@pytest.mark.parametrize(
    ("template", "operator"),
    [
        ("conv2d_nchw_winograd.cuda", "winograd_conv2d"),
        ("depthwise_conv2d_NCHWc.x86", "depthwise_conv2d"),
        ("conv2d_nchw_spatial_pack.arm_cpu", "conv2d"),
        ("group_conv2d_nchw.cuda", "group_conv2d"),
        ("batch_matmul.x86", "batch_matmul"),
        ("dense_tensorcore.cuda", "dense"),
        ("my_own.op", "my_own"),
    ],
)
def test_operators_of_templates(template: str, operator: str) -> None:
    assert template_operator(template) == operator


def test_operator_shapes_join_templates_and_leave_other_keys_alone() -> None:
    keys = [
        parse_autotvm_line(json.dumps(line(template=template))).workload_key
        for template in ("dense_large_batch.gpu", "dense_small_batch.cuda", "batch_matmul.cuda")
    ]
    assert operator_shape(keys[0]) == operator_shape(keys[1]) != operator_shape(keys[2])
    assert operator_shape('["0013c369f74ad81dbdce48d38fd42748", 1, 14, 14]') is None
    assert operator_shape('["conv2d_layer", [1, 2]]') is None
    assert operator_shape("anything") is None


def fake_features(task: AutotvmTask, records: list[MeasureRecord]) -> Featurised:
    """Features that follow from the entity; one tile size cannot be instantiated."""
    results: list[CompactAst | ReplayError] = []
    for record in records:
        if record.steps[0][2][-1] == 3:
            results.append(ReplayError("AutoTVM, 3 does not divide"))
            continue
        seed = zlib.crc32(repr(record.steps).encode())
        rng = np.random.default_rng(seed)
        results.append(
            CompactAst(
                leaf_features=rng.random((2, 164), dtype=np.float32),
                leaf_extra=np.zeros((2, 0), np.float32),
                leaf_position=np.array([1, 3], np.int32),
                tree=np.array([0, 1, -1, 2, -1, -1], np.int32),
            )
        )
    return Featurised("autotvm", task.operator, 2.0 * task.arguments[0][1][0], results)


def two_devices(folder: Path) -> Path:
    """Two devices of one target kind and a third, three tasks, shared programs and failures."""
    folder.mkdir()
    shapes = [(128, 64, 32), (16, 16, 16), (8, 8, 8)]
    both = [line(shape=shape, tile=tile) for shape in shapes for tile in (1, 2, 3, 4, 5)]
    write_log(folder / "t4.json.gz", [*both, line(tile=6, costs=[1e9], error=1)])
    write_log(folder / "v100.json.gz", [*both[:10], line(tile=7)])
    write_log(folder / "mi50.json.gz", [line(tile=1, target="rocm -keys=rocm,gpu")])
    return folder


def rows(folder: Path, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [row for part in read_table(folder, table, columns) for row in part.to_pylist()]


PROGRAM_COLUMNS = ["program_id", "source", "operator", "target_kind", "valid", "reject_reason",
                   "flop_count", "leaf_position"]  # fmt: skip


def test_programs_of_several_devices_are_featurised_once(tmp_path: Path) -> None:
    logs = two_devices(tmp_path / "logs")
    report = extract(
        AutotvmLogs(logs, None, fake_features, shard_records=12), tmp_path / "out", jobs=1
    )
    assert report.devices == ["mi50", "t4", "v100"]
    programs = rows(tmp_path / "out", "programs", PROGRAM_COLUMNS)
    identities = [row["program_id"] for row in programs]
    assert len(identities) == len(set(identities)) == report.programs == 15 + 2 + 1
    assert report.measurements == 16 + 11 + 1
    assert report.shards > 1
    assert {row["source"] for row in programs} == {"autotvm"}
    assert {row["flop_count"] for row in programs} == {256.0, 32.0, 16.0}
    assert report.rejected == {"replay: AutoTVM, 3 does not divide": 3}
    assert report.read.records == 28
    assert report.read.failed == 1
    measured = rows(tmp_path / "out", "measurements", ["program_id", "device", "error_code"])
    assert {row["program_id"] for row in measured} == set(identities)
    assert sum(row["error_code"] for row in measured) == 1


def test_the_reader_keeps_the_contract(tmp_path: Path) -> None:
    check_reader(
        lambda logs, out: extract(AutotvmLogs(logs, None, fake_features), out, jobs=1),
        two_devices(tmp_path / "logs"),
    )


def test_a_second_run_keeps_what_is_there_and_gives_the_same_bytes(tmp_path: Path) -> None:
    logs = two_devices(tmp_path / "logs")
    first = extract(
        AutotvmLogs(logs, None, fake_features, shard_records=12), tmp_path / "a", jobs=1
    )
    (tmp_path / "a" / "shard-00001.json").unlink()
    again = extract(
        AutotvmLogs(logs, None, fake_features, shard_records=12), tmp_path / "a", jobs=1
    )
    other = extract(
        AutotvmLogs(logs, None, fake_features, shard_records=12), tmp_path / "b", jobs=1
    )
    assert again.reused == first.shards - 1
    assert first.data_hash == again.data_hash == other.data_hash


def test_a_number_of_programs_of_each_task_and_device(tmp_path: Path) -> None:
    logs = two_devices(tmp_path / "logs")
    report = extract(AutotvmLogs(logs, None, fake_features, per_task=2), tmp_path / "out", jobs=1)
    measured = rows(tmp_path / "out", "measurements", ["program_id", "device", "error_code"])
    counts = {label: sum(row["device"] == label for row in measured) for label in report.devices}
    assert counts == {"t4": 6, "v100": 4, "mi50": 1}
    assert all(row["error_code"] == 0 for row in measured)
    # The same programs are drawn on every device that has them, as far as it has them.
    t4 = {row["program_id"] for row in measured if row["device"] == "t4"}
    v100 = {row["program_id"] for row in measured if row["device"] == "v100"}
    assert len(t4 & v100) >= 3


def test_a_missing_device_and_an_empty_log_are_one_clear_error(tmp_path: Path) -> None:
    logs = two_devices(tmp_path / "logs")
    with pytest.raises(DataError, match=r"no AutoTVM log of device 'k80'.*mi50, t4, v100"):
        extract(AutotvmLogs(logs, ["k80"], fake_features), tmp_path / "out", jobs=1)
    empty = write_log(tmp_path / "x.json.gz", ["nonsense"])
    with pytest.raises(DataError, match="not JSON"):
        extract(AutotvmLogs(empty, None, fake_features), tmp_path / "out", jobs=1)


def mixed_log(folder: Path) -> Path:
    """A log of three devices: by `-model=` twice and by `-mcpu=`, and a record that names none."""
    targets = ["cuda -model=tx2", "cuda -model=tx2", "cuda -model=v100", "llvm -mcpu=core-avx2"]
    lines = [line(tile=tile, target=target) for tile, target in enumerate(targets, 4)]
    return write_log(folder / "gpus.json.gz", [*lines, line(tile=9, target="cuda")])


def test_a_log_of_several_devices_is_refused_or_has_a_label_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = mixed_log(tmp_path)
    words = ["--dataset", str(log), "--out", str(tmp_path / "o"), "--no-install"]
    assert main(["dataset", "extract", *words]) == 2
    assert "records of 3 models" in capsys.readouterr().err  # before an environment is asked for
    text = r"records of 3 models \(core-avx2 1, tx2 2, v100 1\): choose with --target"
    with pytest.raises(UsageError, match=text):
        extract(AutotvmLogs(log, None, fake_features), tmp_path / "no", jobs=1)
    out = tmp_path / "both"
    report = extract(AutotvmLogs(log, ["tx2", "v100"], fake_features), out, jobs=1)
    assert report.devices == ["tx2", "v100"]
    assert (report.read.files, report.read.lines, report.read.records) == (1, 5, 3)
    assert report.read.notes["records of another device or target, left out"] == 2
    measured = rows(out, "measurements", ["device", "latency_s"])
    assert sorted((one["device"], one["latency_s"]) for one in measured) == [
        ("tx2", 0.004), ("tx2", 0.005), ("v100", 0.006),
    ]  # fmt: skip
    out = tmp_path / "one"
    extract(AutotvmLogs(log, None, fake_features, target="-model=v100"), out, jobs=1)
    assert {one["device"] for one in rows(out, "measurements", ["device"])} == {"v100"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            json.dumps({"i": ["cuda", "mine", [], {}, [], {}], "r": [[1], 0, 1, 1]}),
            "1 a template of AutoTVM 0.1 without a counterpart today",
        ),
        ("SQLite format 3\0...", "is an SQLite database"),
        ('{"i": [["[\\"k\\"]", "llvm"], [[], []]], "r": [[1], 0, 0, 0], "v": "v0.6"}', "Ansor"),
        ("no json", "1 not JSON"),
    ],
)
def test_a_file_in_another_form_is_named(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Was `no such folder`, of a file that is there."""
    path = tmp_path / "gtx1080ti.json"
    path.write_text(content + "\n")
    assert main(["dataset", "extract", "--dataset", str(path), "--out", str(tmp_path / "o")]) == 3
    said = capsys.readouterr().err
    assert text in said
    assert "no such folder" not in said


_DATA, _WEIGHTS = ["TENSOR", [1, 32, 14, 14], "float32"], ["TENSOR", [32, 32, 3, 3], "float32"]


@pytest.mark.parametrize(
    ("target", "template", "kind", "arguments", "knobs", "now"),
    [
        (
            "cuda -model=1080ti", "topi_nn_conv2d", "direct",
            [_DATA, _WEIGHTS, [1, 1], [1, 1], "NCHW", "float32"], ["tile_f"],
            ["conv2d_nchw.cuda", [_DATA, _WEIGHTS, [1, 1], [1, 1], [1, 1], "float32"]],
        ),
        (
            "llvm -device=arm_cpu -model=rk3399", "topi_nn_conv2d", "winograd",
            [_DATA, _WEIGHTS, [1, 1], [1, 1], [2, 2], "NCHW", "float32"], ["tile_p"],
            ["conv2d_nchw_winograd.arm_cpu", [_DATA, _WEIGHTS, [1, 1], [1, 1], [2, 2], "float32"]],
        ),
        (
            "rocm", "topi_nn_dense", "direct", [_DATA, _WEIGHTS, None, "float32"], ["tile_k"],
            ["dense_small_batch.gpu", [_DATA, _WEIGHTS, None, "float32"]],
        ),
        (
            "llvm -mcpu=skylake-avx512", "topi_x86_conv2d_NCHWc", "direct", [_DATA, "NCHW", "NCHW"],
            ["tile_ic"], ["conv2d_NCHWc.x86", [_DATA, "NCHW", "NCHW"]],
        ),
    ],
)  # fmt: skip
def test_records_of_version_0_1_are_read_as_those_of_today(
    target: str, template: str, kind: str, arguments: list[Any], knobs: list[str], now: list[Any]
) -> None:
    entity = [[name, "sp", [2, 16]] for name in knobs]
    config = {"i": 1, "t": kind, "c": None, "e": entity}
    line = {
        "i": [target, template, arguments, {}, None, config],
        "r": [[3e-5], 0, 1.5, 1],
        "v": 0.1,
    }
    record = parse_autotvm_line(json.dumps(line))
    assert json.loads(record.workload_key) == now
    assert list(record.steps) == entity
    assert (record.target, record.latency_s, record.version) == (target, 3e-5, "0.1")


def test_layouts_that_no_template_of_today_takes_are_named() -> None:
    arguments = [_DATA, _WEIGHTS, [1, 1], [1, 1], "HWCN", "float32"]
    given = ["cuda", "topi_nn_conv2d", arguments, {}, None, {"t": "direct", "e": []}]
    with pytest.raises(RecordLineError, match="unsupported layout"):
        parse_autotvm_line(json.dumps({"i": given, "r": [[1], 0, 1, 1], "v": 0.1}))


def test_a_log_may_be_packed_with_xz(tmp_path: Path) -> None:
    path = tmp_path / "t4.json.xz"
    path.write_bytes(lzma.compress((json.dumps(line()) + "\n").encode()))
    assert is_autotvm_log(path)
    assert log_device(path) == "t4"
    (record,) = read_autotvm_log(path, ReadReport())
    assert record.latency_s == 0.004


def test_the_programs_of_a_log_are_predicted(tmp_path: Path) -> None:
    trained = load_trained(model_folder("pretrained"))
    log = write_log(tmp_path / "v100.json.gz", [line(tile=tile) for tile in (1, 2, 3, 3)])

    def features(task: AutotvmTask, records: list[MeasureRecord]) -> Featurised:
        found = fake_features(task, records)
        programs = [
            one if isinstance(one, ReplayError)
            else replace(one, leaf_extra=np.zeros((2, len(LEAF_EXTRA_NAMES)), np.float32))
            for one in found.programs
        ]  # fmt: skip
        return replace(found, programs=programs)

    found = predict_source(trained, AutotvmLogs(log, None, features))
    assert found.failures == {"AutoTVM, 3 does not divide": 1}
    assert {one.device for one in found.programs} == {"v100"}
    assert sorted(one.measured_s or 0 for one in found.programs) == [0.001, 0.002]
    elsewhere = predict_source(
        trained, AutotvmLogs(log, None, features), devices=[get_device("t4"), get_device("v100")]
    )
    assert [one.measured_s is None for one in elsewhere.programs] == [
        one.device == "t4" for one in elsewhere.programs
    ]
    assert len(elsewhere.programs) == 4


def test_few_operator_shapes_are_split_without_leak_and_the_split_says_so(tmp_path: Path) -> None:
    templates = ("dense_large_batch.gpu", "dense_small_batch.gpu")
    shapes = [(128, 64, 32), (16, 16, 16), (8, 8, 8), (4, 4, 4)]
    lines = [
        line(template=template, shape=shape, tile=tile)
        for template in templates for shape in shapes for tile in (1, 2, 4)
    ]  # fmt: skip
    log = write_log(tmp_path / "t4.json.gz", lines)
    extract(AutotvmLogs(log, None, fake_features), tmp_path / "out", jobs=1)
    samples = load_samples(tmp_path / "out")
    for seed in range(8):
        parts = split(samples, "task", seed=seed)
        groups = [
            {operator_shape(samples.programs.tasks[t].rsplit("|", 1)[0])
             for t in samples.task_id[part]}
            for part in (parts.train, parts.validation, parts.test)
        ]  # fmt: skip
        assert all(groups)
        assert sum(map(len, groups)) == len(set().union(*groups)) == 4
        assert "operator shapes are tested, too few for a reliable result" in parts.description


def test_the_command_names_what_to_build_when_there_is_no_side_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(tmp_path / "nowhere"))
    log = write_log(tmp_path / "t4.json.gz", [line()])
    command = ["dataset", "extract", "--dataset", str(log), "--out", str(tmp_path / "out")]
    assert main([*command, "--no-install"]) == 2
    said = capsys.readouterr().err
    assert "python -m tvm_helper.legacy.setup" in said
    assert said.count("\n") == 1
    train = ["train", "--dataset", str(log), "--cache", str(tmp_path), "--no-install"]
    assert main([*train, "--out", str(tmp_path / "run")]) == 2
    assert "python -m tvm_helper.legacy.setup" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_programs_per_task_are_for_autotvm_logs_only(
    tiny_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dataset", "extract", "--dataset", str(tiny_dataset), "--per-task", "2"]) == 2
    assert "--per-task is for AutoTVM logs" in capsys.readouterr().err


def test_a_real_log_is_read_whole() -> None:
    report = ReadReport()
    records = list(read_autotvm_log(shared("autotvm/t4.json.gz"), report))
    assert len(records) == report.lines == 7016
    assert report.failed == 1187
    assert len({autotvm_program_id(record) for record in records}) == 7014
    assert len({operator_shape(record.workload_key) for record in records}) == 4
