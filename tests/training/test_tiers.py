"""Both tiers of a model, judged on measured programs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.metrics import mean_over_owners
from cdmpp.models.constant import ConstantCostModel
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.machine_code.model import CodeCalibration, CodeModel, CodeRows
from cdmpp.predict.saved_model import ModelCard
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.report.tables import text_table
from cdmpp.report.tier_tables import tier_tables
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.evaluate import evaluate
from cdmpp.training.tiers import tier_figures

_TARGET = '{"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}'
_FACTOR, _HALF_WIDTH = 1.25, 0.2


class Knowing(CodeModel):
    """Says 1.25 times what was measured."""

    def parts_log_s(self, rows: CodeRows) -> Any:
        return rows.log_s + math.log(_FACTOR), rows.log_s


def _trained(samples: Any, targets: dict[str, str]) -> TrainedModel:
    model = ConstantCostModel()
    model.fit(samples, samples, seed=0)
    card = ModelCard("constant", {}, "", {}, samples.devices, frozenset(), {})
    nothing: Any = None
    calibration = CodeCalibration(1.0, 0.0, _HALF_WIDTH)
    reader = Knowing(targets, {"leaf": 1}, nothing, nothing, calibration, None)
    reader.feature_schema = samples.programs.feature_schema
    return TrainedModel(model, card, None, reader)


def _code(samples: Any, label: str, target: str = _TARGET) -> MachineCode:
    names = samples.programs.program_id[samples.program]
    row = np.ones(len(MACHINE_CODE_NAMES), np.float32)
    return MachineCode({label: target}, {str(name): row for name in names})


def test_both_tiers_are_what_a_reader_would_work_out() -> None:
    samples = make_samples(6, 4)
    samples = samples.take(samples.device == 0)
    measured = np.array([2e-6, 5e-5, 3e-4, 5e-3, 0.02, 0.04] * 4)[: len(samples)]
    samples = replace(samples, latency_s=measured)
    coded = samples.take(samples.task_id < 4)
    trained = _trained(samples, {"fast": _TARGET})
    tiers = evaluate(trained, samples, code=[_code(coded, "fast")])["tiers"]
    said = trained.estimate(samples).latency_s
    errors = [abs(one - truth) / truth for one, truth in zip(said, measured, strict=True)]
    logs = [abs(math.log(one / truth)) for one, truth in zip(said, measured, strict=True)]
    fast, compiled = tiers["fast"], tiers["compiled"]
    assert fast["n"] == 24
    assert fast["mape"] == pytest.approx(sum(errors) / 24)
    assert fast["median_ape"] == pytest.approx(sum(sorted(errors)[11:13]) / 2)
    assert fast["mean_log_error"] == pytest.approx(sum(logs) / 24)
    assert fast["median_ratio"] == pytest.approx(np.median(said / measured))
    assert fast["inside_interval"] is fast["interval_factor"] is fast["out_of_distribution"] is None
    low, high = fast["mape_interval"]
    assert low < fast["mape"] < high
    assert (compiled["n"], compiled["tasks"]) == (16, 4)
    assert tiers["fast_of_compiled"]["n"] == 16
    assert tiers["fast_of_compiled"]["mape"] == pytest.approx(np.mean(errors[:16]))
    assert compiled["mape"] == pytest.approx(_FACTOR - 1)
    assert compiled["mean_log_error"] == pytest.approx(math.log(_FACTOR))
    assert compiled["mape_interval"] is None  # of four tasks
    by_time = {name: found["n"] for name, found in fast["by_time"].items()}
    assert by_time == {
        "under 10 µs": 4, "10 to 100 µs": 4, "0.1 to 1 ms": 4, "1 to 10 ms": 4, "over 10 ms": 8,
    }  # fmt: skip
    assert {name: found["n"] for name, found in compiled["by_operator"].items()} == {"dense": 16}
    whole, parts = (text_table(table) for table in tier_tables(tiers))
    assert re.search(r"MAPE +\d+\.\d % \[.+\] +25\.0 %\n", whole)
    assert "24 / 16" in parts


def test_intervals_hold_what_lies_in_them() -> None:
    samples = make_samples(6, 4)
    samples = samples.take(samples.device == 0)
    trained = _trained(samples, {"fast": _TARGET})
    found = trained.estimate(samples)
    low_s = np.where(np.arange(24) < 18, samples.latency_s, 2 * samples.latency_s)
    found = replace(found, low_s=low_s, high_s=4 * low_s)
    figures = tier_figures(samples, replace(found, is_far=np.arange(24) < 6))
    assert figures["inside_interval"] == 18 / 24
    assert figures["interval_factor"] == pytest.approx(2.0)
    assert figures["out_of_distribution"] == 6 / 24


@pytest.mark.parametrize(
    ("label", "target", "is_read"),
    [
        ("fast", _TARGET, True),
        ("slow", _TARGET.replace("2}", "1}"), True),  # another CPU of the same instructions
        ("slow", '{"kind": "llvm", "mcpu": "core-avx2"}', False),
        ("fast", '{"kind": "llvm", "mcpu": "core-avx2"}', False),
        ("fast", "damaged", False),
    ],
)
def test_only_code_that_predict_would_read_counts(label: str, target: str, is_read: bool) -> None:
    samples = make_samples(6, 4)
    samples = samples.take(samples.device == ["fast", "slow"].index(label))
    trained = _trained(samples, {"fast": _TARGET})
    tiers = evaluate(trained, samples, code=[_code(samples, label, target)])["tiers"]
    assert (tiers["compiled"] is not None) == is_read
    assert "fast_of_compiled" not in tiers


def test_tasks_are_drawn_and_not_programs() -> None:
    values, owner = np.repeat([0.0, 1.0], 150), np.repeat([3, 7, 8, 9, 10, 11], 50)
    mean, interval = mean_over_owners(values, owner)
    assert (mean, interval) == (0.5, pytest.approx((1 / 6, 5 / 6)))
    assert mean_over_owners(values[:250], owner[:250]) == (0.4, None)
    rng = np.random.default_rng(1)
    normal = rng.normal(size=400)
    mean, interval = mean_over_owners(normal, np.arange(400))
    assert interval is not None
    assert mean == pytest.approx(normal.mean())
    half = 1.96 * normal.std() / 20
    assert interval == pytest.approx((mean - half, mean + half), abs=0.012)
