"""Timers: stats, merging, nesting, threads, cost when off, profiler ranges, barriers."""

from __future__ import annotations

import logging
import math
import statistics
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.errors import UsageError
from cdmpp.timing.stats import (
    BarrierStat,
    ProfilerSession,
    Stat,
    StatSet,
    enable_timers,
    global_stats,
    profile_range,
    timer,
    timers_are_on,
)
from tests.paths import ROOT

REPOSITORY = ROOT


class Clock:
    """A clock that is set by hand, nanoseconds."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture(autouse=True)
def timers_on():
    enable_timers()
    yield
    enable_timers(False)
    global_stats().reset()


def stat_of(values, name="x"):
    stat = Stat(name)
    for value in values:
        stat.add(value)
    return stat


samples = st.lists(st.integers(0, 10**13), min_size=1, max_size=60)


@given(samples, samples)
def test_merge_is_the_stat_of_all_samples(first, second):
    both = stat_of(first)
    both.merge(stat_of(second))
    whole = stat_of([*first, *second])
    assert both == whole
    assert math.isclose(both.mean_ns, statistics.fmean([*first, *second]), rel_tol=1e-12)
    expected = float(statistics.variance([*first, *second]))
    assert math.isclose(both.variance_ns2, expected, rel_tol=1e-12, abs_tol=1e-12)


@given(samples, st.floats(0.0, 1.0))
def test_quantiles_are_within_a_sixteenth(values, share):
    rank = min(max(math.ceil(share * len(values)), 1), len(values))
    exact = sorted(values)[rank - 1]
    assert abs(stat_of(values).quantile_ns(share) - exact) <= exact / 16 + 1


def test_an_empty_stat_has_no_extremes():
    stat = Stat("nothing")
    assert (stat.min_ns, stat.max_ns, stat.mean_ns, stat.std_ns) == (None, None, 0.0, 0.0)
    assert stat.quantile_ns(0.5) == 0.0


def test_the_line_is_as_documented():
    line = stat_of([136_141_000], "testBilinearFwdBwd").line()
    assert line.startswith("Stat=testBilinearFwdBwd             total=136.141")
    assert [word for word in line.split() if "=" in word][1:] == [
        "total=136.141", "avg=136.141", "max=136.141", "min=136.141", "count=1",
    ]  # fmt: skip


@pytest.mark.parametrize(("late_ns", "lines"), [(-1, 0), (0, 1), (5, 1)])
def test_threshold_logs_at_or_above(caplog, late_ns, lines):
    clock = Clock()
    stats = StatSet(clock=clock)
    with (
        caplog.at_level(logging.WARNING, logger="cdmpp.timing.stats"),
        timer("slow", stats, threshold_s=10.000123, info="batch 7"),
    ):
        clock.now += 10_000_123_000 + late_ns
    assert len(caplog.messages) == lines
    assert stats.get("slow").count == 1
    if lines:
        assert caplog.messages[0] == "Stat: [slow] batch 7 [Span:10000ms123us]"


def test_context_manager_decorator_and_pair():
    clock = Clock()
    stats = StatSet(clock=clock)

    @timer("function", stats)
    def function(step):
        clock.now += step
        return step + 1

    assert function(5) == 6
    assert function(7) == 8
    pair = timer("pair", stats)
    pair.start(at_ns=clock.now - 100)
    clock.now += 11
    pair.stop()
    assert pair.elapsed_s == pytest.approx(111e-9)
    assert (stats.get("function").count, stats.get("function").total_ns) == (2, 12)
    assert stats.get("pair").total_ns == 111
    with pytest.raises(UsageError, match="does not run"):
        pair.stop()
    pair.start()
    with pytest.raises(UsageError, match="started twice"):
        pair.start()


def test_nesting_makes_a_tree_with_shares_of_the_parent():
    clock = Clock()
    stats = StatSet(clock=clock)
    with timer("epoch", stats):
        for _ in range(3):
            with timer("batch", stats):
                clock.now += 2_000_000
        clock.now += 4_000_000
    with timer("batch", stats):
        clock.now += 1_000_000
    tree = stats.tree()
    assert set(tree.children) == {"epoch", "batch"}
    assert tree.children["epoch"].children["batch"].stat.total_ns == 6_000_000
    assert stats.get("batch").total_ns == 7_000_000
    text = stats.tree_text().splitlines()
    assert text[2].split() == ["batch", "6.000", "60.0", "%", "2", "3"]
    assert text[3].split() == ["(rest)", "4.000", "40.0", "%"]
    assert stats.as_json()["tree"][0]["children"][0]["name"] == "batch"
    assert stats.csv().splitlines()[0].startswith("name,count,total_s")


def test_an_exception_still_counts_and_leaves_the_nesting():
    stats = StatSet()
    with pytest.raises(ValueError, match="inside"), timer("outer", stats):
        raise ValueError("inside")
    with timer("later", stats):
        pass
    assert set(stats.tree().children) == {"outer", "later"}


def test_stops_out_of_order_do_not_nest_what_comes_later():
    stats = StatSet()
    first, second = timer("first", stats), timer("second", stats)
    first.start()
    second.start()
    first.stop()
    second.stop()
    with timer("later", stats):
        pass
    assert set(stats.tree().children) == {"first", "later"}


def test_eight_threads_of_ten_thousand_samples():
    stats = StatSet()

    def work():
        for _ in range(10_000):
            with timer("work", stats):
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.get("work").count == 80_000
    by_thread = stats.stats_by_thread()
    assert len(by_thread) == 8
    assert {stat.count for _, stat in by_thread} == {10_000}
    assert "TID=" in stats.text(by_thread=True)


def test_many_short_threads_keep_their_samples_in_few_buffers():
    stats = StatSet()
    for _ in range(200):
        thread = threading.Thread(target=lambda: stats.add("short", 5))
        thread.start()
        thread.join()
    assert stats.get("short").total_ns == 1000
    assert len(stats.stats_by_thread()) <= 65


def test_reset_and_delete():
    stats = StatSet()
    for name in ("a", "b", "b"):
        stats.add(name, 1)
    stats.reset("b")
    assert stats.get("b").count == 0
    assert stats.get("a").count == 1
    stats.delete("a")
    assert "a" not in stats.tree().children
    stats.add("a", 3)
    stats.reset()
    assert stats.stats() == []


def test_off_counts_nothing_and_a_decorator_from_then_works_later():
    enable_timers(False)
    assert not timers_are_on()
    stats = StatSet()
    decorated = timer("later", stats)(lambda: None)
    plain = timer("plain")(lambda: None)
    with timer("x", stats):
        pass
    idle = timer("x")
    idle.start()
    idle.stop()
    assert idle.elapsed_s is None
    with pytest.raises(ValueError, match="passes"), timer("x"):
        raise ValueError("passes")
    decorated()
    assert stats.stats() == []
    enable_timers()
    decorated()
    plain()
    assert stats.get("later").count == 1
    assert global_stats().get("plain").count == 1


class Recorder:
    """A profiler that notes what is asked of it."""

    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")

    def range(self, name):
        import contextlib

        self.calls.append(name)
        return contextlib.nullcontext()


def test_three_nested_ranges_start_and_stop_once():
    recorder, stats = Recorder(), StatSet()
    session = ProfilerSession(recorder)
    with (
        profile_range("a", stats=stats, session=session),
        profile_range("b", stats=stats, session=session),
        profile_range("c", stats=stats, session=session),
    ):
        pass
    assert recorder.calls == ["start", "a", "b", "c", "stop"]
    assert stats.tree().children["a"].children["b"].children["c"].stat.count == 1


def test_an_exception_in_a_range_still_stops():
    recorder = Recorder()
    session = ProfilerSession(recorder)
    with pytest.raises(ValueError, match="inside"), profile_range("a", session=session):
        raise ValueError("inside")
    with profile_range("again", session=session):
        pass
    assert recorder.calls == ["start", "a", "stop", "start", "again", "stop"]


def test_ranges_of_several_threads_share_one_recording():
    recorder = Recorder()
    session = ProfilerSession(recorder)
    gate = threading.Barrier(4)

    def work():
        with profile_range("w", session=session):
            gate.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (recorder.calls.count("start"), recorder.calls.count("stop")) == (1, 1)


def test_range_is_named_for_torch_and_works_without_a_gpu():
    import torch

    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
        profile_range("my range"),
    ):
        torch.ones(2).sum()
    assert "my range" in {event.key for event in profiler.key_averages()}


def test_timing_loads_nothing_heavy():
    code = (
        "import sys, cdmpp.timing.stats as t\nwith t.profile_range('x'): pass\n"
        "print([n for n in ('torch', 'numpy', 'pyarrow') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.strip() == "[]"


def test_barrier_spreads_and_the_slowest():
    barrier = BarrierStat("sync", 4)
    for arrivals_ns in ([0, 10, 20, 100], [0, 10, 300, 20], [0, 10, 20, 60]):
        for rank, at_ns in enumerate(arrivals_ns):
            barrier.arrive(rank, at_ns=at_ns)
    total = {name: stat.total_ns for name, stat in barrier.spreads.items()}
    assert total == {
        "last-first": 460, "last-second": 430, "last-before_last": 400, "last-middle": 415,
    }  # fmt: skip
    assert barrier.slowest == {3: 2, 2: 1}
    assert "slowest rank=3 rounds=2 share=66.7 %" in barrier.text()


def test_barrier_arrivals_that_overtake_a_round():
    barrier = BarrierStat("sync", 2)
    for rank, at_ns in ((0, 5), (0, 50), (1, 9), (1, 70)):
        barrier.arrive(rank, at_ns=at_ns)
    assert barrier.round_count == 2
    assert barrier.spreads["last-first"].total_ns == 4 + 20
    with pytest.raises(UsageError, match="rank 2, expected 0 to 1"):
        barrier.arrive(2)


def test_print_all_lists_timers_then_barriers_then_dashes():
    stats = StatSet()
    stats.add("segment", 10)
    for rank in range(2):
        stats.barrier("sync", 2).arrive(rank)
    with pytest.raises(UsageError, match="got 3 ranks, expected 2"):
        stats.barrier("sync", 3)
    lines = stats.text().splitlines()
    assert "GlobalStatInfo" in lines[0]
    assert lines[1].startswith("Stat=segment")
    assert lines[2].startswith("BarrierStat=sync")
    assert set(lines[-1]) == {"-"}
