"""Measured loads of a server: how they change its answers, and files that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from cdmpp.api.compare import compare
from cdmpp.cli.main import main
from cdmpp.comparison.llm.calibrate import calibrated
from cdmpp.comparison.llm.decoder import Parallel
from cdmpp.comparison.llm.load import HostFit, LoadedServer, ServerCalibration
from cdmpp.comparison.llm.schedule import LEAST_SHARE, Load
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from tests.comparison.llama import MODEL, Millisecond

_ENDS = {"ttft": (0.5, 2.0), "tpot": (0.8, 1.25)}
_CALIBRATED = {
    f"{points} {lengths} lengths": {"ttft": (0.9, wide), "tpot": (0.95, 1.05)}
    for points in (1, 2, 3)
    for lengths, wide in (("same", 1.1), ("other", 1.5))
}
HOSTS = HostFit(0.05, 0.0, ("h100",), _ENDS, _ENDS, calibrated=_CALIBRATED)
TITLES = "concurrency,isl,osl,ttft_ms,tpot_ms"
GOOD = "8,1024,256,200,40"


def server(device: str = "h100") -> LoadedServer:
    table = StepTable.of(MODEL, Parallel(), get_device(device), Millisecond())
    return LoadedServer(MODEL, Parallel(), get_device(device), "vllm", table, hosts=HOSTS)


def load(users: int, inputs: int = 1024, outputs: int = 256) -> Load:
    return Load(users, inputs, outputs, LEAST_SHARE)


def written(folder: Path, *lines: str, titles: str = TITLES) -> Path:
    path = folder / "points.csv"
    path.write_text("\n".join([titles, *lines]) + "\n")
    return path


def measured_as(real: LoadedServer, loads: list[Load]) -> list[str]:
    """Returns the lines of a server that answers as `real`."""
    lines = []
    for one in loads:
        found = real.served(one)
        assert real.calibration is not None
        found = real.calibration.corrected(found, one)
        numbers = one.concurrency, one.input_tokens, one.output_tokens
        lines.append(",".join(map(str, (*numbers, 1e3 * found.ttft_s, 1e3 * found.tpot_s))))
    return lines


def test_a_slow_server_is_found_by_its_measured_loads(tmp_path: Path) -> None:
    real = replace(server(), calibration=ServerCalibration(0.4, 1.3, 0.8))
    path = written(tmp_path, *measured_as(real, [load(1), load(8), load(64)]))
    asked = load(24)
    assert real.calibration is not None
    expected = real.calibration.corrected(real.served(asked), asked)
    before, after = server().cell(asked), calibrated(server(), path).cell(asked)
    assert before.ttft_s is not None
    assert before.tpot_s is not None
    assert after.ttft_s is not None
    assert after.tpot_s is not None
    assert after.tokens_per_s is not None
    assert before.ttft_s[0] < 0.5 * expected.ttft_s
    assert after.ttft_s[0] == pytest.approx(expected.ttft_s, rel=0.1)
    assert after.tpot_s[0] == pytest.approx(expected.tpot_s, rel=0.05)
    assert after.tokens_per_s[0] == pytest.approx(expected.tokens_per_s, rel=0.05)


def test_a_server_as_predicted_stays_as_it_is(tmp_path: Path) -> None:
    as_is = replace(server(), calibration=ServerCalibration(HOSTS.request_s))
    found = calibrated(server(), written(tmp_path, *measured_as(as_is, [load(4), load(16)])))
    assert found.calibration is not None
    assert found.calibration.tpot == pytest.approx(1.0, abs=0.02)
    before, after = server().cell(load(8)), found.cell(load(8))
    assert before.ttft_s is not None
    assert after.ttft_s is not None
    assert after.ttft_s[0] == pytest.approx(before.ttft_s[0], rel=0.05)


def test_one_point_counts_less_than_its_own_value(tmp_path: Path) -> None:
    predicted = server().served(load(8))
    path = written(tmp_path, f"8,1024,256,{1e3 * predicted.ttft_s},{2e3 * predicted.tpot_s}")
    found = calibrated(server(), path).calibration
    assert found is not None
    assert 1.4 < found.tpot < 2.0  # 2 to the power of 1 / 1.3


def test_answers_say_that_they_are_calibrated_and_how_near_the_points_are(tmp_path: Path) -> None:
    one = calibrated(server(), written(tmp_path, GOOD))
    near, far = one.cell(load(16)), one.cell(load(16, 2048))
    assert near.ttft_s is not None
    assert far.ttft_s is not None
    assert near.ttft_s[2] / near.ttft_s[0] == pytest.approx(1.1)
    assert far.ttft_s[2] / far.ttft_s[0] == pytest.approx(1.5)
    assert near.to_json()["measured_points"] == 1
    assert "calibrated with 1 measured load of this server: " in near.reasons[0]
    assert server().cell(load(16)).to_json()["measured_points"] == 0


def test_parquet_in_the_layout_of_evaluate_is_the_same(tmp_path: Path) -> None:
    row = {
        "mode": "agg", "backend": "vllm", "system": "h100_sxm", "tp_size": 1, "pp_size": 1,
        "attention_dp_size": None, "moe_ep_size": 1, "concurrency": 8, "isl": 1024, "osl": 256,
        "ttft_ms": 200.0, "tpot_ms": 40.0, "parallel_suspect": False,
    }  # fmt: skip
    path = tmp_path / "points.parquet"
    parquet.write_table(pa.Table.from_pylist([row]), path)
    of_csv = calibrated(server(), written(tmp_path, GOOD))
    assert calibrated(server(), path).calibration == of_csv.calibration
    path.write_bytes(b"no table")
    with pytest.raises(DataError, match="cannot read the table"):
        calibrated(server(), path)


@pytest.mark.parametrize(
    ("lines", "titles", "message"),
    [
        ([], TITLES, "no rows; expected a table of measured loads"),
        (["8,1024,256,200"], "concurrency,isl,osl,ttft_ms", "no column tpot_ms"),
        ([GOOD, "8,1024,256,-3,40"], TITLES, "row 2, column 'ttft_ms': cannot read '-3'"),
        (["1.5,1024,1,200,40"], TITLES, "row 1, column 'concurrency': cannot read '1.5'"),
        (["inf,1024,1,200,40"], TITLES, "row 1, column 'concurrency': cannot read 'inf'"),
        (["8,1024,1,200,40"], TITLES, "row 1: --output-tokens 1, expected at least 2"),
        (["8,1024,256,0.2,0.04"], TITLES, "row 1: ttft_ms is impossibly short: got 0.2"),
        (["8,1024,256,200,0.04"], TITLES, "row 1: tpot_ms is in another unit or of another"),
        (["8,1024,256,200000,40"], TITLES, "row 1: ttft_ms is in another unit or of another"),
        ([f"{GOOD},b200"], f"{TITLES},system", "row 1 with system b200, expected h100"),
        ([f"{GOOD},nothing"], f"{TITLES},system", "nothing"),
        ([f"{GOOD},sglang"], f"{TITLES},backend", "row 1 with backend sglang, expected vllm"),
        ([f"{GOOD},4.0"], f"{TITLES},tp_size", "row 1 with tp_size 4.0, expected 1"),
        ([f"{GOOD},1.5"], f"{TITLES},tp_size", "cannot read '1.5'"),
        ([f"{GOOD},disagg"], f"{TITLES},mode", "row 1 with mode disagg, expected agg"),
        ([f"{GOOD},1", f"{GOOD},2"], f"{TITLES},backend_version", "backend_version 1, 2"),
        (
            [f"{GOOD},openai/gpt-oss-120b"], f"{TITLES},model_path",
            "model_path openai/gpt-oss-120b, expected 8b",
        ),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, lines: list[str], titles: str, message: str
) -> None:
    with pytest.raises(DataError) as raised:
        calibrated(server(), written(tmp_path, *lines, titles=titles))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_full_cache_says_nothing_of_the_first_token(tmp_path: Path) -> None:
    full = server("l40s")
    assert full.served(load(400, 2048)).waited
    with pytest.raises(DataError, match=r"every row wait for room .* Add a row with fewer users"):
        calibrated(full, written(tmp_path, "400,2048,256,9000,400"))
    found = calibrated(full, written(tmp_path, "400,2048,256,9000,400", GOOD)).calibration
    assert found == calibrated(full, written(tmp_path, GOOD)).calibration


def shown(path: Path, *words: str) -> list[str]:
    return [
        "compare", "--model", "Qwen/Qwen3-30B-A3B", "--concurrency", "4,32", "--input-tokens",
        "1024", "--output-tokens", "128", "--measured", str(path), *words,
    ]  # fmt: skip


def test_the_command_and_python_calibrate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "4,1024,128,350,7.5", "16,1024,128,500,15")
    assert main(shown(path, "--device", "h100")) == 0
    assert "\n  calibrated with 2 measured loads of this server: " in capsys.readouterr().out
    assert main(shown(path, "--device", "h100", "--json")) == 0
    rows: list[Mapping[str, object]] = json.loads(capsys.readouterr().out)
    assert [one["measured_points"] for one in rows] == [2, 2]
    found = compare(
        "Qwen/Qwen3-30B-A3B", "h100", concurrency=[4, 32], input_tokens=1024, output_tokens=128,
        measured=path,
    )  # fmt: skip
    assert found.to_json() == rows


def test_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, GOOD)
    assert main(shown(path, "--device", "h100,b200")) == 2
    assert "measured loads are of one server: got 2 combinations" in capsys.readouterr().err
    words = ["compare", "--model", "Qwen/Qwen3-30B-A3B", "--device", "h100", "--decode-at", "9"]
    assert main([*words, "--measured", str(path)]) == 2
    assert "--measured can only be used with --concurrency" in capsys.readouterr().err
    assert main(shown(tmp_path / "missing.csv", "--device", "h100")) == 3
    assert "missing.csv" in capsys.readouterr().err
