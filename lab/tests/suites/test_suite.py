"""The grid of a suite: resumption, failures, inapplicable cells, and the cross-device protocol."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.calibration.intervals import INTERVAL_METRICS, calibrate
from cdmpp.config import dump_text
from cdmpp.errors import DataError, NotApplicableError, UsageError
from cdmpp.models.constant import ConstantCostModel
from cdmpp.models.roofline import RooflineCostModel
from cdmpp.testing.synthetic import FLOAT_ADD, make_samples
from cdmpp.training.finetune.one_factor import fit_one_factor
from cdmpp.training.options import TrainOptions
from lab.suites.cell_store import CellResult, read_cells, read_facts, write_facts
from lab.suites.judge import errors_by_unit, judge_everywhere
from lab.suites.model_cell import add_intervals
from lab.suites.options import (
    ZERO_LAYERS,
    SuiteModel,
    SuiteOptions,
    cell_options,
    configs_dir,
    load_suite,
    one_dataset_suite,
)
from lab.suites.plan import (
    DatasetFacts,
    budgets_of,
    dataset_facts,
    headline_budget,
    plan_cells,
)
from lab.suites.run import SuiteProgress, run_cells, select_cells
from lab.tests.suites.suites import CROSS_DEVICE, CROSS_MODEL, load_or_die, load_synthetic, plan

FOLDERS = {"synthetic": Path("synthetic")}


def run(suite: SuiteOptions, runs: Path, **options):
    return run_cells(plan(suite), FOLDERS, runs, load=load_synthetic, **{"jobs": 0, **options})


@pytest.fixture(scope="module")
def progress() -> list[SuiteProgress]:
    return []


@pytest.fixture(scope="module")
def finished(tmp_path_factory, progress) -> tuple[Path, dict[str, CellResult]]:
    """The folder and the results of a finished suite."""
    runs = tmp_path_factory.mktemp("finished")
    return runs, run(CROSS_MODEL, runs, on_progress=progress.append)


def test_the_mean_over_devices_has_the_coverage_of_the_devices():
    samples = make_samples(40, 4)
    model = ConstantCostModel()
    model.fit(samples, samples, seed=0)
    predicted_s = model.predict(samples)
    calibration = calibrate(samples, predicted_s)
    assert calibration is not None
    metrics = judge_everywhere(samples, predicted_s)
    add_intervals(metrics, samples, predicted_s, calibration.half_width(samples))
    for name in INTERVAL_METRICS:
        devices = [found[name] for found in metrics["by_device"].values()]
        assert metrics["mean"][name] == pytest.approx(np.mean(devices))
    assert metrics["all"]["interval_coverage"] == pytest.approx(0.9, abs=0.08)


def test_every_cell_is_judged_and_kept(finished, progress):
    folder, results = finished
    assert len(results) == 2 * 6 == len(progress)
    assert {result.status for result in results.values()} == {"ok"}
    value = json.loads((folder / "synthetic-task-s0-gbdt" / "cell.json").read_text())
    metrics = value["metrics"]
    assert set(metrics["by_device"]) == {"fast", "slow"}
    assert {name.partition(":")[0] for name in metrics["by_group"]} == {"operator", "latency"}
    assert metrics["all"]["n"] == sum(m["n"] for m in metrics["by_device"].values())
    devices = [m["mape"] for m in metrics["by_device"].values()]
    assert metrics["mean"]["mape"] == pytest.approx(np.mean(devices))
    assert value["training_cpu_s"] > 0
    assert value["predictions_per_cpu_s"] > 0
    assert (folder / "synthetic-task-s0-gbdt" / "predictions.parquet").exists()
    assert progress[-1].done == progress[-1].total
    assert progress[-1].left_s == 0


def test_a_random_score_has_ranks_near_chance_and_no_times(finished):
    _, results = finished
    metrics = results["synthetic-task-s0-random-score"].value["metrics"]
    places = [metrics["all"], metrics["mean"], *metrics["by_device"].values()]
    for found in [*places, *metrics["by_group"].values()]:
        assert found["mape"] is found["rmse_s"] is found["within_20pct"] is None
        assert found["n"] > 0
    constant = results["synthetic-task-s0-constant"].value["metrics"]["all"]
    assert abs(metrics["all"]["spearman_by_task"]) < 0.4
    assert metrics["all"]["spearman_by_task"] != 0
    assert metrics["all"]["top1_score"] == pytest.approx(constant["top1_score"], abs=0.2)
    other = results["synthetic-task-s1-random-score"].value["metrics"]["all"]
    assert other["spearman_by_task"] != metrics["all"]["spearman_by_task"]


def test_errors_by_workload_add_up_to_the_error_of_a_device(finished):
    value = finished[1]["synthetic-task-s0-constant"].value
    for device, found in value["metrics"]["by_device"].items():
        n, ape = np.sum(list(value["errors"][device].values()), axis=0)
        assert n == found["n"]
        assert ape / n == pytest.approx(found["mape"])
    assert len(value["errors"]["fast"]) == value["metrics"]["by_device"]["fast"]["tasks"]


def test_errors_of_held_out_networks_are_by_network():
    samples = make_samples(20, 4)
    networks = [["net_a,[(1, 3)]"], ["net_b,[(1, 3)]", "net_a,[(2, 3)]"]]
    programs = replace(
        samples.programs,
        networks=[[(name, 1.0) for name in networks[t % 2]] for t in range(20)],
    )
    samples = replace(samples, programs=programs)
    found = errors_by_unit(samples, samples.latency_s, ["net_a", "net_b"])
    assert set(found["fast"]) == {"net_a"}
    odd = samples.take(samples.task_id % 2 == 1)
    found = errors_by_unit(odd, 1.5 * odd.latency_s, ["net_b"])
    assert set(found["fast"]) == {"net_b"}
    n, ape = found["fast"]["net_b"]
    assert n == np.sum(odd.device == [spec.name for spec in odd.devices].index("fast"))
    assert ape == pytest.approx(0.5 * n)


def test_a_page_of_the_transformer_has_a_line_without_its_encoder():
    lines = one_dataset_suite("by-task", "x", TrainOptions(), [0]).models
    assert [line.name for line in lines][:2] == ["transformer", ZERO_LAYERS.name]
    options = cell_options(CROSS_MODEL, ZERO_LAYERS.kind, settings=ZERO_LAYERS.settings)
    assert options.transformer.network.layers == 0
    gbdt = TrainOptions(model="gbdt", baselines=("constant",))
    assert ZERO_LAYERS not in one_dataset_suite("by-task", "x", gbdt, [0]).models


def test_finished_cells_are_used_again_and_a_lost_one_is_run(finished, tmp_path, monkeypatch):
    folder, first = finished
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "synthetic-task-s1-constant" / "cell.json").unlink()
    fitted = []
    fit = ConstantCostModel.fit

    def counted(self, *args, **kwargs):
        fitted.append(1)
        return fit(self, *args, **kwargs)

    monkeypatch.setattr(ConstantCostModel, "fit", counted)
    again = run(CROSS_MODEL, tmp_path)
    assert len(fitted) == 1
    assert {k: r.value["metrics"] for k, r in again.items()} == {
        k: r.value["metrics"] for k, r in first.items()
    }


def test_other_options_run_only_the_cells_that_they_change(finished):
    changed = replace(CROSS_MODEL, settings=(*CROSS_MODEL.settings, "gbdt.trees=6"))
    kept = read_cells(finished[0], plan(changed))
    assert len(kept) == 10
    assert not any("gbdt" in name for name in kept)


def test_a_failed_cell_stops_nothing_and_is_tried_again(tmp_path, monkeypatch):
    def broken(self, *args, **kwargs):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(RooflineCostModel, "fit", broken)
        results = run(CROSS_MODEL, tmp_path)
    failed = [result for result in results.values() if result.status == "failed"]
    assert {result.cell.line for result in failed} == {"roofline"}
    assert "out of luck" in failed[0].reason
    assert len(results) == 12
    assert {result.status for result in run(CROSS_MODEL, tmp_path).values()} == {"ok"}


def test_what_does_not_apply_is_said_and_not_tried_again(tmp_path, monkeypatch):
    def refuses(self, *args, **kwargs):
        raise NotApplicableError("these programs have no schedule steps")

    with monkeypatch.context() as patch:
        patch.setattr(RooflineCostModel, "fit", refuses)
        results = run(CROSS_MODEL, tmp_path)
    assert results["synthetic-task-s0-roofline"].status == "not-applicable"
    again = run(CROSS_MODEL, tmp_path)
    assert again["synthetic-task-s0-roofline"].reason == "these programs have no schedule steps"


def test_predictions_that_no_metric_is_defined_on_fail_the_cell(tmp_path, monkeypatch):
    def diverged(self, samples):
        return np.full(len(samples), np.nan)

    monkeypatch.setattr(RooflineCostModel, "predict", diverged)
    results = run(CROSS_MODEL, tmp_path)
    assert results["synthetic-task-s0-roofline"].status == "failed"
    assert "not positive finite" in results["synthetic-task-s0-roofline"].reason


@pytest.mark.exhaustive
@pytest.mark.slow
def test_processes_give_what_one_process_gives(tmp_path):
    here = run(CROSS_MODEL, tmp_path / "here")
    there = run(CROSS_MODEL, tmp_path / "there", jobs=2)
    assert {k: r.value["metrics"] for k, r in here.items()} == {
        k: r.value["metrics"] for k, r in there.items()
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_process_that_dies_loses_only_its_cell(tmp_path):
    suite = replace(CROSS_MODEL, seeds=(0,), models=(SuiteModel("gbdt"),))
    facts = dataset_facts(load_synthetic(Path()))
    cells = plan_cells(suite, {"synthetic": facts, "elsewhere": facts})
    cells = [cell for cell in cells if cell.line == "gbdt"]
    folders = {"synthetic": Path("synthetic"), "elsewhere": Path("deadly")}
    results = run_cells(cells, folders, tmp_path, load=load_or_die, jobs=2)
    assert results["synthetic-task-s0-gbdt"].status == "ok"
    assert results["elsewhere-task-s0-gbdt"].status == "failed"
    assert "died" in results["elsewhere-task-s0-gbdt"].reason


def test_a_pattern_chooses_cells_and_what_they_need():
    cells = plan(CROSS_DEVICE)
    chosen = select_cells(cells, "*-slow-s0-b3-one-factor")
    assert [cell.line for cell in chosen] == ["pretrain", "one-factor"]
    assert chosen[1].needs == chosen[0].id
    with pytest.raises(UsageError, match="no cell matches"):
        select_cells(cells, "nothing-like-this")


def test_plan_of_a_left_out_device():
    cells = {cell.id: cell for cell in plan(CROSS_DEVICE)}
    assert {cell.budget for cell in cells.values()} == {0, 1, 3}  # 30 is above half of 20 tasks
    pretrain = [cell for cell in cells.values() if cell.line == "pretrain"]
    assert {cell.sources for cell in pretrain} == {("fast",), ("slow",)}
    assert cells["synthetic-pair-slow-s0-b3-one-factor"].sources == ("fast",)
    assert cells["synthetic-slow-s0-b3-constant-budget"].sources == ()
    order = [cell.id for cell in plan(CROSS_DEVICE)]
    assert all(order.index(c.needs) < order.index(c.id) for c in cells.values() if c.needs)


def test_further_samplers_run_at_one_budget():
    methods = ("finetune-kmeans", "finetune-random", "scratch")
    cells = plan(replace(CROSS_DEVICE, methods=methods))
    found = [(c.line, c.budget) for c in cells if c.target == "slow" and c.budget]
    assert sorted(found) == [
        ("finetune-kmeans", 1), ("finetune-kmeans", 3), ("finetune-random", 3), ("scratch", 1),
        ("scratch", 3),
    ]  # fmt: skip


def test_budgets_above_half_of_the_tasks_are_left_out():
    facts = DatasetFacts("", {"t4": 7, "v100": 100, "tiny": 1})
    suite = replace(CROSS_DEVICE, budgets=(0, 1, 3, 10, 30), sampler_budget=10)
    assert budgets_of(suite, facts, "t4") == [1, 3]
    assert headline_budget(suite, facts, "t4") == 3
    assert headline_budget(suite, facts, "v100") == 10
    assert headline_budget(suite, facts, "tiny") == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_cross_device_cells_run(tmp_path):
    results = run(CROSS_DEVICE, tmp_path)
    assert {r.status for r in results.values()} == {"ok"}, [r.reason for r in results.values()]
    value = results["synthetic-pair-slow-s0-b3-one-factor"].value
    assert value["nearest"] == "fast"
    sizes = value["budget"]["train"]["samples"] + value["budget"]["validation"]["samples"]
    assert sizes == 3 * 5
    assert value["parts"]["candidates"]["tasks"] == value["parts"]["test"]["tasks"] == 10
    zero_shot = results["synthetic-pair-slow-s0-b0-zero-shot"].value["metrics"]["all"]
    assert zero_shot["n"] == value["metrics"]["all"]["n"] == 50
    assert (tmp_path / results["synthetic-pair-slow-s0-b0-zero-shot"].cell.needs).is_dir()


def test_what_needs_a_failed_model_fails_too(tmp_path, monkeypatch):
    from cdmpp.models.transformer import TransformerCostModel

    def broken(self, *args, **kwargs):
        raise DataError("no such luck")

    monkeypatch.setattr(TransformerCostModel, "fit", broken)
    results = run(CROSS_DEVICE, tmp_path)
    assert results["synthetic-pair-slow-s0-b0-zero-shot"].status == "failed"
    assert "no such luck" in results["synthetic-pair-slow-s0-b0-zero-shot"].reason
    assert results["synthetic-slow-s0-b3-constant-budget"].status == "ok"


class Twin(ConstantCostModel):
    """Predicts `fast` exactly, and one latency for all programs on `odd`."""

    def predict(self, samples):
        names = np.array([spec.name for spec in samples.devices], object)[samples.device]
        flops = np.exp2(samples.programs.leaf_features[:, FLOAT_ADD]).astype(np.float64)
        total = np.add.reduceat(flops, samples.programs.leaf_offset[:-1])[samples.program]
        return np.where(names == "fast", total, 1.0)


def test_one_factor_takes_the_device_that_fits_the_budget_best():
    samples = load_synthetic(Path())
    odd = replace(samples.devices[0], name="odd")
    samples = replace(samples, devices=(*samples.devices, odd))
    target = samples.take(samples.device == 1)
    true_s = Twin().predict(replace(target, device=target.device * 0))
    target = replace(target, latency_s=7.5 * true_s)
    assert fit_one_factor(Twin(), target, ("odd", "fast")) == ("fast", pytest.approx(7.5))


def test_facts_of_earlier_data_sets_stay(tmp_path):
    write_facts(tmp_path, {"a": DatasetFacts("1", {"x": 3})})
    write_facts(tmp_path, {"b": DatasetFacts("2", {"y": 4})})
    assert read_facts(tmp_path) == {
        "a": DatasetFacts("1", {"x": 3}),
        "b": DatasetFacts("2", {"y": 4}),
    }
    with pytest.raises(DataError, match="without --report-only"):
        read_facts(tmp_path / "nowhere")


def test_shipped_suites_load_and_name_known_kinds():
    from cdmpp.models.registry import MODEL_CLASSES

    for path in (configs_dir() / "suites").glob("*.yaml"):
        suite = load_suite(path.stem)
        assert suite.name == path.stem
        if suite.subject in MODEL_CLASSES:
            cell_options(suite, suite.subject)


def test_suites_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'cross-model'"):
        load_suite("cross-modle")
    path = tmp_path / "x.yaml"
    path.write_text(dump_text(replace(CROSS_MODEL, subject="mlp")))
    with pytest.raises(UsageError, match="include 'mlp'"):
        load_suite(str(path))
    path.write_text(dump_text(replace(CROSS_DEVICE, budgets=(1, 3))))
    with pytest.raises(UsageError, match="include 0"):
        load_suite(str(path))
    for method in ("guess", "finetune-guess", "guess-budget"):
        path.write_text(dump_text(replace(CROSS_DEVICE, methods=(method,))))
        with pytest.raises(UsageError, match=f"unknown method '{method}', expected zero-shot"):
            load_suite(str(path))


def test_the_cpu_limit_reaches_the_loop():
    options = cell_options(CROSS_MODEL, "transformer", cpu_s=7.0)
    assert options.transformer.loop.cpu_seconds == 7.0
    assert options.transformer.loop.epochs == 1
    assert cell_options(CROSS_MODEL, "gbdt", cpu_s=7.0).gbdt.trees == 5


def test_trainings_on_a_budget_have_settings_of_their_own():
    suite = replace(
        CROSS_DEVICE,
        methods=("scratch", "zero-shot"),
        budget_settings=("transformer.loop.epochs=77",),
    )
    cells = {cell.id: cell for cell in plan(suite)}
    assert cells["synthetic-slow-s0-b3-scratch"].key["options"]["loop"]["epochs"] == 77
    pretrain = next(cell for cell in cells.values() if cell.line == "pretrain")
    assert pretrain.key["options"]["loop"]["epochs"] == 1


@pytest.mark.exhaustive
def test_fine_tuning_cells_say_what_was_kept(tmp_path):
    suite = replace(
        CROSS_DEVICE,
        methods=("finetune-random",),
        budgets=(0, 3),
        finetune={"steps": 2, "validate_every": 1, "folds": 2},
    )
    results = run(suite, tmp_path)
    assert {r.status for r in results.values()} == {"ok"}, [r.reason for r in results.values()]
    value = results["synthetic-pair-slow-s0-b3-finetune-random"].value
    assert value["kept"] in ("unchanged", "shifted", "tuned")
    assert set(value["steps"]) == ({"adapters", "all"} if value["kept"] == "tuned" else set())
    other = plan(replace(suite, finetune={"steps": 3}))
    assert len(read_cells(tmp_path, other)) == len(results) - 2, "options of the fine-tuning count"
