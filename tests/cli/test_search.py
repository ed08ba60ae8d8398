"""`cdmpp search`: options, refusals, exit codes, and `search show` without TVM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdmpp.api.measuring import Search
from cdmpp.cli.main import build_parser, main
from cdmpp.cli.search.command import search_options
from cdmpp.cli.search.text import _cell
from tests.devices.machines import ELSEWHERE
from tests.paths import ROOT
from tvm_helper.measure.journal import Journal
from tvm_helper.search.options import SearchOptions
from tvm_helper.search.summary import search_summary

DEVICE = ["--device", "epyc-avx2-1c", "--force"]


def parsed(*words: str) -> dict[str, Any]:
    return vars(build_parser().parse_args(["search", "--out", "x", *words]))


def test_the_command_wins_over_set_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "search.yaml"
    config.write_text("trials: 100\nseed: 5\ntiming:\n  spread: 0.5\n", encoding="utf-8")
    options = search_options(parsed("--config", str(config), "--set", "trials=7"))
    assert (options.trials, options.seed, options.timing.spread) == (7, 5, 0.5)
    options = search_options(
        parsed("--config", str(config), "--set", "trials=7", "--trials", "9", "--stop-gain", "5",
               "--stop-early", "--cost-model", "xgb", "--task", "a", "b", "--task", "c")
    )  # fmt: skip
    assert (options.trials, options.stop_gain, options.stop_early) == (9, 0.05, True)
    assert (options.cost_model, options.task) == ("xgb", ("a", "b", "c"))
    assert search_options(parsed()) == SearchOptions()


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (DEVICE, 2, "got neither"),
        (["--task", "matmul"], 2, "give --device this-cpu"),
        (["--task", "matmul", "--network", "x.onnx", *DEVICE], 2, "got both"),
        (["--task", "matmul", "--device", "nowhere"], 4, "unknown device 'nowhere'"),
        (["--task", "matmul", "--device", ELSEWHERE], 4, "does not describe this machine"),
        (["--task", "matmul", "--device", "v10O"], 4, "did you mean 'v100'?"),
        (["--task", "matmul", "--device", "mi50", "--force"], 4, "TVM finds no such GPU"),
        (["--task", "conv9d", *DEVICE], 2, "unknown task 'conv9d'"),
        (["--task", "dense:z=3", *DEVICE], 2, "cannot use 'z=3'"),
        (["--task", "none.py", *DEVICE], 3, "none.py"),
        (["--task", "matmul", *DEVICE, "--trials", "0"], 2, "trials must be at least 1"),
        (["--task", "matmul", *DEVICE, "--batch", "4"], 2, "--batch and --input are sizes of a ne"),
        (["--task", "matmul", *DEVICE, "--set", "trails=3"], 2, "trails"),
        (["--task", "matmul", *DEVICE, "--set", "cost_model=best"], 2, "cost_model"),
        (["--task", "matmul", *DEVICE, "--model", "no-run"], 3, "no-run"),
        (["--task", "matmul", *DEVICE, "--set", "verify=0"], 2, "verify must be at least 1"),
        (["--task", "matmul", "--device", "ryzen-3700x", "--force", "--set", "verify=2", "--target",
          '{"kind": "llvm", "num-cores": 8}', "--cost-model", "xgb"], 2,
         "verify: the model reads the machine code of epyc-avx2-1c"),
        (["--task", "matmul", *DEVICE, "--set", "verify=2", "--cost-model", "random", "--model",
          "no-run"], 3, "no-run"),
        (["--network", "no.onnx", *DEVICE], 3, "no.onnx"),
        (["--task", "matmul", "--device", "t4", "--threads", "3", "--target", "nonsense"], 2,
         "not a TVM target"),
    ],
)  # fmt: skip
def test_refusals(
    words: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    assert main(["search", "--out", str(tmp_path / "out"), *words]) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
    assert not (tmp_path / "out").exists()


def test_out_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--task", "matmul", *DEVICE]) == 2
    assert "--out DIR" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [(None, "not a search"), ("{", "is damaged"), ("[]", "is damaged")]
)
def test_show_refuses_what_is_no_search(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "search.json").write_text(text, encoding="utf-8")
    assert main(["search", "show", str(tmp_path)]) == 3
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def search_folder(folder: Path) -> Path:
    """The files of a search of one task that has been interrupted after 40 trials."""
    task = {"key": "k", "name": "matmul:m=8", "symbol": "matmul_m_8", "operator": "dense",
            "shapes": ["8x8", "8x8"], "weight": 2, "predicted_s": 1e-3}  # fmt: skip
    fixed = {"device": "d", "target": "{}", "threads": 1, "cost_model": "cdmpp", "seed": 0,
             "model": "pretrained", "finetune_every": 16}  # fmt: skip
    search: dict[str, Any] = {
        "fixed": fixed, "options": {"trials": 64, "stop_gain": 0.02, "network": None},
        "tasks": [task], "unknown": {}, "left_out": {"odd": "no schedule"},
    }  # fmt: skip
    (folder / "search.json").write_text(json.dumps(search), encoding="utf-8")
    journal = Journal(folder)
    for number in range(40):
        error = {4: "misaligned"}.get(number)
        costs_s = [] if error else [2e-3 if number < 5 else 1e-3]
        journal.append(
            {"kind": "measured", "task": "k", "program_id": str(number), "round": number // 4,
             "error_code": 4 if error else 0, "error": error, "costs_s": costs_s}
        )  # fmt: skip
    journal.append(
        {"kind": "round", "task": "k", "round": 9, "predicted_gain": 0.01, "wall_s": 10.0,
         "cost_model_s": 1.0, "draw_s": 2.0, "build_s": 3.0, "run_s": 3.5}
    )  # fmt: skip
    journal.close()
    return folder


def test_show_prints_a_search_that_is_not_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = search_folder(tmp_path)
    assert main(["search", "show", str(folder)]) == 0
    said = capsys.readouterr().out
    for part in (
        "40 of 64 trials on d, cost model cdmpp (pretrained), tuned every 16",
        "1 runtime error (device); the first: misaligned",
        "1.00 ms",
        "cost model 10 %, drawing 20 %, building 30 %, running 35 %, other 5 %",
        "not searched: odd: no schedule",
        "run the same command again to continue",
    ):
        assert part in said  # fmt: skip
    assert main(["search", "show", str(folder), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["state"], summary["module"]) == ("not finished", None)
    (task,) = summary["tasks"]
    assert (task["best_s"], task["trials"], task["failed"]) == (1e-3, 40, 1)
    assert task["best_by_trial_s"][4:6] == [2e-3, 1e-3]
    # The window of 32 trials began at trial 8, after the step: nothing was gained since.
    assert summary["gain"] == pytest.approx(0.01)
    assert "no candidate is predicted to improve" in summary["advice"]


def test_in_python_a_search_is_a_row_a_task(tmp_path: Path) -> None:
    found = Search(search_summary(search_folder(tmp_path)))
    assert found.folder == tmp_path
    assert [(one["name"], one["best_s"]) for one in found] == [("matmul:m=8", 1e-3)]
    assert found.table()[1][3:5] == ["40", "1.00 ms"]
    assert found.notes[0] == "40 of 64 trials on d: not finished; 1 failed"
    assert found.plot().get_xlabel() == "latency"
    assert repr(found).startswith("<Search ")


def test_show_shows_the_final_timings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = search_folder(tmp_path)
    timing = {"symbol": "matmul_m_8", "tuned_costs_s": [1e-3, 1.1e-3, 0.9e-3], "error": None,
              "untuned_costs_s": [], "untuned_error": "killed by SIGSEGV"}  # fmt: skip
    final = {"trials": 40, "reason": "out of time", "timings": [timing], "untuned": [],
             "is_network": False}  # fmt: skip
    (folder / "final.json").write_text(json.dumps(final), encoding="utf-8")
    assert main(["search", "show", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "out of time" in said
    assert "1.00 ms [0.780, 1.28]" in said
    assert "matmul:m=8: the untuned program: killed by SIGSEGV" in said
    assert f"module: {folder / 'module.so'}" in said


def test_times_of_a_busy_machine_are_above_zero() -> None:
    timing = {"tuned_s": 276e-6, "tuned_half_s": 543e-6}
    assert _cell(timing, "tuned") == "276 µs [38.6, 1974]"


def test_show_loads_no_tvm(tmp_path: Path) -> None:
    code = (
        "import sys; from cdmpp.cli.main import main; "
        f"assert main(['search', 'show', {str(search_folder(tmp_path))!r}]) == 0; "
        "assert not {'tvm', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_the_script_is_the_front_of_the_command() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "search.py"), "--help"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert "cdmpp search" in said
    assert "--stop-early" in said
