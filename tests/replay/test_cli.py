"""`cdmpp replay` as its users call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cdmpp.cli.main import main
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.predict.estimates import Estimates, TrainedModel
from cdmpp.report.page import _script
from tests.paths import ROOT
from tests.replay.graphs import synthetic_events, write_trace

CONFIGS = ROOT / "configs" / "replay"
GRAPH: dict[str, Any] = {
    "format": "cdmpp-operator-graph", "version": 1, "name": "small", "devices": {"gpu0": "v100"},
    "operators": [
        {"id": "a", "kind": "conv2d+relu", "device": "gpu0", "time_s": 0.001},
        {"id": "b", "kind": "linear", "device": "gpu0", "after": ["a"],
         "shapes": ["64x512", "1024x512"]},
        {"id": "c", "kind": "mystery", "device": "gpu0", "queue": "copy", "bytes": 1e6},
    ],
}  # fmt: skip


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(GRAPH))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.json", synthetic_events(4, extra_gap_us=900.0))


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main(["replay", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_graph(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (value,) = run_json(capsys, graph, "--scale", "conv2d=0.5")
    assert value["operators"] == 3
    sources = {row["kind"]: row["sources"] for row in value["by_kind"]}
    assert sources == {"conv2d+relu": ["given"], "linear": ["analytic"], "mystery": ["bound"]}
    assert value["total_s"] > value["longest_path_s"] - 1e-12 > 0.001
    assert value["what_if"]["total_s"] == pytest.approx(value["total_s"] - 0.0005)
    assert value["low_s"] <= value["total_s"] <= value["high_s"]
    assert [row["id"] for row in value["uncovered"]] == ["c"]
    assert main(["replay", str(graph)]) == 0
    shown = capsys.readouterr().out
    assert "1 operator without a model" in shown
    assert "critical path" in shown


def test_equal_operators_without_a_model_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"kind": "randint", "device": "gpu0", "bytes": 1e9}
    operators = [{**unknown, "id": name, "name": "randint"} for name in "abc"]
    path = tmp_path / "g.json"
    path.write_text(json.dumps({**GRAPH, "operators": operators}))
    (value,) = run_json(capsys, path)
    assert len(value["uncovered"]) == 3
    assert main(["replay", str(path)]) == 0
    (line,) = capsys.readouterr().out.split("each with a roofline estimate:\n")[1].splitlines()[1:]
    whole_ms = 3e3 * value["uncovered"][0]["bound_s"]
    assert line.split()[:3] == ["randint", "3", f"{whole_ms:.2f}"]


def test_devices_side_by_side_and_a_time_table(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"mystery": 0.5}')
    values = run_json(capsys, graph, "--device", "v100,t4", "--times", times, "--gap", 1000)
    assert [value["device"] for value in values] == ["v100", "t4"]
    linear = [row["time_s"] for value in values for row in value["by_kind"]
              if row["kind"] == "linear"]  # fmt: skip
    assert linear[0] != linear[1]
    assert all(value["total_s"] == 0.5 for value in values)


def test_everything_is_written(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["replay", str(graph), "--out", str(out)]) == 0
    capsys.readouterr()
    page = (out / "timeline.html").read_text()
    assert page.count("</title></rect>") == 3
    kinds = {one["kind"] for one in GRAPH["operators"]}
    assert all(
        re.search(f"class='series-[1-7]'/><text [^>]*>{re.escape(kind)}</text>", page)
        for kind in kinds
    )
    assert re.findall("<script.*", page) == [f"<script>{_script().splitlines()[0]}"]
    assert "http" not in page
    events = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 3
    (value,) = json.loads((out / "replay.json").read_text())
    # What was written replays to the same time, without any model.
    (again,) = run_json(capsys, out / "graph.json")
    assert again["total_s"] == value["total_s"]
    assert again["uncovered"] == []


def test_names_are_escaped_in_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.json"
    operators = [{"id": "a", "name": "<b>&", "kind": "<i>", "time_s": 1.0}]
    path.write_text(json.dumps({**GRAPH, "name": "<u>", "operators": operators}))
    assert main(["replay", str(path), "--out", str(tmp_path / "o"), "-q"]) == 0
    page = (tmp_path / "o" / "timeline.html").read_text()
    assert not re.search("<[ui]>|<b>&", page)
    assert "&lt;b&gt;&amp;" in page


def test_a_trace_its_overheads_and_its_walk(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (value,) = run_json(capsys, trace, "--iterations", "1:")
    assert {row["device"] for row in value["queues"]} == {"cpu", "gpu0"}
    saved = tmp_path / "overheads.json"
    assert main(["replay", str(trace), "--save-overheads", str(saved), "-q"]) == 0
    capsys.readouterr()
    assert json.loads(saved.read_text())["t1"]["mean_us"] == pytest.approx(12.0)
    for version in ("reference", "head"):
        own = run_json(capsys, trace, "--walk", version)
        shared = run_json(capsys, trace, "--walk", version, "--overheads", saved)
        assert own == shared
        assert own["total_s"] >= own["host_s"] > 0
    again = tmp_path / "again.json"
    statistics = run_json(capsys, trace, "--statistics", "brief", "--save-overheads", again)
    assert [row["name"] for row in statistics] == ["linear", "relu", "view"]
    assert json.loads(again.read_text()) == json.loads(saved.read_text())


def test_several_processes(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_trace(tmp_path / "other.json", synthetic_events(4, extra_gap_us=900.0))
    (one,) = run_json(capsys, trace)
    (both,) = run_json(capsys, trace, other)
    assert both["operators"] == 2 * one["operators"]
    assert both["total_s"] == pytest.approx(one["total_s"])


def test_presets(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = CONFIGS / "dlrm-default.yaml"
    (value,) = run_json(capsys, preset, "--device", "v100")
    assert value["uncovered"] == []
    saved = tmp_path / "overheads.json"
    assert main(["replay", str(trace), "--save-overheads", str(saved), "-q"]) == 0
    words = (preset, "--device", "v100", "--walk", "head", "--overheads", saved)
    assert main(["replay", *map(str, words)]) == 3
    assert "--pooled-overheads" in capsys.readouterr().err


def test_tenset_records(capsys: pytest.CaptureFixture[str]) -> None:
    network = default_dataset_dir() / "network_info" / "((bert_tiny,[(1,128)]),llvm).task.pkl.gz"
    words = (network, "--device", "xeon-avx2-1c", "--recorded")
    (best,) = run_json(capsys, *words)
    (drawn,) = run_json(capsys, *words, "--schedule", "draws:20", "--seed", 3)
    (again,) = run_json(capsys, *words, "--schedule", "draws:20", "--seed", 3)
    assert drawn == again
    assert best["total_s"] < drawn["draws"]["min_s"]
    assert drawn["draws"]["n"] == 20
    assert drawn["low_s"] <= drawn["draws"]["min_s"] <= drawn["draws"]["max_s"] <= drawn["high_s"]
    assert best["schedule"].startswith("the fastest measured record")


def test_drawn_records_cost_what_is_to_be_expected_and_the_fastest_what_is_likely(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def estimate(_: TrainedModel, samples: Samples) -> Estimates:
        one = np.ones(len(samples))
        nothing = np.zeros(len(samples), bool)
        return Estimates(
            1e-3 * one, 3e-3 * one, 1e-4 * one, 1e-2 * one, None, nothing, nothing, None
        )

    monkeypatch.setattr(TrainedModel, "estimate", estimate)
    network = default_dataset_dir() / "network_info" / "((bert_tiny,[(1,128)]),llvm).task.pkl.gz"
    words = (network, "--device", "xeon-avx2-1c")
    (best,) = run_json(capsys, *words)
    (drawn,) = run_json(capsys, *words, "--schedule", "draws:20")
    assert best["uncovered"] == drawn["uncovered"] == []
    assert best["total_s"] == pytest.approx(1e-3 * best["operators"])
    assert drawn["total_s"] == pytest.approx(3.0 * best["total_s"])


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["none.json"], "no such file", 3),
        (["{tmp}"], "is a folder", 3),
        (["{tmp}/x.txt"], "unknown kind of file", 3),
        (["{tmp}/x.pt"], "holds weights, not what is computed with them", 3),
        (["{tmp}/nets.py:mlp"], "is a torch network", 2),
        (["{tmp}/empty.json"], "is empty", 3),
        (["{tmp}/keys.json"], "its keys are a, b", 3),
        (["{tmp}/keys.yaml"], "format None; expected format: cdmpp-operator-graph", 3),
        (["{graph}", "{trace}"], "expected one file", 2),
        (["{graph}", "--measure"], "--measure compiles a network", 2),
        (["{graph}", "--walk", "head"], "expected a trace of torch.profiler", 2),
        (["{graph}", "--scale", "conv9=2"], "unknown operator 'conv9'", 2),
        (["{graph}", "--scale", "conv9"], "expected NAME=FACTOR", 2),
        (["{graph}", "--device", "v1000"], "v1000", 4),
        (["{graph}", "--times", "none.json"], "no file of times at none.json", 3),
        (["{graph}", "--gap", "much"], "neither a number", 2),
        (["{graph}", "--launch-us", "-1"], "launch_s is", 2),
        (["{graph}", "--schedule", "best"], "not tensor programs", 2),
        (["{graph}", "--save-overheads", "{tmp}/o.json"], "can only be used with a trace", 2),
        (["{graph}", "--recorded"], "--recorded can only be used with tasks of Tenset", 2),
        (["{trace}", "--overheads", "{tmp}/keys.json"], "can only be used with --walk", 2),
        (["{trace}", "--walk", "head", "--statistics", "brief"], "not both", 2),
        (["{trace}", "--iterations", "7:"], "4 iterations, none in 7:", 3),
        (["{trace}", "--iterations", "x"], "expected FIRST:LAST", 2),
        (["{preset}"], "needs one GPU, got none", 2),
        (["{preset}", "--device", "v100", "--walk", "head"], "expected --overheads FILE", 2),
        (["{preset}", "--device", "xeon-avx2-1c"], "xeon-avx2-1c", 4),
        (["{trace}", "--walk", "head", "--overheads", "{tmp}/keys.json"], "format None", 3),
        (["{tenset}"], "choose a device", 2),
        (["{tenset}", "--device", "xeon-avx2-1c", "--schedule", "worst"], "best or draws:N", 2),
        (["{tenset}", "--schedule", "draws:²"], "best or draws:N", 2),
        (["{tenset}", "--device", "e5-2673", "--recorded"], "no measure records of device", 3),
        (
            ["{tenset}", "--device", "v100", "--records-of", "xeon-avx2-1c"],
            "it has no thread bindings, v100 is a GPU",
            3,
        ),
        (["{tenset}", "--device", "v10O"], "did you mean 'v100'?", 4),
    ],
)
def test_bad_calls(
    words: list[str],
    text: str,
    code: int,
    graph: Path,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.pt").write_bytes(b"PK")
    (tmp_path / "nets.py").write_text("")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "keys.json").write_text('{"a": 1, "b": 2}')
    (tmp_path / "keys.yaml").write_text("a: 1\n")
    places = {
        "tmp": tmp_path, "graph": graph, "trace": trace, "preset": CONFIGS / "dlrm-default.yaml",
        "tenset": default_dataset_dir() / "network_info"
        / "((bert_tiny,[(1,128)]),llvm).task.pkl.gz",
    }  # fmt: skip
    assert main(["replay", *(word.format(**places) for word in words)]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert text in shown.err
    assert shown.err.count("\n") == 1


def test_results_are_not_written_over_what_is_replayed(
    trace: Path, graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`replay trace.json --out .` lost the trace."""
    before = trace.read_bytes()
    for words in ([trace], [graph], [graph, "--device", "v100,t4"]):
        own = trace.with_name("trace-1.json") if len(words) > 1 else trace
        own.write_bytes(before)
        assert main(["replay", *map(str, words), "--out", str(trace.parent)]) == 2
        assert f"{own} exists and is not of an earlier replay" in capsys.readouterr().err
        assert own.read_bytes() == before
    out = trace.parent / "out"
    assert [main(["replay", str(trace), "--out", str(out)]) for _ in range(2)] == [0, 0]
    written = out / "graph.json"
    assert main(["replay", str(written), "--out", str(out)]) == 2
    assert f"{written} exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--walk", "head"], "--out"), (["--statistics", "brief"], "--out")],
)
def test_what_no_replay_uses_is_one_sentence(
    trace: Path, words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--out` with a walk wrote nothing and said nothing."""
    assert main(["replay", str(trace), *words, option, "x"]) == 2
    text = capsys.readouterr().err
    assert f"{option} can only be used with a replay, got {words[0]}; leave it out" in text
