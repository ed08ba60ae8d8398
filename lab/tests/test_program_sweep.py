"""A part of the sweep over generated programs has no wrong outcome."""

from __future__ import annotations

import math
from itertools import islice

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.predict.prediction import Prediction
from lab.experiments.program_sweep import DEVICES, WRONG, Case, ask, cases, least_s, outcome
from tvm_helper.predict.predictor import Predictor

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor("pretrained", DEVICES)


def _is_on_matrix_units(case: Case) -> bool:
    return case.dtype in ("float16", "int8") and "product" in case.name and "written" in case.name


@pytest.mark.exhaustive
def test_a_part_of_the_sweep_is_right_marked_or_refused(predictor: Predictor) -> None:
    # DLight needs TVM's matrix intrinsics for some, whose import takes 5 seconds.
    plain = (one for one in cases(1, [3_000_000]) if not _is_on_matrix_units(one))
    counts, wrong, _, asked = ask(predictor, islice(plain, 0, None, 6))
    assert wrong == []
    assert asked == sum(counts.values()) / 2 > 20
    assert sum(counts[name, "refused"] for name in DEVICES) < asked


@pytest.mark.exhaustive
def test_a_product_on_matrix_units_is_bounded_by_its_source(predictor: Predictor) -> None:
    units = [one for one in cases(1, [1 << 24]) if _is_on_matrix_units(one)]
    _, wrong, reasons, asked = ask(predictor, units)
    assert (wrong, asked) == ([], 3)
    assert sum(count for reason, count in reasons.items() if "tvm_mma_sync" in reason) == 3


def test_wrong_answers_are_found(predictor: Predictor) -> None:
    cpu, gpu = predictor.devices
    case = Case("product", None, 2.0 * 4096**3, "float32", 12.0 * 4096**2, math.inf, ("gpu",))
    assert least_s(case, gpu) == pytest.approx(2 * 4096**3 / 19.49184e12)

    def what(latency_s: float | None, low_s: float, high_s: float) -> str:
        return outcome(case, gpu, Prediction("p", gpu.name, latency_s, low_s, high_s))

    assert what(9e-3, 8e-3, 10e-3) == "answered"
    assert [
        what(9e-3, 6e-3, 10e-3), what(9e-3, 9.5e-3, 10e-3), what(22.3, 8e-3, 30.0),
        what(None, 0.0, 0.0),
    ] == [WRONG[0], WRONG[1], WRONG[2], WRONG[4]]  # fmt: skip
    assert outcome(case, cpu, Prediction("p", cpu.name, reasons=("no GPU",))) == "refused"
