"""`cdmpp finetune` on a small real dataset: a model of one device is adapted to another."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from cdmpp.cli.finetune import budget_tasks
from cdmpp.cli.main import main
from cdmpp.errors import UsageError
from cdmpp.training.finetune.choice import KEPT
from tests.cli.conftest import DEVICES, QUICK, json_of

pytestmark = pytest.mark.training

QUICK_TUNING = [
    "--set", "finetune.steps=6",
    "--set", "finetune.validate_every=3",
    "--set", "finetune.folds=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def data(dataset, cache) -> list[str]:
    return ["--dataset", str(dataset), "--cache", str(cache), "--jobs", "1", "-q"]


@pytest.fixture(scope="module")
def source(data, tmp_path_factory):
    """A run folder of a model trained on the first device only."""
    run = tmp_path_factory.mktemp("source") / "one-device"
    options = ["--device", DEVICES[0], "--out", str(run), "--set", "baselines=[constant]"]
    assert main(["train", *data, *QUICK, *options]) == 0
    return run


@pytest.fixture(scope="module")
def tuned(data, source, tmp_path_factory):
    run = tmp_path_factory.mktemp("tuned") / "two-devices"
    options = ["--from", str(source), "--device", DEVICES[1], "--budget", "4tasks", "--compare"]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(run)]) == 0
    return run


def test_run_folder_is_complete(tuned):
    assert {path.name for path in tuned.iterdir()} >= {
        "config.yaml", "metrics.json", "model.json", "predictions.parquet", "report.html",
    }  # fmt: skip


def test_every_line_is_judged_on_the_same_other_tasks(tuned):
    metrics = json.loads((tuned / "metrics.json").read_text())
    assert set(metrics["test"]) == {
        "fine-tuned", "zero-shot", "one-factor", "from scratch", "trees on the budget", "oracle",
    }  # fmt: skip
    assert len({values["n"] for values in metrics["test"].values()}) == 1
    assert len(metrics["budget_tasks"]) == 4
    table = pq.read_table(tuned / "predictions.parquet").to_pylist()
    trained = {row["task"] for row in table if row["part"] == "train"}
    judged = {row["task"] for row in table if row["part"] == "test"}
    assert trained == set(metrics["budget_tasks"])
    assert not trained & judged
    assert {row["device"] for row in table} == {DEVICES[1]}
    assert metrics["one_factor"]["nearest"] == DEVICES[0]


def test_model_of_the_run_can_be_used(tuned, data, capsys):
    command = ["evaluate", "--model", str(tuned), *data, "--device", DEVICES[1], "--json"]
    assert main(command) == 0
    values = json_of(capsys)
    assert values["overlap_with_training"] > 0  # the budget's tasks were trained on
    card = json.loads((tuned / "model.json").read_text())
    assert [spec["name"] for spec in card["devices"]] == list(DEVICES)


@pytest.mark.exhaustive
def test_times_on_a_known_device_count_in(data, source, tmp_path, capsys):
    run = tmp_path / "beside"
    options = ["--from", str(source), "--device", DEVICES[1], "--measured-on", DEVICES[0]]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--budget", "3tasks"]) == 2
    assert "expected at least 5" in capsys.readouterr().err
    arguments = [*data, *QUICK_TUNING, *options, "--budget", "all", "--out", str(run)]
    assert main(["finetune", *arguments]) == 0
    (pair,) = json.loads((run / "model.json").read_text())["transfer"]["pairs"]
    assert (pair["source"], pair["target"]) == (DEVICES[0], DEVICES[1])


def test_tasks_are_printed(data, source, tmp_path, capsys):
    options = [
        "--from",
        str(source),
        "--device",
        DEVICES[1],
        "--budget",
        "2",
        "--sampler",
        "random",
    ]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(tmp_path / "r")]) == 0
    printed = capsys.readouterr().out
    assert "training tasks (random):" in printed
    assert "fine-tuned" in printed
    assert "one-factor" in printed
    assert (
        "errors  mean over tasks of the budget, each held out, with at most 300 % a program "
        "(MAPE above: mean over programs, unlimited): the unadapted model" in printed
    )
    assert "from scratch" not in printed
    assert "machine code" not in printed


def test_a_model_of_machine_code_that_is_not_kept_is_said(data, source, tmp_path, capsys):
    """A fine-tuning on a GPU left out the model of its machine code without a word."""
    start = tmp_path / "start"
    shutil.copytree(source, start)
    (start / "machine_code_gpu").mkdir()
    options = ["--from", str(start), "--device", DEVICES[1], "--budget", "2"]
    run = ["--out", str(tmp_path / "r")]
    assert main(["finetune", *data, *QUICK_TUNING, *options, *run]) == 0
    assert f"note    without machine code on GPUs, which {start} reads" in capsys.readouterr().out
    assert json.loads((tmp_path / "r" / "metrics.json").read_text())["lost_machine_code"] == ["gpu"]


def test_json_is_one_value(data, source, tmp_path, capsys):
    options = ["--from", str(source), "--device", DEVICES[1], "--budget", "2tasks", "--json"]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(tmp_path / "r")]) == 0
    values = json_of(capsys)
    assert values["kept"] in KEPT
    assert set(values["held_out_error"]) == set(KEPT)
    assert "held-out tasks" in values["why"]
    assert len(values["budget_tasks"]) == 2


@pytest.mark.exhaustive
def test_all_tasks_make_the_best_model_and_judge_as_they_were_held_out(
    data, source, tmp_path, capsys
):
    run = tmp_path / "r"
    options = ["--from", str(source), "--device", DEVICES[1], "--budget", "all"]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "held out in 2 parts of the budget" in printed
    metrics = json.loads((run / "metrics.json").read_text())
    assert len(metrics["budget_tasks"]) == 14
    assert metrics["parts"]["train"] == metrics["parts"]["test"]
    assert set(metrics["test"]) == {"fine-tuned", "zero-shot", "one-factor", "oracle"}
    code, error = fails([*data, *options, "--compare", "--out", str(tmp_path / "s")], capsys)
    assert (code, "--budget all leaves none" in error) == (2, True)


def test_what_is_kept_is_said(tuned, data, source, tmp_path, capsys):
    options = ["--from", str(source), "--device", DEVICES[1], "--budget", "1task"]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(tmp_path / "r")]) == 0
    assert "chosen  the model with one scale factor: only one task" in capsys.readouterr().out


def test_known_device_is_judged_on_unseen_tasks_only(data, source, tmp_path, capsys):
    """Tasks of the original training on this device are used neither for training nor testing."""
    options = ["--from", str(source), "--device", DEVICES[0], "--budget", "1task", "--json"]
    assert main(["finetune", *data, *QUICK_TUNING, *options, "--out", str(tmp_path / "r")]) == 0
    values = json_of(capsys)
    assert "tasks of the original training left out" in values["split"]["description"]
    rows = pq.read_table(source / "predictions.parquet").to_pylist()
    trained = {row["task"] for row in rows if row["part"] == "train"}
    table = pq.read_table(tmp_path / "r" / "predictions.parquet").to_pylist()
    assert not trained & {row["task"] for row in table}


def fails(arguments: list[str], capsys) -> tuple[int, str]:
    code = main(["finetune", *arguments])
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return code, error


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--budget", "0tasks"], 2, "from 1 up"),
        (["--budget", "-3"], 2, "from 1 up"),
        (["--budget", "many"], 2, "'many'"),
        (["--budget", "13tasks"], 2, "is too large for 14 different workloads"),
        (["--device", "no-such-device"], 4, "no-such-device"),
        (["--network", "no-such-network"], 2, "unknown network 'no-such-network'"),
        (["--from", "no-such-run"], 3, "no trained model at no-such-run"),
        (["--set", "finetune.what=nothing"], 2, "nothing"),
        (["--measured-on", DEVICES[1]], 2, "expected a device that the model was trained on"),
    ],
)
def test_errors_are_one_clear_sentence(arguments, code, text, data, source, tmp_path, capsys):
    default = ["--from", str(source), "--device", DEVICES[1], "--out", str(tmp_path / "r")]
    if "--device" in arguments:
        default = [word for word in default if word not in ("--device", DEVICES[1])]
    got, error = fails([*data, *default, *arguments], capsys)
    assert got == code
    assert text in error
    assert not (tmp_path / "r" / "model.json").exists()


def test_model_and_target_must_be_named(data, source, capsys):
    code, error = fails([*data, "--device", DEVICES[1]], capsys)
    assert (code, "--from RUN" in error) == (2, True)
    code, error = fails([*data, "--from", str(source)], capsys)
    assert (code, "--device LABEL" in error) == (2, True)


@pytest.mark.parametrize(("text", "count"), [("10tasks", 10), ("3", 3), ("1task", 1), ("all", 0)])
def test_budget_is_read(text, count):
    assert budget_tasks(text) == count


@pytest.mark.parametrize("text", ["", "0", "tasks", "1.5", "10 programs"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UsageError, match="10tasks"):
        budget_tasks(text)
