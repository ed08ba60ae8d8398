"""Our model in a real Ansor. Runs in the side environment: `make ansor-test`."""

from __future__ import annotations

import json
import logging
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.metrics import spearman
from tests.paths import ROOT

try:
    from tvm_helper.cost_model.ansor.model import CdmppPythonModel, state_lines
except UsageError as error:
    pytest.skip(f"{error} (the tests: make ansor-test)", allow_module_level=True)

import tvm
from tvm import auto_scheduler

from tests.ansor.ansor_tasks import (
    DEVICE,
    conv2d_task,
    gpu_parameters,
    matmul_task,
    measure_invented,
    measured_s,
    random_states,
    search,
)
from tvm_helper.cost_model.ansor.client import _own_variables, find_python

pytestmark = pytest.mark.ansor

TASKS = {"matmul": matmul_task, "conv2d": conv2d_task}
TRIALS = 16


@pytest.fixture(scope="module")
def model() -> Iterator[CdmppPythonModel]:
    made = CdmppPythonModel("pretrained", DEVICE)
    yield made
    made.close()


class Searched:
    """A search that our untuned model has driven."""

    def __init__(self, name: str, log: Path) -> None:
        self.task, self.log = TASKS[name](), log
        self.model = CdmppPythonModel("pretrained", DEVICE)
        search(self.task, self.model, trials=TRIALS, log=str(log), population=64)
        self.lines = log.read_text(encoding="utf-8").splitlines()
        self.entries = [auto_scheduler.measure_record.load_record_from_string(line)
                        for line in self.lines]  # fmt: skip
        self.states = [
            self.task.compute_dag.infer_bound_from_state(entry.state) for entry, _ in self.entries
        ]
        self.costs_s = np.array([float(result.costs[0].value) for _, result in self.entries])


@pytest.fixture(scope="module", params=list(TASKS))
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Searched]:
    found = Searched(request.param, tmp_path_factory.mktemp("search") / "records.json")
    yield found
    found.model.close()


def record_facts(task: Any, lines: list[str], device: str = DEVICE) -> list[dict[str, Any]]:
    """What the product says of records, see `record_facts.py`."""
    request = {"dag": tvm.ir.save_json(task.compute_dag.tensors), "device": device, "lines": lines}
    done = subprocess.run(
        [str(find_python()), str(Path(__file__).with_name("record_facts.py"))],
        input=json.dumps(request), capture_output=True, text=True, check=True,
        env={**_own_variables(os.environ), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    facts: list[dict[str, Any]] = json.loads(done.stdout)
    return facts


def test_a_search_driven_by_our_model_measures_programs_that_run(searched: Searched) -> None:
    assert len(searched.lines) == TRIALS
    assert [result.error_no for _, result in searched.entries] == [0] * TRIALS
    assert np.all((searched.costs_s > 0) & (searched.costs_s < 1))
    usage = searched.model.usage
    assert usage.predicted > TRIALS
    assert usage.measured == TRIALS - 8  # Ansor does not tell the last round
    assert usage.failed == 0
    assert not usage.unsupported


def test_scores_are_rates_so_that_higher_is_better(
    searched: Searched, model: CdmppPythonModel
) -> None:
    states = random_states(searched.task, 24)
    scores = model.predict(searched.task, states)
    facts = record_facts(searched.task, state_lines(searched.task, states))
    latency_s = np.array([fact["latency_s"] for fact in facts])
    np.testing.assert_allclose(scores * latency_s, scores[0] * latency_s[0], rtol=1e-6)
    assert scores.min() > 0
    assert spearman(scores, -latency_s) == pytest.approx(1.0)


def test_a_program_that_is_not_scheduled_scores_below_those_that_the_search_finds(
    searched: Searched, model: CdmppPythonModel
) -> None:
    naive = searched.task.compute_dag.infer_bound_from_state(
        searched.task.compute_dag.get_init_state()
    )
    scores = model.predict(searched.task, [naive, *searched.states])
    assert scores[0] < np.median(scores[1:])


def test_scores_follow_the_measured_rates_of_random_programs(model: CdmppPythonModel) -> None:
    task = matmul_task(96, 96, 96)
    states = random_states(task, 32)
    assert spearman(model.predict(task, states), -measured_s(task, states)) > 0.2


def test_states_and_the_records_written_of_them_have_equal_features(searched: Searched) -> None:
    of_states = record_facts(searched.task, state_lines(searched.task, searched.states))
    of_records = record_facts(searched.task, searched.lines)
    assert of_states == of_records
    assert len({fact["digest"] for fact in of_records}) > TRIALS // 2


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [str(find_python()), "-m", "cdmpp.cli.main", "serve", "--port", "0", "--json", "-q"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**_own_variables(os.environ), "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def test_a_search_on_a_server_measures_the_programs_of_one_without(
    url: str, tmp_path: Path
) -> None:
    task = matmul_task()
    states = random_states(task, 24)
    scores, programs = [], []
    for server in (url, None):
        # A model of a server learns nothing from what is measured.
        scorer = CdmppPythonModel("pretrained", DEVICE, neighbours=False, server=server)
        scores.append(scorer.predict(task, states).tolist())
        log = tmp_path / f"{server is None}.json"
        search(task, scorer, trials=TRIALS, log=str(log), population=64, is_invented=True)
        lines = log.read_text(encoding="utf-8").splitlines()
        programs.append([json.loads(line)["i"] for line in lines])
        assert scorer.usage.measured == TRIALS - 8
        scorer.close()
    assert scores[0] == scores[1]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("name", list(TASKS))
def test_the_same_seed_measures_the_same_programs(name: str, tmp_path: Path) -> None:
    programs = []
    for seed in (1, 1, 2):
        model = CdmppPythonModel("pretrained", DEVICE)  # one that has measured nothing
        log = tmp_path / f"{len(programs)}.json"
        # Ansor starts a round from the fastest programs: they must not depend on a clock.
        search(
            TASKS[name](), model, trials=TRIALS, log=str(log), population=64, seed=seed,
            is_invented=True,
        )  # fmt: skip
        model.close()
        lines = log.read_text(encoding="utf-8").splitlines()
        programs.append([json.loads(line)["i"] for line in lines])
    assert len(programs[0]) == TRIALS
    assert programs[0] == programs[1]
    assert programs[0] != programs[2]


def test_stages_come_in_the_packed_form(searched: Searched, model: CdmppPythonModel) -> None:
    packed = model.predict_stages(searched.task, searched.states)
    count = len(searched.states)
    np.testing.assert_array_equal(packed[:count], model.predict(searched.task, searched.states))
    # Ansor reads the number of a state's stages, then as many scores.
    place = count
    for _ in range(count):
        place += 1 + int(packed[place])
    assert place == len(packed)
    # It makes room for two numbers a stage; every state has stages.
    assert len(packed) <= 2 * count * len(searched.states[0].stages)


def test_states_beyond_the_limits_of_a_gpu_get_the_lowest_score_and_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    roomy = matmul_task(64, 64, 64, target="cuda -arch=sm_75", hardware_params=gpu_parameters())
    states = random_states(roomy, 24)
    narrow = matmul_task(
        64, 64, 64, target="cuda -arch=sm_75", hardware_params=gpu_parameters(threads_per_block=64)
    )
    model = CdmppPythonModel("pretrained", "t4")
    try:
        fits = model.predict(roomy, states)
        assert np.all(np.isfinite(fits) & (fits > 0))
        assert not model.usage.unsupported
        with caplog.at_level(logging.WARNING, logger="cdmpp"):
            scores = model.predict(narrow, states)
            again = model.predict(narrow, states)
    finally:
        model.close()
    is_invalid = np.isneginf(scores)
    assert 0 < is_invalid.sum() < len(states)
    assert np.all(scores[~is_invalid] > 0)
    np.testing.assert_array_equal(is_invalid, np.isneginf(again))
    assert sum(model.usage.unsupported.values()) == 2 * is_invalid.sum()
    assert all("threads" in reason for reason in model.usage.unsupported)
    assert len([r for r in caplog.records if "cannot be scored" in r.message]) == 1


def test_a_device_of_another_kind_is_refused() -> None:
    task = matmul_task()
    model = CdmppPythonModel("pretrained", "t4")
    with pytest.raises(UsageError, match="llvm do not run on t4"):
        model.predict(task, random_states(task, 2))
    with pytest.raises(UsageError, match="llvm do not run on t4"):  # through Ansor's own code
        search(task, model, trials=8, population=64, is_invented=True)
    model.close()
    with pytest.raises(DataError, match="was closed"):
        model.predict(task, random_states(task, 2))


def test_what_is_wrong_with_the_model_or_device_is_said_here(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="did you mean 'epyc-avx2-1c'"):
        CdmppPythonModel("pretrained", "epyc-avx2-1")
    with pytest.raises(DataError):
        CdmppPythonModel(tmp_path, DEVICE)
    with pytest.raises(UsageError, match="finetune_every is -1"):
        CdmppPythonModel("pretrained", DEVICE, finetune_every=-1)


def results_of(seconds: np.ndarray) -> list[Any]:
    return [auto_scheduler.MeasureResult([float(cost)], 0, "", 0.1, 0) for cost in seconds]


def test_tuning_saving_and_loading(tmp_path: Path) -> None:
    task = matmul_task(96, 96, 96)
    states = random_states(task, 48)
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states]
    model = CdmppPythonModel("pretrained", DEVICE, finetune_every=24)
    before = model.predict(task, states)
    # A machine on which everything is the other way round, and one program fails.
    seconds = before * 1e-4
    broken = auto_scheduler.MeasureResult([1e10], 4, "failed on purpose", 0.1, 0)
    model.update(inputs, [*results_of(seconds)[:-1], broken])
    after = model.predict(task, states)
    assert model.usage.measured == 48
    assert model.usage.failed == 1
    assert model.usage.tunings == model.usage.kept_tunings == 1
    assert spearman(after, -seconds) > spearman(before, -seconds) + 0.2
    path = tmp_path / "model.tar"
    model.save(path)
    model.close()
    other = CdmppPythonModel("pretrained", DEVICE, finetune_every=24)
    other.load(path)
    np.testing.assert_array_equal(other.predict(task, states), after)
    path.write_text("no tar")
    with pytest.raises(DataError, match="not a saved cost model"):
        other.load(path)
    other.close()


def test_tuning_within_a_search(tmp_path: Path) -> None:
    model = CdmppPythonModel("pretrained", DEVICE, finetune_every=8)
    search(
        matmul_task(), model, trials=24, log=str(tmp_path / "log"), population=64, is_invented=True
    )
    model.close()
    assert model.usage.measured == 16
    assert model.usage.tunings == 1  # eight programs teach nothing that can be checked


def test_global_random_states_stay(model: CdmppPythonModel) -> None:
    task = matmul_task()
    states = random_states(task, 16)
    before = (random.getstate(), np.random.get_state()[1].tolist())
    model.predict(task, states)
    inputs = [auto_scheduler.MeasureInput(task, state) for state in states]
    model.update(inputs, results_of(np.linspace(1, 2, 16)))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_nothing_to_say_about_nothing(model: CdmppPythonModel) -> None:
    before = model.usage
    assert len(model.predict(matmul_task(), [])) == 0
    model.update([], [])
    assert model.usage == before


def test_one_model_for_several_tasks(tmp_path: Path, model: CdmppPythonModel) -> None:
    measure_invented()
    tasks = [matmul_task(), conv2d_task()]
    params = {"evolutionary_search_population": 64, "sample_init_min_population": 32}
    policies = [auto_scheduler.SketchPolicy(task, model, params=params, seed=3, verbose=0)
                for task in tasks]  # fmt: skip
    tuner = auto_scheduler.TaskScheduler(tasks, strategy="round-robin")
    log = tmp_path / "log"
    options = auto_scheduler.TuningOptions(
        num_measure_trials=24, num_measures_per_round=8, verbose=0,
        builder=auto_scheduler.LocalBuilder(n_parallel=1),
        runner=auto_scheduler.LocalRunner(number=1, repeat=1, min_repeat_ms=1),
        measure_callbacks=[auto_scheduler.RecordToFile(str(log))],
    )  # fmt: skip
    tuner.tune(options, search_policy=policies)
    keys = [json.loads(line)["i"][0][0] for line in log.read_text(encoding="utf-8").splitlines()]
    assert {keys.count(task.workload_key) for task in tasks} == {8, 16}
    assert len(model._tasks) >= 2
