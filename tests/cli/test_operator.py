"""`cdmpp analytic operator` and `cdmpp roofline`."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.cli.main import main
from tests.paths import shared


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    assert main([*words, "--json"]) == 0
    value: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return value


def test_predict_names_devices_without_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("analytic", "operator", "predict", "--op", "linear")
    words += ("--shape", "m=512,n=1024,k=1024", "--device", "Tesla T4,l40s")
    rows = run_json(capsys, *words)
    assert [row["device"] for row in rows] == ["t4", "l40s"]
    assert [row["device_was_measured"] for row in rows] == [True, False]
    assert all(1e-6 < float(str(row["latency_s"])) < 1e-1 for row in rows)
    assert main([*words]) == 0
    assert "unseen device" in capsys.readouterr().out


def test_a_device_with_the_numbers_of_a_measured_one_is_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("analytic", "operator", "predict", "--op", "linear")
    words += ("--shape", "m=512,n=1024,k=1024", "--device", "v100-32gb,v100")
    measured, same = run_json(capsys, *words)
    assert same["device_was_measured"] is True
    names = ("latency_s", "low_s", "high_s", "interval_source")
    assert [same[name] for name in names] == [measured[name] for name in names]


def test_predictions_have_the_interval_of_the_validation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("analytic", "operator", "predict", "--op", "softmax")
    words += ("--shape", "rows=4096,cols=1024", "--device", "t4,h100")
    seen, unseen = run_json(capsys, *words)
    for row in (seen, unseen):
        assert float(str(row["low_s"])) < float(str(row["latency_s"])) < float(str(row["high_s"]))
        assert row["out_of_distribution"] is False
    assert "calls of softmax on t4, shapes held out of the fit" in str(seen["interval_source"])
    assert str(unseen["interval_source"]).endswith("h100 is an unseen device")
    assert main([*words]) == 0
    text = capsys.readouterr().out
    assert text.count("  interval from: 90 % of") == 2
    assert "]" in text.splitlines()[0]
    (large,) = run_json(capsys, *words[:5], "--shape", "rows=9999999,cols=1024", "--device", "t4")
    assert large["out_of_distribution"] is True
    assert "larger than those of a fit" in str(large["interval_source"])
    (queued,) = run_json(capsys, *words[:-1], "t4", "--context", "queued")
    assert "softmax operators inside whole models on GPUs of the fit" in str(
        queued["interval_source"]
    )


def test_a_model_without_validation_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = json.loads(OperatorModel.packaged_path().read_text("utf-8"))
    del old["errors"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    words = ("analytic", "operator", "predict", "--op", "ln", "--shape", "rows=4096,cols=1024")
    words += ("--device", "t4", "--model", str(path))
    (row,) = run_json(capsys, *words)
    assert row["low_s"] is None is row["high_s"]
    assert main([*words]) == 0
    text = capsys.readouterr().out
    assert "no interval: the model has no validation; refit it with: cdmpp analytic" in text
    (row,) = run_json(capsys, *words, "--context", "queued")
    assert "was not evaluated on queued operators" in str(row["interval_source"])


@pytest.mark.parametrize(
    ("words", "text", "code"),
    [
        (["--op", "linear", "--shape", "m:5", "--device", "t4"], "expected NAME=N", 2),
        (["--op", "linear", "--shape", "m=5,m=6", "--device", "t4"], "m twice", 2),
        (["--op", "conv", "--shape", "m=5", "--device", "t4"], "unknown operator", 2),
        (["--op", "add", "--shape", "rows=5,cols=5", "--device", "t44"], "did you mean", 4),
        (["--op", "add", "--shape", "rows=5,cols=5", "--device", "hl-100"], "no operator model", 4),
    ],
)
def test_expected_trouble(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str, code: int
) -> None:
    assert main(["analytic", "operator", "predict", *words]) == code
    assert text in capsys.readouterr().err


def test_no_interval_begins_below_what_the_peak_allows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--op", "linear", "--shape", "batch=1,m=8192,n=8192,k=8192", "--device", "a10")
    (predicted,) = run_json(capsys, "analytic", "operator", "predict", *words)
    (bound,) = run_json(capsys, "roofline", *words)
    assert predicted["low_s"] == bound["least_s"]
    assert predicted["low_s"] <= predicted["latency_s"] <= predicted["high_s"]


def test_roofline_of_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("roofline", "--op", "add", "--shape", "rows=65536,cols=1024", "--device", "t4")
    (row,) = run_json(capsys, *words)
    assert "DRAM traffic" in str(row["why"])
    levels = row["levels"]
    assert isinstance(levels, dict)
    assert levels["dram"] == pytest.approx(3 * 4 * 65536 * 1024 / 320e9)
    assert main(list(words)) == 0
    text = capsys.readouterr().out
    assert "with the fitted efficiency" in text
    assert text.count("interval from: 90 % of elementwise operators inside whole models") == 1
    fitted = [float(str(row[f"fitted_{name}s"])) for name in ("low_", "", "high_")]
    assert fitted == sorted(fitted)
    roofline = [float(str(row[name])) for name in ("low_s", "seconds", "high_s")]
    assert roofline == sorted(roofline)


def test_roofline_needs_shape_and_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", "--op", "add"]) == 2
    assert "--shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--op", "add", "--shape", "rows=2,cols=2", "--dataset", "x"], "--dataset"),
        (["--program", "file.py", "--shape", "rows=2,cols=2"], "--shape"),
    ],
)
def test_roofline_refuses_what_it_does_not_use(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", *words, "--device", "t4"]) == 2
    assert f"{option} can only be used with" in capsys.readouterr().err


def test_roofline_of_a_program(
    capsys: pytest.CaptureFixture[str], dataset: Path, tmp_path: Path
) -> None:
    words = ("roofline", "--dataset", str(dataset), "--cache", str(tmp_path), "--jobs", "1")
    assert main([*words, "--program", "zz"]) == 3
    assert "0 programs" in capsys.readouterr().err
    from cdmpp.datasets.cache import load_samples

    (extracted,) = [path.parent for path in tmp_path.rglob("manifest.json")]
    samples = load_samples(extracted, None)
    program = str(samples.programs.program_id[0])
    rows = run_json(capsys, *words, "--program", program)
    assert [row["program_id"] for row in rows] == [program] * len(rows)
    labels = [spec.name for spec in samples.devices]
    for row in rows:
        assert "% of the time is" in str(row["why"])
        one = (samples.program == 0) & (samples.device == labels.index(str(row["device"])))
        assert all(row["least_s"] <= 1.05 * samples.latency_s[one])
    assert main([*words, "--program", program]) == 0
    text = capsys.readouterr().out
    assert text.count("lower bound") == len(rows) == text.count("an estimate")
    assert text.count("no interval: the roofline of a program is not a prediction") == len(rows)
    assert all(row["low_s"] is None is row["high_s"] for row in rows)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_fit_and_evaluate(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = shared("neusight")
    data, few = tmp_path / "data", tmp_path / "train"
    few.mkdir()
    for path in (source / "train").iterdir():
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        (few / path.name).write_bytes(gzip.compress(lines[0] + b"".join(lines[1::80]), 1))
    (data / "peers").mkdir(parents=True)
    shutil.copy(source / "peers" / "op_instances.csv.gz", data / "peers")
    model = tmp_path / "model.json"
    words = ["analytic", "operator", "fit", "--data", str(few), "--out", str(model)]
    assert main([*words, "--seeds", "5"]) == 0
    out = tmp_path / "results"
    words = ["analytic", "operator", "evaluate", "--data", str(data), "--model", str(model)]
    assert main([*words, "--out", str(out)]) == 0
    assert "Whole models" in capfd.readouterr().out
    lines = (out / "operators.csv").read_text("utf-8").splitlines()
    assert lines[0] == "suite,dataset,split,device,group,model,seed,metric,value,n"
    assert (out / "operators.md").exists()
    assert json.loads((out / "operators.json").read_text("utf-8"))["stamp"]["data"]
