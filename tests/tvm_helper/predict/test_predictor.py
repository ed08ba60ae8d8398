"""Programs and networks that nobody measured: the Python API and `cdmpp predict`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.predict.machine_code.cold_memory import COLD_SHARE
from tests.paths import ROOT
from tests.tvm_helper.predict.written import BOARD, SCRIPT
from tests.tvm_helper.search.fixtures import DEVICE, train_into
from tests.tvm_helper.tasks.test_network_tasks import onnx_file
from tvm_helper.predict.predictor import Predictor

pytestmark = pytest.mark.tvm

CONTRACT = {
    "program_id", "device", "latency_s", "low_s", "high_s", "measured_s", "out_of_distribution",
}  # fmt: skip
PROGRAMS = f"""
from tvm import s_tir
{SCRIPT}


def _scheduled(bind):
    schedule = s_tir.Schedule(plain)
    i, j, _ = schedule.get_loops(schedule.get_sblock("matmul"))
    if bind:
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
    else:
        schedule.parallel(i)
    return schedule.mod


tiled = _scheduled(False)
kernel = _scheduled(True)
"""


#: It has learned CPUs and GPUs; that of `run_folder` CPUs only.
MODEL = "pretrained"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("prediction") / "run")


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "programs.py"
    path.write_text(PROGRAMS)
    return path


@pytest.fixture(scope="module")
def spec_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "my.yaml"
    path.write_text(BOARD)
    return path


def rows_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    assert main(["predict", *map(str, arguments), "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.exhaustive
def test_programs_side_by_side(program_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(
        capsys, "--model", MODEL, "--program", program_file, "--device", DEVICE,
        "--device", "xeon-avx2-2c,t4",
    )  # fmt: skip
    assert all(row.keys() >= CONTRACT for row in rows)
    found = {(row["name"].partition(".")[0], row["device"]): row for row in rows}
    assert len(found) == 9
    for name in ("plain", "tiled"):
        for device in (DEVICE, "xeon-avx2-2c"):
            row = found[name, device]
            assert 0 < row["low_s"] < row["latency_s"] < row["high_s"]
            assert row["operator"] == "dense"
    assert found["plain", "t4"]["note"].startswith("as DLight would schedule it; predicted from")
    assert found["plain", "t4"]["latency_s"] > 0
    assert found["tiled", "t4"]["latency_s"] is None
    assert "no thread bindings" in found["tiled", "t4"]["reason"]
    assert found["kernel", "t4"]["latency_s"] > 0
    assert found["kernel", DEVICE]["latency_s"] is None
    assert not found["plain", DEVICE]["is_scheduled"]
    assert found["tiled", DEVICE]["is_scheduled"]
    assert len({row["program_id"] for row in rows if row["program_id"]}) == 4


def test_a_strange_device_has_wider_intervals_and_a_flag(
    run_folder: Path, program_file: Path, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(
        capsys, "--model", run_folder, "--program", program_file, "--device", DEVICE,
        "--device-spec", spec_file,
    )  # fmt: skip
    by_device = {row["device"]: row for row in rows if row["name"].startswith("tiled")}
    own, strange = by_device[DEVICE], by_device["my-board"]
    assert strange["out_of_distribution"]
    assert strange["is_new_device"]
    wide, narrow = (one["high_s"] / one["low_s"] for one in (strange, own))
    # The program may be strange too: then both have the widest interval.
    assert wide == pytest.approx(narrow, rel=1e-3) if own["out_of_distribution"] else wide > narrow


def test_the_explanation_names_the_store_and_what_it_needs(
    run_folder: Path, program_file: Path, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(
        capsys, "--model", run_folder, "--program", program_file, "--device-spec", spec_file
    )
    why = next(row["explanation"] for row in rows if row["name"].startswith("tiled"))
    # The sum needs its operations at 1e11 a second, the zeros their bytes at 2e10.
    sum_s, zeros_s = 2 * 64 * 32 * 48 / 1e11, 4 * 64 * 32 / 2e10
    assert why["roofline_s"] == pytest.approx(sum_s + zeros_s, rel=1e-3)
    assert why["buffer"] == "C"
    assert why["bound"] == "operations"
    assert why["shares_by"] == "model"
    assert 0.5 < why["share"] <= 1
    assert why["unknown_rates"] == []


def test_the_text_names_everything(
    program_file: Path, spec_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "--model", MODEL, "--program", str(program_file)]
    assert main([*arguments, "--device", f"{DEVICE},t4", "--device-spec", str(spec_file)]) == 0
    text = capsys.readouterr().out
    assert "plain is not scheduled" in text
    assert "tiled.main is not scheduled" not in text
    assert "bound by its operations at the peak" in text
    assert "unseen device my-board" in text
    assert "kernel.main on epyc-avx2-2c: it has GPU threads" in text


def test_many_virtual_threads_are_no_obstacle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ansor samples at most 8 of them, MetaSchedule more; a GPU runs both."""
    path = tmp_path / "virtual.py"
    head = PROGRAMS.partition("tiled =")[0].replace('(i, "blockIdx.x")', '(i, "vthread.x")')
    path.write_text(head + "\nkernel = _scheduled(True)\ndel plain\n")
    (row,) = rows_of(capsys, "--model", MODEL, "--program", path, "--device", "t4")
    assert row["reason"] is None
    assert row["latency_s"] > 0


def test_what_no_device_can_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.py"
    path.write_text(PROGRAMS.partition("kernel =")[0] + "del plain\n")
    arguments = ["predict", "--model", MODEL, "--device", "t4", "--program"]
    assert main([*arguments, str(path)]) == 3
    assert "no thread bindings" in capsys.readouterr().err
    path.write_text("x = 1\n")
    assert main([*arguments, str(path)]) == 3
    assert "defines no tensor program" in capsys.readouterr().err
    path.write_text("import nothing_of_this_name\n")
    assert main([*arguments, str(path)]) == 3
    assert "ModuleNotFoundError" in capsys.readouterr().err
    path.write_text("import sys\nsys.exit(0)\n")
    assert main([*arguments, str(path)]) == 3
    assert "SystemExit: 0" in capsys.readouterr().err
    assert main([*arguments, str(path), "--token-file", "token"]) == 2
    assert main([*arguments, str(path), "--device", "t5"]) == 4


@pytest.mark.exhaustive
def test_a_network_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = onnx_file(
        tmp_path / "net.onnx",
        lambda helper: [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        [4, 16],
    )
    words = ("--network", path, "--device", f"{DEVICE},t4", "--no-machine-code")
    rows = rows_of(capsys, "--model", MODEL, *words)
    assert all(row.keys() >= CONTRACT for row in rows)
    assert [(row["device"], row["way"]) for row in rows] == [
        (DEVICE, "tvm-untuned"), ("t4", "tvm-untuned"),
    ]  # fmt: skip
    for row in rows:
        for end, part in (("latency_s", "latency_s"), ("low_s", "low_s"), ("high_s", "high_s")):
            expected = sum(one["calls"] * one[part] for one in row["kernels"])
            if row["device"] == "t4" and end != "latency_s":  # errors of kernels partly cancel
                assert abs(math.log(row[end] / row["latency_s"])) < abs(
                    math.log(expected / row["latency_s"])
                )
            else:
                assert row[end] == pytest.approx(expected)
        assert row["schedule"] == "TVM's default schedule of each task"
    arguments = ["predict", "--model", MODEL, "--network", str(path)]
    assert main([*arguments, "--device", f"{DEVICE},t4"]) == 0
    text = capsys.readouterr().out
    assert "TVM's default schedule of each task" in text
    assert "softmax" in text


def test_a_missing_file_is_named(run_folder: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Predictor(run_folder, [DEVICE]).programs("missing.py")


WRITTEN = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def cumsum(A: T.Buffer((512, 2048), "float32"), O: T.Buffer((512, 2048), "float32")):
    for i in range(512):
        with T.sblock("rows"):
            vi = T.axis.spatial(512, i)
            O[vi, 0] = A[vi, 0]
            for k in range(2047):
                O[vi, k + 1] = O[vi, k] + A[vi, k + 1]

@T.prim_func(s_tir=True)
def transposed(A: T.Buffer((64, 64), "float32"), O: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.sblock("t"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = A[vj, vi]

@T.prim_func(s_tir=True)
def wide(A: T.Buffer((1024, 1024), "float64"), x: T.Buffer((1024,), "float64"),
         y: T.Buffer((1024,), "float64")):
    for i, k in T.grid(1024, 1024):
        with T.sblock("y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                y[vi] = T.float64(0)
            y[vi] = y[vi] + A[vi, vk] * x[vk]
"""


def test_what_is_said_of_programs_fits_their_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CPU has no threads to reduce across, 0.6 ns of a call bound nothing, and limits of a GPU
    are exceeded by TVM's schedule, not by the program.
    """
    path = tmp_path / "written.py"
    path.write_text(WRITTEN)
    assert main(["predict", str(path), "--device", DEVICE]) == 0
    text = capsys.readouterr().out
    assert "the model's features lack most of its bytes or operations" in text
    assert "across threads" not in text
    assert "0.600 ns" not in text
    assert main(["predict", str(path), "--device", "a100"]) == 0
    text = capsys.readouterr().out
    assert "as DLight would schedule it, shared memory per block" in text
    assert "\n\n\n" not in text


def test_a_note_says_how_much_longer_other_data_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "written.py"
    path.write_text("""
from tvm.script import tirx as T
@T.prim_func(s_tir=True)
def gelu(A: T.Buffer((65536,), "float32"), O: T.Buffer((65536,), "float32")):
    for i in range(65536):
        with T.sblock("g"):
            vi = T.axis.spatial(65536, i)
            O[vi] = A[vi] * (T.float32(0.5) + T.float32(0.5) * T.erf(A[vi] * T.float32(0.7)))
""")
    assert main(["predict", str(path), "--model", MODEL, "--device", "epyc-avx512-1c"]) == 0
    text = capsys.readouterr().out
    assert "the time of its erf depends on the data" in text
    assert "gelu is not scheduled" in text


def test_the_roofline_of_one_program_does_not_need_the_others(
    program_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", str(program_file), "--device", DEVICE, "--json"]) == 0
    found = capsys.readouterr()
    assert [row["name"] for row in json.loads(found.out)] == ["plain", "tiled.main"]
    assert "left out: kernel.main on" in found.err
    assert main(["roofline", str(program_file), "--device", "nosuch"]) == 4


def test_arguments_in_networks_come_at_a_share_of_the_memory_bandwidth() -> None:
    predictor = Predictor(MODEL, ["icelake-avx512-1c", "t4"])
    ice_lake, t4 = get_device("icelake-avx512-1c"), get_device("t4")
    assert ice_lake.mem_bandwidth_bytes_per_s is not None
    found = predictor.cold_s_per_byte(ice_lake)
    assert found == pytest.approx(COLD_SHARE / ice_lake.mem_bandwidth_bytes_per_s)
    assert predictor.cold_s_per_byte(replace(ice_lake, mem_bandwidth_bytes_per_s=None)) == 0.0
    assert predictor.cold_s_per_byte(t4) == 0.0
    taught = Predictor(MODEL, ["epyc-avx512-1c", "icelake-avx512-1c"], compiles=True)
    assert taught.cold_s_per_byte(get_device("epyc-avx512-1c")) == pytest.approx(2e-11)
    assert taught.cold_s_per_byte(ice_lake) == pytest.approx(found, rel=0.05)


def test_code_of_more_threads_than_anything_learned_is_not_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Divided by 192 threads, the time of one thread said 5 us for what takes 190 us on one."""
    asked = ("--model", MODEL, "--program", ROOT / "examples" / "kernel.py", "--device")
    (two,) = rows_of(capsys, *asked, "epyc-avx512-2c")
    assert two["is_compiled"]
    (many,) = rows_of(capsys, *asked, "epyc-9654")
    (plain,) = rows_of(capsys, *asked, "epyc-9654", "--no-machine-code")
    assert not many["is_compiled"]
    assert many["latency_s"] == plain["latency_s"]
    assert "run on 96 threads" in many["note"]
    assert main(["predict", *map(str, asked), "epyc-9654", "--machine-code"]) == 3
    assert "was trained on at most 2" in capsys.readouterr().err
