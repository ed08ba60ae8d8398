"""The Ansor plug-in where there is no Ansor: what it says, and its parts that need none."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.datasets.tenset.folder import default_dataset_dir, find_device_files, load_tasks
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.metrics import spearman
from cdmpp.records import TensetTask, normalise_workload_key
from tests.paths import ROOT
from tvm_helper.cost_model import measured_programs
from tvm_helper.cost_model.ansor import run as ansor_run
from tvm_helper.cost_model.ansor import setup as ansor_setup
from tvm_helper.cost_model.ansor.client import AnsorClient, find_python
from tvm_helper.cost_model.ansor.scorer import INVALID_SCORE, AnsorScorer
from tvm_helper.cost_model.measured_programs import SEARCH_TUNING
from tvm_helper.legacy.environment import STAMP, LegacyEnvironment
from tvm_helper.legacy.setup import _recipe

DEVICE = "epyc-avx2-1c"
OPTIONS = ["--model=pretrained", f"--device={DEVICE}"]


# Importing it.


def imported_with(tvm_source: str, folder: Path) -> str:
    """Returns what importing the plug-in says when `import tvm` runs that code."""
    package = folder / "tvm"
    package.mkdir()
    (package / "__init__.py").write_text(tvm_source)
    code = (
        "from cdmpp.errors import UsageError\n"
        "try:\n    import tvm_helper.cost_model.ansor.model\n"
        "except UsageError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("__version__ = '0.6.0'", "got TVM 0.6.0"),
        ("__version__ = '0.27.0'", "got TVM 0.27.0"),
        ("raise ModuleNotFoundError('No module named tvm', name='tvm')", "got no TVM"),
        ("raise OSError('libtvm.so: cannot open')", "libtvm.so: cannot open"),
    ],
)
def test_a_tvm_without_ansor_is_one_clear_error(source: str, got: str, tmp_path: Path) -> None:
    said = imported_with(source, tmp_path)
    assert got in said
    assert "`auto_scheduler` (0.8 to 0.19)" in said
    assert "python -m tvm_helper.legacy.setup" in said
    assert "python -m tvm_helper.cost_model.ansor.run" in said


@pytest.mark.tvm
def test_the_tvm_of_this_environment_is_too_new() -> None:
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    with pytest.raises(UsageError, match=r"got TVM 0\.\d+.*python -m tvm_helper.legacy.setup"):
        import tvm_helper.cost_model.ansor.model  # noqa: F401


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_side_of_the_model_needs_no_tvm() -> None:
    code = (
        "import sys, tvm_helper.cost_model.ansor.server; print('tvm' in sys.modules)\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "False"
    code = (
        "import sys, tvm_helper.cost_model.ansor.client; "
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# Running scripts there.


def test_the_runner_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert ansor_run.main(["--help"]) == 0
    assert ansor_run.main([]) == 2
    assert capsys.readouterr().out.count("usage: python -m tvm_helper.cost_model.ansor.run") == 2


def test_the_runner_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(tmp_path / "none"))
    assert ansor_run.main([str(tmp_path / "script.py")]) == 2
    assert "python -m tvm_helper.legacy.setup" in capsys.readouterr().err
    environment = fake_environment(tmp_path / "env", "exit 7")
    monkeypatch.setenv("CDMPP_LEGACY_ENV", str(environment.folder))
    assert ansor_run.main([str(tmp_path / "script.py")]) == 2
    error = capsys.readouterr().err
    assert "script.py: got no such file" in error
    assert error.count("\n") == 1


def fake_environment(folder: Path, script: str) -> LegacyEnvironment:
    """An environment whose interpreter is a shell script."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    (folder / STAMP).write_text(json.dumps({"recipe": _recipe(), "tvm": "0"}))
    return LegacyEnvironment(folder)


def test_the_runner_shows_our_packages_and_nothing_else_of_this_environment(
    tmp_path: Path,
) -> None:
    environment = fake_environment(tmp_path / "env", "exit 0")
    variables = ansor_run.ansor_variables(environment)
    assert variables["CDMPP_PYTHON"] == sys.executable
    folder = Path(variables["PYTHONPATH"].split(os.pathsep)[-1])
    assert sorted(path.name for path in folder.iterdir()) == ["cdmpp", "tvm_helper"]
    assert (folder / "tvm_helper").resolve() == ROOT / "tvm_helper"
    (folder / "cdmpp").unlink()
    (folder / "cdmpp").symlink_to(tmp_path)  # of a checkout that is gone
    ansor_run.ansor_variables(environment)
    assert (folder / "cdmpp").resolve() == ROOT / "cdmpp"


def test_an_environment_that_does_not_work_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = fake_environment(tmp_path / "env", "exit 9")
    forced: list[bool] = []

    def build(folder: Path, *, force: bool = False) -> str:
        forced.append(force)
        if force:
            environment.python.write_text("#!/bin/sh\nexit 0\n")
        return "built"

    monkeypatch.setattr(ansor_setup.setup, "build", build)
    assert ansor_setup.build(environment.folder) == "built"
    assert forced == [False, True]
    assert ansor_setup.build(environment.folder) == "built"
    assert forced == [False, True, False]


# Scores of record lines.


def shipped() -> tuple[TensetTask, list[str]]:
    """The shipped task with the most records on the device, and their lines."""
    folder = default_dataset_dir()
    path = max(find_device_files(folder, DEVICE), key=lambda path: path.stat().st_size)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    key = normalise_workload_key(json.loads(lines[0])["i"][0][0])
    tasks = load_tasks(folder / "network_info").tasks
    return next(task for task in tasks.values() if task.workload_key == key), lines


def scorer_for(
    task: TensetTask, *, finetune_every: int = 0, neighbours: bool = True
) -> AnsorScorer:
    scorer = AnsorScorer("pretrained", DEVICE, finetune_every=finetune_every, neighbours=neighbours)
    scorer.add_task("task", target=task.target, dag_json=task.dag_json)
    return scorer


def seconds_of(lines: list[str]) -> np.ndarray:
    return np.array([np.mean(json.loads(line)["r"][0]) for line in lines])


@pytest.fixture(scope="module")
def records() -> tuple[TensetTask, list[str]]:
    task, lines = shipped()
    return task, [line for line in lines if json.loads(line)["r"][1] == 0][:40]


def with_seconds(lines: list[str], seconds: np.ndarray) -> list[str]:
    values = [json.loads(line) for line in lines]
    for value, cost in zip(values, seconds.tolist(), strict=True):
        value["r"] = [[cost], 0, 0.1, 0]
    return [json.dumps(value) for value in values]


def test_faster_programs_score_higher(records: tuple[TensetTask, list[str]]) -> None:
    task, lines = records
    scores = scorer_for(task).predict("task", lines)
    assert scores.max() == 1.0
    assert scores.min() > 0
    assert spearman(scores, -seconds_of(lines)) > 0.3


def test_what_was_missed_on_measured_states_corrects_the_others(
    records: tuple[TensetTask, list[str]],
) -> None:
    task, lines = records
    told, untold = scorer_for(task), scorer_for(task, neighbours=False)
    alone = untold.predict("task", lines)
    np.testing.assert_array_equal(told.predict("task", lines), alone)
    # The slowest by the model turn out to be the fastest by far.
    taught = with_seconds(lines, alone**4)
    for scorer in (told, untold):
        scorer.update("task", taught[::2])
    others = lines[1::2]
    assert spearman(untold.predict("task", others), alone[1::2]) > 0.99
    assert spearman(told.predict("task", others), alone[1::2]) < 0.8


def test_the_costs_of_a_record_do_not_change_its_score(
    records: tuple[TensetTask, list[str]],
) -> None:
    task, lines = records
    scorer = scorer_for(task)
    told = scorer.predict("task", with_seconds(lines, np.linspace(1, 2, len(lines))))
    np.testing.assert_array_equal(scorer.predict("task", lines), told)


def test_invalid_states_get_the_lowest_score_and_are_counted_by_reason(
    records: tuple[TensetTask, list[str]],
) -> None:
    task, lines = records
    unknown, beyond = json.loads(lines[0]), json.loads(lines[0])
    unknown["i"][1][1].append(["XYZ", 0])
    beyond["i"][1][1].append(["AN", 99, 0, 3])
    scorer = scorer_for(task)
    mixed = [lines[1], json.dumps(unknown), lines[2], json.dumps(beyond)]
    scores = scorer.predict("task", mixed)
    assert np.isneginf(scores).tolist() == [False, True, False, True]
    assert sum(scorer.core.usage.unsupported.values()) == 2
    assert len(scorer.core.usage.unsupported) == 2
    np.testing.assert_array_equal(scorer.predict("task", mixed[1:2]), [INVALID_SCORE])
    scorer.update("task", mixed)
    assert scorer.core.usage.measured == 4


def test_the_reference_moves_between_rounds_only(records: tuple[TensetTask, list[str]]) -> None:
    task, lines = records
    scorer = scorer_for(task, neighbours=False)  # what was measured would count for its neighbours
    alone = scorer_for(task).predict("task", lines)
    order = np.argsort(alone)
    slow, fast = [lines[place] for place in order[:4]], [lines[order[-1]]]
    first = scorer.predict("task", slow)
    assert scorer.predict("task", fast)[0] > 1.0
    np.testing.assert_array_equal(scorer.predict("task", slow), first)
    scorer.update("task", slow)
    assert scorer.predict("task", fast)[0] == pytest.approx(1.0)
    assert scorer.core.usage.tunings == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_tuned_weights_are_kept_if_better_saved_and_loaded(
    records: tuple[TensetTask, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(SEARCH_TUNING, steps=8, validate_every=4, folds=2, programs_per_batch=16)
    monkeypatch.setattr(measured_programs, "SEARCH_TUNING", few)
    task, lines = records[0], records[1][:16]
    scorer = scorer_for(task, finetune_every=12)
    before = scorer.predict("task", lines)
    # A machine on which everything is the other way round.
    scorer.update("task", with_seconds(lines, before * 1e-4))
    after = scorer.predict("task", lines)
    assert scorer.core.usage.tunings == scorer.core.usage.kept_tunings == 1
    assert spearman(after, -before) > spearman(before, -before) + 0.2
    scorer.save(tmp_path / "model.tar")
    other = scorer_for(task, finetune_every=12)
    other.load(tmp_path / "model.tar")
    np.testing.assert_array_equal(other.predict("task", lines), after)
    assert len(other.core.measured) == len(lines)


def test_wrong_tasks_are_refused(records: tuple[TensetTask, list[str]]) -> None:
    task, lines = records
    scorer = scorer_for(task)
    with pytest.raises(DataError, match="task other was not added"):
        scorer.predict("other", lines)
    with pytest.raises(UsageError, match=f"cuda do not run on {DEVICE}"):
        scorer.add_task("gpu", target="cuda -arch=sm_75", dag_json=task.dag_json)
    with pytest.raises(DataError, match="computation graph"):
        scorer.add_task("broken", target="llvm", dag_json='{"root": 1, "nodes": [{}, {}]}')
    with pytest.raises(DataError, match="JSON"):
        scorer.predict("task", [lines[0][:50]])


# The two processes.


@pytest.mark.slow
def test_a_model_over_the_pipe_answers_like_one_here_until_it_dies(
    records: tuple[TensetTask, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    task, lines = records
    client = AnsorClient(OPTIONS, python=Path(sys.executable))
    client.ask("task", name="task", target=task.target, dag=task.dag_json)
    broken = json.loads(lines[0])
    broken["i"][1][1].append(["XYZ", 0])
    asked = [*lines[:8], json.dumps(broken)]
    with caplog.at_level("WARNING", logger="cdmpp"):
        answer = client.ask("predict", name="task", lines=asked)
    assert answer["scores"][-1] is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    here = scorer_for(task).predict("task", asked)
    np.testing.assert_allclose(answer["scores"][:-1], here[:-1], rtol=1e-6)
    assert answer["usage"]["predicted"] == 9
    with pytest.raises(DataError, match="was not added"):
        client.ask("predict", name="other", lines=lines)
    assert client.ask("predict", name="task", lines=lines[:1])["usage"]["predicted"] == 10
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(DataError, match="killed by SIGKILL"):
        client.ask("save", path="nowhere")
    client.close()
    with pytest.raises(DataError, match="was closed"):
        client.ask("save", path="nowhere")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_trouble_at_the_start_has_its_own_class(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=f"did you mean '{DEVICE}'"):
        AnsorClient([OPTIONS[0], "--device=epyc-avx2-1"], python=Path(sys.executable))
    stranger = fake_environment(tmp_path / "env", "echo No module named tvm_helper >&2; exit 1")
    with pytest.raises(DataError, match="No module named tvm_helper"):
        AnsorClient(OPTIONS, python=stranger.python)
    other = fake_environment(tmp_path / "other", "echo '{\"protocol\": 0}'; cat")
    with pytest.raises(UsageError, match="speaks protocol 0"):
        AnsorClient(OPTIONS, python=other.python)
    with pytest.raises(UsageError, match="Cannot start the cost model"):
        AnsorClient(OPTIONS, python=tmp_path)


def test_the_interpreter_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDMPP_PYTHON", sys.executable)
    assert find_python() == Path(sys.executable)
    monkeypatch.setenv("CDMPP_PYTHON", str(tmp_path / "python"))
    with pytest.raises(UsageError, match="CDMPP_PYTHON"):
        find_python()
