"""`cdmpp measure` and `cdmpp doctor`: options, refusals, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdmpp.cli.main import build_parser, main
from cdmpp.cli.measure import measure_options
from tests.devices.machines import ELSEWHERE
from tests.paths import ROOT
from tvm_helper.measure.journal import Journal
from tvm_helper.measure.options import MeasureOptions

CONFIG = ROOT / "configs" / "measure" / "metaschedule-cpu.yaml"


def parsed(*words: str) -> dict[str, Any]:
    return vars(build_parser().parse_args(["measure", "--out", "x", *words]))


def test_the_command_wins_over_set_wins_over_the_file() -> None:
    options = measure_options(
        parsed("--config", str(CONFIG), "--set", "per_task=7", "--set", "timing.spread=0.5")
    )
    assert (options.per_task, options.timing.spread) == (7, 0.5)
    assert options.device == "epyc-avx512-1c"
    options = measure_options(
        parsed("--config", str(CONFIG), "--set", "per_task=7", "--per-task", "3", "--device", "t4")
    )
    assert (options.per_task, options.device) == (3, "t4")


def test_sources_may_be_mixed_and_repeated() -> None:
    options = measure_options(
        parsed("--task", "a", "b", "--task", "c", "--replay", "d", "--network", "e.onnx", "f.pt2")
    )
    assert options.sample == ("a", "b", "c")
    assert (options.replay, options.network) == (("d",), ("e.onnx", "f.pt2"))
    assert measure_options(parsed()) == MeasureOptions()


def test_the_shipped_campaign_is_large_enough_and_each_task_once() -> None:
    options = measure_options(parsed("--config", str(CONFIG)))
    assert len(set(options.sample)) == len(options.sample)
    assert len(options.sample) * options.per_task >= 1500
    options.check()


@pytest.mark.tvm
def test_the_shipped_campaigns_tasks_exist() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    from tvm_helper.measure.tasks import named_function

    names = [
        named_function(name)[0] for name in measure_options(parsed("--config", str(CONFIG))).sample
    ]
    assert len(set(names)) == len(names)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--device", "epyc-avx2-1c"], 2, "nothing to measure"),
        (["--device", "epyc-avx2-1c", "--batch", "4"], 2, "--batch and --input are sizes of a net"),
        (["--task", "matmul"], 2, "no device label"),
        (["--task", "matmul", "--device", "this-cpu"], 2, "cdmpp device add NAME"),
        (["--task", "matmul", "--device", "nowhere"], 4, "unknown device 'nowhere'"),
        (["--task", "conv9d", "--device", "epyc-avx2-1c", "--force"], 2, "unknown task 'conv9d'"),
        (["--task", "dense:z=3", "--device", "epyc-avx2-1c", "--force"], 2, "cannot use 'z=3'"),
        (["--task", "matmul", "--device", "epyc-avx2-1c", "--threads", "4"], 2, "4 threads"),
        (["--task", "matmul", "--device", "x", "--target", "nonsense"], 2, "not a TVM target"),
        (["--task", "matmul", "--device", "epyc-avx2-1c", "--rpc", "h"], 2, "HOST:PORT:KEY"),
        (["--replay", "nowhere", "--device", "epyc-avx2-1c", "--force"], 3, "nowhere"),
        (["--task", "matmul", "--device", ELSEWHERE], 4, "does not describe this machine"),
        (["--task", "matmul", "--device", "v10O"], 4, "did you mean 'v100'?"),
        (["--task", "matmul", "--device", "mi50"], 4, "TVM finds no such GPU"),
        (["--network", "no.onnx", "--device", "epyc-avx2-1c", "--force"], 3, "no.onnx"),
    ],
)
def test_refusals(
    words: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    assert main(["measure", "--out", str(tmp_path / "out"), *words]) == code
    said = capsys.readouterr().err
    assert text in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
@pytest.mark.tvm
def test_doctor_times_this_machine_now(capsys: pytest.CaptureFixture[str]) -> None:
    """Was a KeyError: 'choose_from' of the worker."""
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    words = ["doctor", "--live", "--seconds", "0.5", "--threads", "1", "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["noise_floor"]["n"] > 0
    assert report["threads"] == 1


def test_out_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", "--device", "t4"]) == 2
    assert "--out DIR" in capsys.readouterr().err


def test_doctor_refuses_a_folder_without_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(tmp_path)]) == 3
    assert "no campaign at" in capsys.readouterr().err
    for option in ("--seconds", "--threads"):
        assert main(["doctor", str(tmp_path), option, "3"]) == 2
        assert f"{option} can only be used with --live" in capsys.readouterr().err


def campaign_folder(folder: Path, references: list[float], spread: float) -> Path:
    """A campaign's files as they are while it runs: no tables yet."""
    settings: dict[str, Any] = {"device": "d", "target": "{}", "threads": 1, "machine": {}}
    (folder / "campaign.json").write_text(json.dumps(settings), encoding="utf-8")
    journal = Journal(folder)
    for reference in references:
        journal.append(
            {"kind": "health", "at": 1, "load_1min": 1.23456, "clock_hz": 2e9, "allowed_cpus": 2,
             "reference_costs_s": [reference], "reference_error": None}
        )  # fmt: skip
    common = {"kind": "measured", "task": "t", "measured_at": 1, "build_s": 2.0, "run_s": 1.0}
    costs = [1.0, 1.0 + spread]
    journal.append({**common, "program_id": "a", "error_code": 0, "error": None, "costs_s": costs})
    for name, text in (("b", "first words"), ("c", "other words")):
        journal.append(
            {**common, "program_id": name, "error_code": 7, "error": text, "costs_s": []}
        )
    journal.close()
    return folder


def test_doctor_says_once_that_the_drift_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", str(campaign_folder(tmp_path, [1.0, 1.0], 0.3))]) == 0
    out = capsys.readouterr().out
    assert "drift          unknown: too few timings of the reference program (n = 2)\n" in out
    assert "load           1.2 (median" in out


def test_doctor_reads_a_campaign_that_is_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = campaign_folder(tmp_path, [1.0, 1.0, 1.0, 1.3, 1.3, 1.3], 0.3)
    assert main(["doctor", str(folder), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drift"]["trend"] == pytest.approx(0.3)
    assert report["clock_hz"] == pytest.approx(2e9)
    assert report["seconds"] == {"build": 6.0, "run": 3.0}
    (failure,) = report["failures"]
    assert (failure["name"], failure["count"]) == ("run timeout", 2)
    assert failure["first_text"] == "first words"
    assert len(report["findings"]) == 3, "noise, drift, most programs failed"
    assert main(["doctor", str(folder), "--strict"]) == 4
    assert "run timeout: first words" in capsys.readouterr().out
