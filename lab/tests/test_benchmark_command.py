"""`python -m lab benchmark` with a suite file, on a small real dataset."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cdmpp.config import dump_text
from cdmpp.errors import UsageError
from lab.__main__ import main
from lab.suites.options import SuiteDataset, SuiteModel, load_suite
from lab.tests.suites.suites import CROSS_MODEL
from tests.cli.conftest import DEVICES


@pytest.fixture(scope="module")
def suite_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("suite") / "tiny.yaml"
    suite = replace(
        CROSS_MODEL,
        name="tiny",
        subject="roofline",
        datasets=(SuiteDataset("real"), SuiteDataset("other")),
        models=(SuiteModel("roofline"), SuiteModel("constant")),
    )
    path.write_text(dump_text(suite))
    return path


def arguments(suite_file, dataset, cache, folder) -> list[str]:
    return [
        "benchmark", "--suite", str(suite_file), "--data", f"real={dataset}", "--jobs", "0",
        "--cache", str(cache), "--runs", str(folder / "runs"), "--out", str(folder / "out"),
    ]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_suite_runs_resumes_and_reports(suite_file, dataset, cache, tmp_path, capsys):
    command = arguments(suite_file, dataset, cache, tmp_path)
    assert main([*command, "--cells", "*-s0-*"]) == 0
    first = capsys.readouterr()
    assert "5 of 10 cells are missing" in first.out
    assert "data set other is left out" in first.err
    assert "left)" in first.err
    assert main(command) == 0
    second = capsys.readouterr()
    assert "[10/10]" in second.err
    assert second.err.count(": MAPE") == 4, "finished cells were run again"
    (tmp_path / "out" / "tiny.md").unlink()
    report = [*command[:3], "--report-only", *command[7:], "--json"]
    assert main(report) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["missing_cells"] == []
    assert set(value["verdict"]) == {"real, by task"}
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "Mean over devices" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "tenset=x"], "NAME one of real, other"),
        (["--dataset", "x"], "does not fit --suite"),
        (["--report-only", "--cells", "a"], "leave one out"),
        (["--cells", "nothing"], "no cell matches 'nothing'"),
    ],
)
def test_usage_errors(suite_file, dataset, cache, tmp_path, capsys, options, message):
    assert main([*arguments(suite_file, dataset, cache, tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_unknown_suite_names_the_nearest(capsys):
    assert main(["benchmark", "--suite", "cross-devise"]) == 2
    assert "did you mean 'cross-device'" in capsys.readouterr().err
    assert main(["benchmark", "--suite", "by-task", "--data", "a=b"]) == 2
    assert "does not fit --suite by-task" in capsys.readouterr().err


def test_a_suite_may_be_like_another(tmp_path):
    whole = load_suite("cross-device")
    own = load_suite("cross-device-autotvm")
    assert [entry.name for entry in own.datasets] == ["autotvm"]
    assert (own.budgets, own.methods, own.seeds) == (whole.budgets, whole.methods, whole.seeds)
    for like in ("cross-device-autotvm", "nothing"):
        path = tmp_path / "own.yaml"
        path.write_text(f"like: {like}\nname: own\n")
        with pytest.raises(UsageError, match=f"like is '{like}', expected a suite that is like no"):
            load_suite(str(path))


@pytest.mark.exhaustive
def test_by_task_is_the_suite_of_one_dataset(dataset, cache, tmp_path, capsys):
    command = [
        "benchmark", "--suite", "by-task", "--dataset", str(dataset), "--cache", str(cache),
        "--model", "roofline", "--set", "baselines=[constant]", "--set", "fractions=[0.5,0.2,0.3]",
        "--device", DEVICES[0], "--seeds", "3,4", "--jobs", "0", "--json",
        "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(command) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["seeds"] == [3, 4]
    assert value["missing_cells"] == []
    lines = {cell["id"].partition("-s3-")[2] for cell in value["cells"]} - {""}
    references = {"constant", "oracle-task-median", "noise-floor", "random-score"}
    assert lines == {"roofline"} | references
    rows = (tmp_path / "out" / "by-task.csv").read_text()
    assert DEVICES[0] in rows
    assert DEVICES[1] not in rows


@pytest.mark.parametrize("seeds", ["", "a", "1,1", "-1"])
def test_bad_seeds(capsys, seeds):
    assert main(["benchmark", f"--seeds={seeds}"]) == 2
    assert "--seeds" in capsys.readouterr().err


def test_an_unknown_device_is_refused_as_by_train(capsys):
    assert main(["benchmark", "--device", "epyc-avx2-1d"]) == 4
    assert "unknown device 'epyc-avx2-1d', did you mean 'epyc-avx2-1c'?" in capsys.readouterr().err
