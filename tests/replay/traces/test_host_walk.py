"""The walk of a training iteration: published golden values, and what the later version adds."""

from __future__ import annotations

import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.replay.traces.iteration_walk import (
    KERNEL_EXTRA_US,
    WalkedKernel,
    WalkedOperator,
    WalkOptions,
    slowest,
    walk,
)
from cdmpp.replay.traces.overheads import HostOverheads, Overhead, mean_overhead

LAUNCH, COPY = "cudaLaunchKernel", "cudaMemcpyAsync"


def table(**values: float) -> dict[str, Overhead]:
    return {name.replace("__", "."): Overhead(value, 1) for name, value in values.items()}


#: As the reference's repository prints them for DLRM's default model.
PUBLISHED = HostOverheads(
    t1=Overhead(14.592929292929293, 1),
    t2=table(linear=71.8, to=27.571428571428573),
    t3=table(linear=14.616666666666667, to=197.45714285714286),
    t4={LAUNCH: Overhead(10.8933582787652, 1), COPY: Overhead(17.1375, 1)},
    t5=table(linear=37.733333333333334, empty=3.0, ones=22.0, zeros=17.0, view=5.0),
)
TO = WalkedOperator("to", (COPY,), (WalkedKernel(None),))
LINEAR = WalkedOperator("linear", (LAUNCH, LAUNCH), (WalkedKernel(12.0), WalkedKernel(30.0)))


def test_the_published_run_step_by_step() -> None:
    plain = {name: WalkedOperator(name) for name in ("empty", "ones", "zeros")}
    run = walk(
        [plain["empty"], plain["ones"], plain["zeros"], plain["empty"], TO, TO, TO,
         plain["zeros"], plain["empty"], LINEAR],
        PUBLISHED,
    )  # fmt: skip
    assert [name for name, _ in run.after_us] == [
        "empty", "ones", "zeros", "empty", "to", "to", "to", "zeros", "empty", "linear",
    ]  # fmt: skip
    assert [value for _, value in run.after_us] == pytest.approx(
        [17.59292929292929, 54.18585858585858, 85.77878787878788, 103.37171717171718,
         360.13071789321793, 616.8897186147186, 873.6487193362193, 905.2416486291486,
         922.8345779220779, 1083.3642237725373],
        abs=2e-12,
    )  # fmt: skip


def test_the_device_clock_of_the_reference() -> None:
    run = walk([LINEAR], PUBLISHED)
    first = 14.592929292929293 + 71.8
    second = first + 10.8933582787652 + 37.733333333333334
    assert run.device_us[0] == pytest.approx(second + 10.8933582787652 / 2 + 30.0)
    assert run.active_us == 42.0
    assert run.total_us == run.device_us[0] > run.host_us


def test_a_long_kernel_decides() -> None:
    slow = WalkedOperator("linear", (LAUNCH, LAUNCH), (WalkedKernel(5000.0), WalkedKernel(30.0)))
    run = walk([slow], PUBLISHED)
    begin = 14.592929292929293 + 71.8 + 10.8933582787652 / 2
    assert run.total_us == pytest.approx(begin + 5000.0 + 1.0 + 30.0)


def test_head_launches_later_and_adds_to_each_kernel() -> None:
    reference = walk([LINEAR], PUBLISHED)
    head = walk([LINEAR], PUBLISHED, options=WalkOptions("head"))
    assert head.host_us == reference.host_us
    assert head.active_us == reference.active_us + 2 * KERNEL_EXTRA_US
    half = 10.8933582787652 / 2
    assert head.device_us[0] == pytest.approx(reference.device_us[0] + half + KERNEL_EXTRA_US)


def test_head_waits_at_a_blocking_copy() -> None:
    kernels = (WalkedKernel(5000.0),)
    operators = [WalkedOperator("to", (COPY,), kernels, is_blocking=True), WalkedOperator("view")]
    reference = walk(operators, PUBLISHED)
    head = walk(operators, PUBLISHED, options=WalkOptions("head"))
    assert reference.host_us < 5000 < head.host_us
    assert head.total_us == head.host_us == pytest.approx(head.device_us[0] + 14.592929 + 5.0)


def test_head_overlaps_communication_until_it_is_needed() -> None:
    exchange = WalkedOperator("to", (COPY,), (WalkedKernel(1000.0, is_communication=True),))
    after = WalkedOperator("linear", (LAUNCH, LAUNCH), LINEAR.kernels, needs_communication=True)
    options = WalkOptions("head")
    free = walk([exchange, LINEAR, TO], PUBLISHED, options=options)
    waits = walk([exchange, after, TO], PUBLISHED, options=options)
    assert 0 < free.exposed_communication_us < waits.exposed_communication_us
    assert waits.total_us > free.total_us
    again = walk([exchange, exchange], PUBLISHED, options=options)
    assert again.active_us == 2 * (1000.0 + KERNEL_EXTRA_US)
    assert again.total_us > again.active_us


def test_operators_without_a_kernel_model_cost_their_launches() -> None:
    run = walk([WalkedOperator("linear", (LAUNCH, LAUNCH, LAUNCH))], PUBLISHED)
    expected = 14.592929292929293 + 71.8 + 2 * 37.733333333333334 + 3 * 10.8933582787652
    assert run.host_us == pytest.approx(expected + 14.616666666666667)
    assert run.unmodelled == {"linear": 3}
    assert run.device_us == (0.0, 0.0)


def test_the_optimiser_is_counted_once_with_its_launches() -> None:
    """The first version counts its T2 and T3 twice and its launches never."""
    step = WalkedOperator("Optimizer.step", (LAUNCH, LAUNCH))
    overheads = HostOverheads(
        t1=Overhead(1.0, 1), t2=table(Optimizer__step=10.0), t3=table(Optimizer__step=20.0),
        t4={LAUNCH: Overhead(100.0, 1)}, t5=table(Optimizer__step=5.0),
    )  # fmt: skip
    assert walk([step], overheads).host_us == 1 + 10 + 5 + 200 + 20


def test_skipped_operators_cost_nothing() -> None:
    run = walk([WalkedOperator("item"), WalkedOperator("view")], PUBLISHED)
    assert [name for name, _ in run.after_us] == ["view"]


def test_a_missing_overhead_is_an_error_or_the_mean_over_all() -> None:
    with pytest.raises(DataError, match=r"no overhead T5 of 'softmax' \(known: empty, linear"):
        walk([WalkedOperator("softmax")], PUBLISHED)
    run = walk([WalkedOperator("softmax")], PUBLISHED, options=WalkOptions(uses_pooled=True))
    mean = (37.733333333333334 + 3.0 + 22.0 + 17.0 + 5.0) / 5
    assert run.host_us == pytest.approx(14.592929292929293 + mean)
    assert run.pooled == ("t5 softmax",)


def test_the_interval_is_that_of_all_overheads_and_kernels() -> None:
    assert walk([LINEAR], PUBLISHED).low_us is None
    overheads = HostOverheads(
        t1=Overhead(10.0, 5, 1.0), t2={"a": Overhead(3.0, 5, 9.0)}, t3={"a": Overhead(1.0, 5, 0.0)},
        t4={LAUNCH: Overhead(2.0, 5)},
    )  # fmt: skip
    kernels = (WalkedKernel(50.0, low_us=20.0, high_us=90.0),)
    run = walk([WalkedOperator("a", (LAUNCH,), kernels)], overheads)
    assert run.total_us == 10 + 3 + 1 + 50
    assert run.low_us == pytest.approx(10 - 1.645 + 0 + 1 + 20)
    assert run.high_us == pytest.approx(10 + 1.645 + 3 + 9 * 1.645 + 1 + 90)
    assert run.without_interval == (f"t4 {LAUNCH}",)
    pooled = mean_overhead([Overhead(1.0, 1, 0.0), Overhead(3.0, 1, 0.0)])
    assert pooled == Overhead(2.0, 2, 1.0)


def test_the_slowest_rank_counts() -> None:
    short, long = walk([WalkedOperator("view")], PUBLISHED), walk([LINEAR], PUBLISHED)
    assert slowest([short, long]) is long


def test_bad_calls() -> None:
    with pytest.raises(DataError, match="without operators"):
        walk([], PUBLISHED)
    with pytest.raises(UsageError, match="walk 'fast'"):
        WalkOptions("fast")  # type: ignore[arg-type]
