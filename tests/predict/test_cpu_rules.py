"""What holds on CPUs by rule: programs of one thread, and strides that share a set of a cache."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.cpu_rules import (
    ONE_THREAD,
    SAME_SET,
    SAME_SET_FACTOR,
    erf_note,
    erf_s,
    on_one_thread,
    shares_set,
)
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.prediction import estimated_samples
from cdmpp.programs.added_columns import LEAF_EXTRA_NAMES
from cdmpp.programs.loops.expr import Buffer, Expr
from cdmpp.programs.loops.loop_tree import Loop, LoopKind, LoopTree, Store
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.programs.schema import LEAF_FEATURE_NAMES
from cdmpp.testing.synthetic import make_samples
from tests.predict.test_estimates import trained

TWO, ONE = get_device("epyc-avx512-2c"), get_device("epyc-avx512-1c")
NEW = {"leaf": 1, "leaf_extra": 5}
PARALLEL = LEAF_FEATURE_NAMES.index("parallel_num")


class ByThreads(type(trained(1.0, ()).model)):  # type: ignore[misc]
    """Says the threads of a device in seconds."""

    def predict(self, samples: Samples) -> Any:
        return np.array([float(spec.threads or 0) for spec in samples.devices])[samples.device]


def model(*devices: DeviceSpec) -> TrainedModel:
    return replace(trained(1.0, devices), model=ByThreads(1.0))


def programs(device: DeviceSpec) -> Samples:
    """Four programs, of which the first has a parallel loop."""
    samples = make_samples(2, 2)
    leaves = samples.programs.leaf_features.copy()
    leaves[0, PARALLEL] = 1.0
    return replace(
        samples, programs=replace(samples.programs, leaf_features=leaves), program=np.arange(4),
        device=np.zeros(4, np.int64), devices=(device,), latency_s=samples.latency_s[:4],
    )  # fmt: skip


def test_a_program_without_a_parallel_loop_is_asked_of_the_label_of_one_thread() -> None:
    known, asked = model(ONE, TWO), programs(TWO)
    found = known.estimate(asked)
    assert found.latency_s.tolist() == [2, 1, 1, 1]
    assert known.predict(asked).tolist() == [2, 1, 1, 1]
    rows = estimated_samples(asked, found)
    assert {row.device for row in rows} == {TWO.name}
    assert [ONE_THREAD in row.note for row in rows] == [False, True, True, True]
    alone = known.estimate(programs(ONE))
    assert np.array_equal(found.high_s[1:], alone.high_s[1:])
    assert alone.on_one_thread is not None
    assert not alone.on_one_thread.any()


def test_a_device_that_was_not_trained_on_gives_a_share_of_its_peak() -> None:
    own = replace(TWO, name="own", core_count=8, threads=8, peak_fp32_flop_per_s=8e11)
    told = on_one_thread(programs(own), model(ONE, TWO).card)
    assert [told.devices[index].threads for index in told.device] == [8, 1, 1, 1]
    assert told.devices[1] == replace(own, threads=1, peak_fp32_flop_per_s=1e11)
    found = model(ONE, TWO).estimate(programs(own))
    assert found.is_new_device.all()


@pytest.mark.parametrize("adapted", [(), (TWO.name,)])
def test_what_was_learned_without_such_a_label_stays(adapted: tuple[str, ...]) -> None:
    card = model(TWO, *((ONE,) if adapted else ())).card
    asked = programs(TWO)
    assert on_one_thread(asked, replace(card, adapted=frozenset(adapted))) is asked


def _strided() -> Samples:
    """Three programs, the first of which strides over lines of one set."""
    samples = make_samples(1, 3, most_leaves=1, extra=len(LEAF_EXTRA_NAMES))
    extra = samples.programs.leaf_extra.copy()
    extra[:] = 0.0
    values = {"thread_stride.B1.stride": 1024, "dtype.B1.bytes": 4, "lines.traffic_1024k": 1e6,
              "lines.conflict_1024k": 4e6}  # fmt: skip
    for name, value in values.items():
        extra[:, LEAF_EXTRA_NAMES.index(name)] = np.log2(value + 1)
    extra[1, LEAF_EXTRA_NAMES.index("thread_stride.B1.stride")] = np.log2(1032 + 1)
    extra[2, LEAF_EXTRA_NAMES.index("lines.conflict_1024k")] = np.log2(1e6 + 1)
    return replace(
        samples, program=np.arange(3),
        programs=replace(samples.programs, leaf_extra=extra, feature_schema=NEW),
        device=np.zeros(3, np.int64), devices=(ONE,), latency_s=samples.latency_s[:3],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("version", "is_new", "is_wide"), [(4, False, True), (5, False, False), (5, True, True)]
)
def test_strides_that_share_a_set_widen_the_interval_unless_counted_sets_were_learned(
    version: int, is_new: bool, is_wide: bool
) -> None:
    asked = _strided()
    assert shares_set(asked).tolist() == [True, False, False]
    assert not shares_set(replace(asked, devices=(get_device("v100"),))).any()
    known = replace(ONE, name="other") if is_new else ONE
    found = _of_version(model(known), version).estimate(asked)
    ratio = found.high_s / found.latency_s
    assert ratio[0] == pytest.approx((SAME_SET_FACTOR if is_wide else 1) * ratio[1])
    assert np.ptp(found.low_s) == 0
    notes = [SAME_SET in row.note for row in estimated_samples(asked, found)]
    assert notes == [is_wide, False, False]


def _of_version(known: TrainedModel, version: int) -> TrainedModel:
    return replace(
        known, card=replace(known.card, feature_schema={"leaf": 1, "leaf_extra": version})
    )


@pytest.mark.parametrize("counts_sets", [False, True])
def test_machine_code_keeps_the_wide_upper_end_unless_it_counts_sets(counts_sets: bool) -> None:
    """Whether the correction is a step of the estimate or comes after it."""
    asked = _strided()
    reader: Any = SimpleNamespace(
        feature_schema=NEW, leaf_extra_version=5 if counts_sets else 4, strange_factor=None,
        network_widths=None, supports_threads=lambda device: True,
        estimate=lambda rows, **options: (np.full(3, -7.0), np.full(3, 0.5)),
    )  # fmt: skip
    trained = replace(_of_version(model(ONE), 4), code=reader)
    step = MachineCodeCorrection(np.zeros((3, len(MACHINE_CODE_NAMES)), np.float32))
    together = trained.estimate(asked, [step])
    after = step.apply(trained, asked, trained.estimate(asked))
    ratio = after.high_s / after.latency_s
    factor = 1.0 if counts_sets else SAME_SET_FACTOR
    assert ratio[0] == pytest.approx(factor * ratio[1])
    assert after.high_s.tolist() == pytest.approx(together.high_s.tolist())
    for found in (together, after):
        notes = [SAME_SET in row.note for row in estimated_samples(asked, found)]
        assert notes == [not counts_sets, False, False]


def _of_calls(name: str, kind: LoopKind = "parallel") -> LoopTree:
    """Calls a function once for each of 4 x 1,000 elements and uses the result twice."""
    out = Buffer("out", "float32", (4, 1000))
    at = (Expr("var", "int32", (), "i"), Expr("var", "int32", (), "j"))
    call = Expr("call", "float32", (Expr("load", "float32", at, out),), name)
    store = Store(out, at, Expr("add", "float32", (call, call)))
    inner = Loop("j", 0, 1000, "serial", [store])
    return LoopTree((out,), [Loop("i", 0, 4, kind, [inner])])


def test_erf_of_other_arguments_takes_longer() -> None:
    cpu = replace(TWO, clock_hz=2e9, threads=2)
    found = erf_s(_of_calls("tir.erf"), cpu)
    assert 4000 / 2 * 1e-8 < found < 4000 / 2 * 3e-8
    assert erf_s(_of_calls("tir.erf", "serial"), cpu) == pytest.approx(2 * found)
    assert erf_s(_of_calls("tir.erf"), replace(cpu, threads=64)) == pytest.approx(found / 2)
    assert erf_s(_of_calls("tir.erf"), replace(cpu, clock_hz=4e9)) == pytest.approx(found / 2)
    assert erf_s(_of_calls("tir.exp"), cpu) == 0
    assert erf_s(_of_calls("tir.erf"), get_device("t4")) == 0


def test_little_erf_is_not_mentioned() -> None:
    assert "up to 1.00 ms longer" in erf_note(1e-3, 1e-2)
    assert erf_note(1e-3, 1.0) == erf_note(0.0, 1e-2) == erf_note(1e-3, None) == ""
