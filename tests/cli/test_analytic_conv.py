"""`cdmpp analytic conv`: fit, evaluate, predict, pick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.layers.model import LayerModel
from cdmpp.analytic.conv.seer.table import PickTable
from cdmpp.analytic.conv.seer.workbook import write_workbook
from cdmpp.cli.main import main
from tests.analytic.conv.conv_synthetic import layer_truth, layers, tables
from tests.analytic.conv.test_conv_layers import made_up_layers
from tests.analytic.conv.written import write_layers, write_pick_workbook
from tests.paths import ROOT

REPOSITORY = ROOT
LAYER = ("--layer", "32,64,56,128,3,1,1")


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["analytic", "conv", *words]) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


@pytest.mark.parametrize("words", [(), ("--model", "pretrained")])
def test_the_packaged_model_answers(words: tuple[str, ...], capsys: pytest.CaptureFixture) -> None:
    """Was: no seer model at pretrained."""
    said = run(capsys, "predict", *words, *LAYER, "--device", "t4", "--json")
    assert json.loads(said)["total_ms"] > 0
    unknown = run(capsys, "pick", *words, *LAYER, "--device", "v10O", code=4)
    assert "did you mean 'v100'?" in unknown


def test_a_layer_has_the_interval_of_the_validation(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("predict", *LAYER, "--layer", "32,64,56,128,1", "--device", "t4")
    value = json.loads(run(capsys, *words, "--json"))
    for one in value["layers"]:
        assert one["low_ms"] < one["time_ms"] < one["high_ms"] < 2 * one["time_ms"]
    assert [one["out_of_distribution"] for one in value["layers"]] == [False, True]
    assert value["total_low_ms"] == pytest.approx(sum(one["low_ms"] for one in value["layers"]))
    assert value["total_high_ms"] == pytest.approx(sum(one["high_ms"] for one in value["layers"]))
    unseen = json.loads(run(capsys, *words[:-1], "h100", "--json"))
    assert "h100 is an unseen device" in unseen["interval_source"]
    seen, wide = value["layers"][0], unseen["layers"][0]
    assert wide["high_ms"] / wide["low_ms"] > seen["high_ms"] / seen["low_ms"]
    text = run(capsys, *words)
    assert "interval from: 90 % of 4,109 layers on t4, channels or width held out" in text
    assert "2.426 ms [2.13, 3.34]" in text
    assert "no measured filter has this width and stride" in text
    picked = json.loads(run(capsys, "pick", *words[1:], "--json"))[0]
    for name, time_ms in picked["time_ms"].items():
        assert picked["low_ms"][name] < time_ms < picked["high_ms"][name]
    assert "winograd 2.426 ms [2.08, 3.18]" in run(capsys, "pick", *words[1:])


def test_no_time_is_below_what_the_gpu_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU that was not measured, intervals of large layers began below the peak."""
    sizes = [(512, 256, 224, 256, 1, 1, 0), (256, 2048, 56, 2048, 3, 1, 1)]
    words = [word for one in sizes for word in ("--layer", ",".join(map(str, one)))]
    found = json.loads(run(capsys, "predict", *words, "--device", "a100", "--json"))
    for row, (batch, cin, width, cout, kernel, *_), share in zip(
        found["layers"], sizes, (1.0, 64 / 324), strict=True
    ):
        flop = 2 * batch * cin * cout * width**2 * kernel**2
        assert share * flop / 19.5e12 <= 1e-3 * row["low_ms"] <= 1e-3 * row["time_ms"]
    text = run(capsys, "predict", *LAYER, "--device", "t4", "--batch", "8", code=2)
    assert "--batch can only be used with --network, got layers of their own batch" in text


def test_a_model_without_validation_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = json.loads((LayerModel.packaged_path() / "conv.json").read_text("utf-8"))
    del old["errors"]
    (tmp_path / "conv.json").write_text(json.dumps(old))
    words = ("predict", "--model", str(tmp_path), *LAYER, "--device", "t4")
    text = run(capsys, *words)
    assert "no interval: the model has no validation; refit it with: cdmpp analytic" in text
    assert "[" not in text
    value = json.loads(run(capsys, *words, "--json"))
    assert value["layers"][0]["low_ms"] is None is value["total_high_ms"]
    assert value["interval_source"].startswith("the model has no validation")


@pytest.fixture(scope="module")
def workbooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workbooks")
    shapes = layers()
    # Every filter and stride of the grid, which repeat every six rows, stays in.
    shapes = shapes[np.arange(len(shapes)) % 7 <= 1]
    for name, table in tables(shapes).items():
        write_workbook(folder / name, {"train": table, "test": table[np.arange(9)]})
    some = shapes[np.arange(0, len(shapes), 7)]
    picks = PickTable(some, layer_truth(some), np.zeros(len(some), np.int64))
    write_pick_workbook(folder / "Algo-pick-set", {"all": picks})
    return folder


@pytest.mark.exhaustive
@pytest.mark.slow
def test_kernels(workbooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "seer.json")
    words = (
        "fit",
        "--tables",
        str(workbooks),
        "--device",
        "titan-xp",
        "--out",
        model,
        "--no-check",
    )
    summary = json.loads(run(capsys, *words, "--json"))
    assert summary["device"] == "titan-xp"
    assert summary["rows"]["algo0_32x32"] > 0
    judge = ("evaluate", "--model", model, "--tables", str(workbooks), "--no-check")
    plots = tmp_path / "plots"
    result = json.loads(run(capsys, *judge, "--json", "--plots", str(plots)))
    assert result["kernels"]["all"]["time"]["rmspe"] < 0.2
    assert result["pick"]["error_rate"] < 0.5 * result["cudnn_pick"]["error_rate"]
    assert sorted(path.name for path in plots.iterdir()) == [
        "errors.svg", "histogram.svg", "predicted.svg",
    ]  # fmt: skip
    assert "RMSPE" in run(capsys, *judge)
    value = json.loads(run(capsys, "predict", "--model", model, "--network", "vgg19", "--json"))
    assert len(value["layers"]) == 9
    assert sum(share["time_share"] for share in value["by_limit"].values()) == pytest.approx(1.0)
    assert all(one["low_ms"] <= one["time_ms"] <= one["high_ms"] for one in value["layers"])
    picked = json.loads(run(capsys, "pick", "--model", model, *LAYER, "--json"))[0]
    assert "90 % of the kernels of an algorithm on titan-xp" in picked["interval_source"]
    winograd = picked["low_ms"]["winograd"], picked["high_ms"]["winograd"]
    assert winograd[0] < picked["time_ms"]["winograd"] < winograd[1]
    assert picked["pick"] == next(iter(picked["time_ms"]))
    assert "winograd" in picked["time_ms"]
    error = run(capsys, "predict", "--model", model, *LAYER, "--device", "t4", code=2)
    assert "was fitted on 'titan-xp'" in error
    error = run(capsys, "evaluate", "--model", model, "--layers", "x.csv", code=2)
    assert "give --tables DIR" in error


@pytest.mark.slow
def test_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, model = tmp_path / "layers.csv.gz", str(tmp_path / "model")
    write_layers(file, made_up_layers(drift_ms=1.0))
    summary = json.loads(
        run(capsys, "fit", "--layers", str(file), "--residual", "none", "--out", model, "--json")
    )
    assert summary["drift_ms"]["t4"] == pytest.approx(1.0, abs=0.2)
    words = ("evaluate", "--model", model, "--layers", str(file))
    result = json.loads(run(capsys, *words, "--json"))
    assert set(result["by_device"]) == {"t4", "v100"}
    assert result["by_device"]["t4"]["algorithm_accuracy"] > 0.7
    assert "correct algorithm" in run(capsys, *words)
    assert 0.8 <= result["by_device"]["t4"]["coverage"] <= 1
    text = run(capsys, "predict", "--model", model, *LAYER, "--device", "l4")
    assert "32x64x56² -> 128, 3x3/1" in text
    assert "interval from: 90 % of" in text
    assert "on t4, v100, each left out of a fit in turn (the widest); l4 is an" in text
    assert "no device" in run(capsys, "predict", "--model", model, *LAYER, code=2)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("fit", "--tables", "none", "--out", "x"), 2, "no device: give --device"),
        (("predict", "--model", "none", *LAYER), 3, "no convolution model at none"),
        (("collect", "--layer", "1,2"), 2, "got the layer '1,2'"),
        (("collect", *LAYER, "--algorithm", "magic"), 2, "unknown algorithm 'magic'"),
    ],
)
def test_errors(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    assert message in run(capsys, *words, code=code)


def test_nothing_heavy_is_loaded_for_help() -> None:
    program = (
        "import sys\nfrom cdmpp.cli.main import main\n"
        "try:\n    main(['analytic', 'conv', '--help'])\nexcept SystemExit:\n    pass\n"
        "print('LOADED', *({'torch', 'tvm', 'pyarrow', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.split("LOADED")[1].split() == []


def test_the_script_is_a_front() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/collect_cudnn.py", "--help"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cdmpp analytic conv collect" in done.stdout
