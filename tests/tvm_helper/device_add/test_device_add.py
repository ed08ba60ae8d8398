"""`cdmpp device add`: budget, choice, curve and knee; all of it with a worker without TVM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import workload_of
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.files.stored import from_json, to_json
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.saved_model import ModelCard, task_digest
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.finetune.run import COMPILED, FINE_TUNED
from tests.paths import ROOT
from tests.tvm_helper.device_add import child
from tests.tvm_helper.measure.campaigns import RECORDED
from tvm_helper.device_add.benchmarks import (
    Benchmarks,
    array_bytes,
    check_plausible,
    run_benchmarks,
)
from tvm_helper.device_add.clock import StepClock
from tvm_helper.device_add.curve import budgets, judged, knee
from tvm_helper.device_add.describe import with_measured
from tvm_helper.device_add.kernels import kernel_names
from tvm_helper.device_add.measure import kernel_task_name, measure_options, planned_tasks
from tvm_helper.device_add.options import MOST_TASKS, DeviceAddOptions, task_counts
from tvm_helper.device_add.plan import AddPlan, drawn_plan, make_plan
from tvm_helper.device_add.run import CURVE_FILE, MEASUREMENTS, add_device, read_curve
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import campaign_tasks
from tvm_helper.measure.target import MeasureTarget

CPU = DeviceSpec("box", "cpu", threads=1, simd_bits=256, l3_bytes=8 << 20, mem_bytes=1 << 30)


# Names and minutes.


@pytest.mark.parametrize("name", ["", "My-Box", "a b", "-x", "../x", "ä", "a" * 65])
def test_a_malformed_label_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a device label"):
        DeviceAddOptions(name).check()


def test_the_label_of_whatever_cpu_asks_is_refused() -> None:
    with pytest.raises(UsageError, match="a different device on every machine"):
        DeviceAddOptions("this-cpu", use_known=True).check()


@pytest.mark.parametrize("name", ["t4", "tesla-t4", "epyc-avx2-1c", "nvidia-t4"])
def test_a_known_label_is_refused_unless_its_description_is_wanted(name: str) -> None:
    with pytest.raises(UsageError, match=r"already described.* add --spec"):
        DeviceAddOptions(name).check()
    DeviceAddOptions(name, use_known=True).check()


def test_the_description_of_an_unknown_label_is_refused() -> None:
    with pytest.raises(UsageError, match="got 'my-box'"):
        DeviceAddOptions("my-box", use_known=True).check()


@pytest.mark.parametrize("minutes", [0.0, -1.0, 1.9, float("nan"), float("inf")])
def test_impossible_minutes_are_refused(minutes: float) -> None:
    with pytest.raises(UsageError, match="expected at least 2"):
        DeviceAddOptions("my-box", minutes=minutes).check()


@given(st.floats(2.0, 600.0))
def test_measuring_ends_before_the_fits_and_they_before_the_minutes(minutes: float) -> None:
    options = DeviceAddOptions("my-box", minutes=minutes)
    assert 0 < options.measure_until_s < options.fit_until_s < 60 * minutes


@given(st.floats(0.0, 1e5), st.integers(2, 500))
def test_tasks_are_shared_out(seconds: float, available: int) -> None:
    learn, test = task_counts(seconds, available)
    assert learn >= 1
    assert test >= 1
    assert learn + test <= available
    assert learn >= test
    more = task_counts(2 * seconds, available)
    assert sum(more) >= learn + test


def test_the_clock_goes_on_where_a_killed_run_stopped(tmp_path: Path) -> None:
    first = StepClock(tmp_path, time.monotonic() - 100)
    first.note(steps=40)
    again = StepClock(tmp_path, time.monotonic())
    assert 100 <= again.spent_s() < 160
    assert again.notes["steps"] == 40
    with again.part("fit"):
        pass
    assert set(StepClock(tmp_path, time.monotonic()).seconds()) == {"fit", "total"}


# The choice.


def card_with(samples: Samples, tasks: list[int]) -> ModelCard:
    digests = frozenset(task_digest(str(samples.programs.tasks[task])) for task in tasks)
    return ModelCard("ensemble", {}, "", {}, samples.devices, digests, {})


def test_only_tasks_that_the_model_has_not_seen_are_chosen() -> None:
    samples = make_samples(30, 4)
    names = [str(name) for name in samples.programs.tasks]
    kind = names[0].rpartition("|")[2]
    seen = list(range(0, 30, 3))
    plan = make_plan(samples, card_with(samples, seen), kind, measure_s=120, seed=0)
    assert len(plan.learn) + len(plan.test) == 20
    assert not {names[task] for task in seen} & {*plan.learn, *plan.test}
    assert not {workload_of(name) for name in plan.learn} & {
        workload_of(name) for name in plan.test
    }
    assert plan == make_plan(samples, card_with(samples, seen), kind, measure_s=120, seed=0)
    assert (
        plan.test != make_plan(samples, card_with(samples, seen), kind, measure_s=120, seed=1).test
    )
    assert from_json(AddPlan, json.loads(json.dumps(to_json(plan)))) == plan


def test_latencies_do_not_decide_the_choice() -> None:
    samples = make_samples(12, 4)
    kind = str(samples.programs.tasks[0]).rpartition("|")[2]
    other = replace(samples, latency_s=samples.latency_s[::-1] * 7)
    card = card_with(samples, [])
    assert make_plan(samples, card, kind, measure_s=60, seed=0) == make_plan(
        other, card, kind, measure_s=60, seed=0
    )


def test_too_few_unseen_tasks_are_told() -> None:
    samples = make_samples(10, 4)
    kind = str(samples.programs.tasks[0]).rpartition("|")[2]
    with pytest.raises(DataError, match="expected at least 4; give a folder"):
        make_plan(samples, card_with(samples, list(range(8))), kind, measure_s=60, seed=0)
    with pytest.raises(DataError, match="has 0 different tasks of target kind 'cuda'"):
        make_plan(samples, card_with(samples, []), "cuda", measure_s=60, seed=0)


def test_kernels_of_every_kind_are_drawn_that_the_model_has_not_seen() -> None:
    card = card_with(make_samples(10, 4), [])
    free = drawn_plan(card, "{}|llvm".format, measure_s=390, seed=0)
    assert (len(free.learn), len(free.test)) == task_counts(390, MOST_TASKS)
    assert not set(free.learn) & set(free.test)
    assert {kernel.partition(":")[0] for kernel in free.kernels} >= {
        "conv2d", "dense", "softmax", "layer_norm", "conv2d_transpose", "transpose", "attention",
    }  # fmt: skip
    seen = replace(card, training_tasks=frozenset(map(task_digest, free.learn)))
    other = drawn_plan(seen, "{}|llvm".format, measure_s=390, seed=0)
    assert not {*other.learn, *other.test} & set(free.learn)
    assert len(other.kernels) == len(free.kernels)
    assert from_json(AddPlan, json.loads(json.dumps(to_json(free)))) == free
    assert drawn_plan(card, "{}|llvm".format, measure_s=390, seed=1) != free


@pytest.mark.slow
@pytest.mark.tvm
def test_every_kernel_is_a_task_of_moderate_size() -> None:
    tasks = campaign_tasks(MeasureOptions(sample=tuple(islice(kernel_names(3), 60))), None)
    assert len({task.operator for task in tasks}) > 10
    assert max(task.flop_count or 0.0 for task in tasks) < 2e9
    kernel = next(kernel_names(3))
    target = MeasureTarget("box", {"kind": "llvm"}, 1)
    assert kernel_task_name(kernel, target) == f"{tasks[0].workload_key}|llvm"
    with pytest.raises(DataError, match="use the TVM that started this folder"):
        planned_tasks(MeasureOptions(sample=(kernel,)), target, ["another|llvm"])


def test_layers_have_weights_beyond_caches_but_run_in_a_second() -> None:
    names = [name for name in islice(kernel_names(0), 600) if name.startswith("matmul:")]
    sizes = [[int(one) for one in re.findall(r"=(\d+)", name)] for name in names]
    large = [(m, n, k) for m, n, k in sizes if n * k > 2**20]
    assert len(large) > 10
    assert any(n & (n - 1) == 0 for _, n, _ in large)
    assert max(m * n * k for m, n, k in sizes) <= 512**3


def test_a_cpu_is_timed_in_rounds_and_runs_loops_as_they_are_too() -> None:
    cpu = MeasureTarget("box", {"kind": "llvm"}, 1)
    asked = measure_options("box", cpu, kernels=("dense:m=8,n=8,k=8",), per_task=1, seed=0)
    assert asked.rounds == 3
    assert asked.schedules.count("default") / len(asked.schedules) == 0.25
    gpu = measure_options("box", MeasureTarget("box", {"kind": "cuda"}, 1), per_task=1, seed=0)
    assert (gpu.rounds, gpu.schedules) == (1, ("random",))


def test_both_kinds_of_tasks_are_measured_in_turn() -> None:
    order = AddPlan(("a", "b", "c", "d"), ("x", "y")).in_turn()
    assert sorted(order) == ["a", "b", "c", "d", "x", "y"]
    assert {"x"} < set(order[:3])


# The curve.


def test_budgets_grow_and_end_with_everything() -> None:
    assert budgets(2) == [1, 2]
    assert budgets(29) == [1, 3, 10, 29]
    assert budgets(32) == [1, 3, 10, 32]
    assert budgets(100) == [1, 3, 10, 30, 100]


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ({0: 1.0, 1: 0.9, 3: 0.55, 10: 0.5, 30: 0.5}, 3),
        ({0: 1.0, 1: 0.8, 3: 0.7, 10: 0.6, 30: 0.5}, 30),
        ({0: 0.5, 1: 0.6, 3: 0.7}, 0),
        ({0: 0.5, 1: 0.5}, 0),
        ({0: 1.0, 1: None, 3: 0.2}, 3),
        ({0: 1.0}, None),
        ({1: 1.0, 3: 0.5}, None),
        ({0: None, 3: 0.5}, None),
    ],
)
def test_the_knee(curve: dict[int, float | None], expected: int | None) -> None:
    assert knee(curve) == expected


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=8), st.floats(0.1, 10.0))
def test_the_knee_is_on_the_curve_and_has_no_unit(values: list[float], scale: float) -> None:
    found = knee(dict(enumerate(values)))
    assert found is not None
    least = min(range(len(values)), key=values.__getitem__)
    assert found <= least
    assert values[found] <= values[0]
    scaled = knee({place: value * 2.0**8 for place, value in enumerate(values)})
    assert scaled == found
    assert scale > 0


def test_the_interval_is_around_the_error() -> None:
    samples = make_samples(12, 4)
    own = samples.take(samples.device == 0)
    factor = np.exp(np.random.default_rng(0).normal(0, 0.3, len(own)))
    found = judged(own, own.latency_s * factor)
    assert found["mape_low"] < found["mape"] < found["mape_high"]
    assert found["n"] == len(own)


# The micro-benchmarks.


def test_arrays_do_not_fit_the_caches_but_the_memory() -> None:
    assert 3 * array_bytes(CPU) >= 4 * (8 << 20)
    large = replace(CPU, l3_bytes=512 << 20, mem_bytes=1 << 40)
    assert 3 * array_bytes(large) >= 2 * (512 << 20)
    small = replace(CPU, mem_bytes=64 << 20)
    assert 3 * array_bytes(small) <= (64 << 20) // 4


@pytest.mark.parametrize(
    ("bandwidth", "peak", "what"),
    [
        (0.0, 1e11, "bandwidth"),
        (1e15, 1e11, "bandwidth"),
        (1e10, 1.0, "peak"),
        (1e10, 9e13, "peak"),
    ],
)
def test_implausible_rates_are_refused(bandwidth: float, peak: float, what: str) -> None:
    with pytest.raises(DeviceError, match=what):
        check_plausible(Benchmarks(bandwidth, peak, 1), CPU)
    check_plausible(Benchmarks(1e10, 1e11, 1), CPU)


def test_measured_rates_have_sources_and_the_driver_does_not_overrule() -> None:
    gpu = DeviceSpec("box", "gpu", mem_bytes=5)
    spec = with_measured(gpu, Benchmarks(1e12, 2e13, 3 << 20, {"mem_bytes": 7, "core_count": 58}))
    assert (spec.mem_bytes, spec.core_count) == (5, 58)
    assert (spec.mem_bandwidth_bytes_per_s, spec.peak_fp32_flop_per_s) == (1e12, 2e13)
    assert spec.sources["mem_bandwidth_bytes_per_s"].startswith("measured: c = a + b")
    assert spec.sources["core_count"] == "driver, by TVM's runtime"


@pytest.mark.slow
@pytest.mark.tvm
def test_the_micro_benchmarks_run_on_this_cpu() -> None:
    target = {"kind": "llvm", "mcpu": "core-avx2"}
    measured = run_benchmarks(CPU, target)
    assert 1e8 < measured.bandwidth_bytes_per_s < 1e12
    assert 1e9 < measured.peak_flop_per_s < 5e11
    with pytest.raises(DeviceError, match="micro-benchmarks of box failed"):
        run_benchmarks(CPU, {"kind": "nonsense"})


# All of it, with programs that are not run.


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset in Tenset's layout, a small model, and a machine."""
    return child.make_setting(tmp_path_factory.mktemp("device-add"))


@pytest.fixture(scope="module")
def added(setting: Path) -> tuple[Path, Any, dict[str, Any]]:
    folder = setting / "runs" / "my-box"
    with pytest.MonkeyPatch.context() as patch:
        result, curve = child.add(setting, folder, patch.setattr)
    return folder, result, curve


def test_it_leaves_a_run_folder_that_knows_the_device(
    added: tuple[Path, Any, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    from cdmpp.cli.main import main

    folder, result, curve = added
    assert result is not None
    assert json.loads((folder / CURVE_FILE).read_text()) == json.loads(json.dumps(curve))
    assert read_device_file(folder / "devices" / "my-box.yaml").devices["my-box"].threads == 2
    assert main(["device", "show", "my-box", "--run", str(folder), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["peak_fp32_flop_per_s"] == child.PEAK
    # Times are those of a quiet core, as in the training data.
    assert json.loads((folder / MEASUREMENTS / "manifest.json").read_text())["slowdown"] >= 1.0
    assert set(shown["sources"]) == set(curve["spec"])
    words = ["evaluate", "--model", str(folder), "--dataset", str(folder / MEASUREMENTS), "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["by_device"]) == ["my-box"]
    assert "not in the registry" not in captured.err


def test_the_curve_has_every_start_and_no_judging_task_was_learned_from(
    added: tuple[Path, Any, dict[str, Any]],
) -> None:
    folder, _, curve = added
    plan = json.loads((folder / "plan.json").read_text())
    card = json.loads((folder / "model.json").read_text())
    assert not {task_digest(name) for name in plan["test"]} & set(card["training_tasks"])
    assert {task_digest(name) for name in plan["learn"]} <= set(card["training_tasks"])
    last = curve["rows"][-1]
    assert last["tasks"] == len(plan["learn"])
    for start in ("pretrained", "scratch", "trees", "one_factor"):
        assert last[start]["mape"] >= 0.0
    first = curve["rows"][0]
    assert (first["tasks"], first["scratch"], first["one_factor"]) == (0, None, None)
    assert first["pretrained"]["mape"] > 0.0
    assert curve["knee"]["tasks"] in [row["tasks"] for row in curve["rows"]]


def test_what_reads_machine_code_is_adapted_too(
    added: tuple[Path, Any, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    from cdmpp.cli.main import main

    folder, result, curve = added
    reader = CodeModel.load(folder)
    assert reader is not None
    assert list(reader.of_device) == ["my-box"]
    assert json.loads(reader.targets["my-box"])["num-cores"] == 2
    assert {RECORDED, "my-box"} == set(reader.targets)
    (table,) = read_machine_code(folder / MEASUREMENTS)
    assert sorted(table.columns) == sorted(measured_ids(folder / MEASUREMENTS))
    assert curve["compiled"]["mape"] >= 0.0
    known_s = result.predicted_s[COMPILED]
    assert np.isfinite(known_s).all()
    assert (known_s != result.predicted_s[FINE_TUNED]).all()
    assert main(["device", "curve", str(folder)]) == 0
    assert "With the machine code of the programs" in capsys.readouterr().out


def test_the_same_command_again_finds_everything_done(
    added: tuple[Path, Any, dict[str, Any]], setting: Path
) -> None:
    folder, _, curve = added
    result, again = add_device(child.options(setting), child.forbidden, folder)
    assert result is None
    assert again["rows"] == read_curve(folder)["rows"] == json.loads(json.dumps(curve["rows"]))
    with pytest.raises(UsageError, match="other options"):
        add_device(replace(child.options(setting), seed=3), child.forbidden, folder)


def test_page_table_and_plot(
    added: tuple[Path, Any, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    from cdmpp.cli.main import main
    from cdmpp.report.device_curve import curve_svg

    folder, _, curve = added
    assert main(["device", "curve", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Knee at" in text
    assert "from scratch" in text
    assert main(["device", "curve", str(folder), "--markdown"]) == 0
    page = capsys.readouterr().out
    assert page.count("| 0 | ") == 1
    assert "measured: c = a + b" in page
    assert curve_svg(curve).startswith("<svg")


@pytest.mark.exhaustive
def test_after_a_kill_the_same_command_goes_on(setting: Path) -> None:
    folder = setting / "runs" / "killed"
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "CDMPP_FAKE": json.dumps({"pause": "0.3"})
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tvm_helper.device_add.child", str(setting), str(folder)],
        env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    journal = folder / MEASUREMENTS
    deadline = time.monotonic() + 300
    while len(measured_ids(journal)) < 3:
        assert process.poll() is None, "ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = measured_ids(journal)
    probed = (folder / "devices" / "my-box.yaml").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        result, curve = child.add(setting, folder, patch.setattr, peak=1e9)
    assert result is not None
    after = measured_ids(journal)
    assert after[: len(before)] == before, "nothing is measured twice or lost"
    assert len(after) == len(set(after)) > len(before)
    assert (folder / "devices" / "my-box.yaml").read_bytes() == probed
    assert curve["rows"][-1]["pretrained"] is not None


def measured_ids(folder: Path) -> list[str]:
    return [e["program_id"] for e in read_journal(folder) if e["kind"] == "measured"]


@pytest.mark.exhaustive
def test_nothing_measured_is_told(setting: Path) -> None:
    every = {"pause": "0", **dict.fromkeys(child.program_ids(setting), "run-fail")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDMPP_FAKE", json.dumps(every))
        with pytest.raises(DeviceError, match=r"consecutive failures|could be measured"):
            child.add(setting, setting / "runs" / "failing", patch.setattr)
