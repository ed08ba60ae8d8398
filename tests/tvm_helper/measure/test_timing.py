"""When a program has been timed enough, and what makes a machine's times doubtful."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cdmpp.errors import UsageError
from tvm_helper.measure import health
from tvm_helper.measure.health import drift, findings, noise_floor
from tvm_helper.measure.options import MeasureOptions, TimingOptions, rpc_address
from tvm_helper.measure.timing import repeat_until_steady, standard_error


class Program:
    """A program on a clock of its own: every timing takes what it costs, times its runs."""

    def __init__(self, cost: Callable[[], float], runs: int = 10) -> None:
        self.now = 0.0
        self.cost = cost
        self.runs = runs
        self.asked: list[int] = []

    def __call__(self, count: int) -> Sequence[float]:
        self.asked.append(count)
        costs = [self.cost() for _ in range(count)]
        self.now += self.runs * sum(costs)
        return costs

    def measure(self, options: TimingOptions) -> list[float]:
        return repeat_until_steady(self, options, clock=lambda: self.now)


def test_a_steady_program_gets_the_least_repeats() -> None:
    assert Program(lambda: 1e-3).measure(TimingOptions()) == [1e-3] * 3


def test_a_noisy_program_is_repeated_until_its_mean_is_sure() -> None:
    chance = random.Random(0)
    costs = Program(lambda: 1e-3 * chance.uniform(0.9, 1.1)).measure(TimingOptions())
    assert 3 < len(costs) < 30
    assert standard_error(costs) <= 0.02
    assert standard_error(costs[:-1]) > 0.02


def test_the_budget_ends_it() -> None:
    chance = random.Random(0)
    program = Program(lambda: 0.05 * chance.choice([1, 3]))
    options = TimingOptions(spread=1e-6, budget_s=3.0, max_repeats=1000)
    program.measure(options)
    assert 3.0 <= program.now <= 3.0 + 0.05 * 3 * 10 + 1e-9


def test_a_program_that_takes_the_whole_budget_is_timed_once() -> None:
    assert Program(lambda: 10.0).measure(TimingOptions()) == [10.0]


def test_the_most_repeats_are_kept() -> None:
    chance = random.Random(0)
    costs = Program(lambda: chance.choice([1e-6, 2e-6])).measure(
        TimingOptions(spread=1e-9, max_repeats=7)
    )
    assert len(costs) == 7


def test_standard_error() -> None:
    assert standard_error([1.0]) == math.inf
    assert standard_error([2.0, 2.0]) == 0
    assert standard_error([1.0, 3.0]) == pytest.approx(math.sqrt(2) / 2 / math.sqrt(2))


def test_noise_floor_leaves_single_timings_out() -> None:
    assert noise_floor([[1.0]]) == {"n": 0, "median": None, "p90": None}
    floor = noise_floor([[1.0], [1.0, 1.0], [1.0, 3.0]])
    assert floor["n"] == 2
    assert floor["p90"] == pytest.approx(math.sqrt(2) / 2)


def test_drift_is_unknown_below_three_and_signed() -> None:
    assert drift([1.0, 2.0])["trend"] is None
    slower = drift([1.0, 1.0, 1.1, 1.2, 1.5, 1.5])
    assert slower["trend"] == pytest.approx(0.5)
    assert slower["spread"] == pytest.approx(0.5)
    assert drift([2.0, 1.5, 1.0])["trend"] == pytest.approx(-0.5)


def test_findings_name_each_trouble_and_nothing_else() -> None:
    calm: dict[str, Any] = {
        "noise": noise_floor([[1.0, 1.001]]), "drifted": drift([1.0, 1.0, 1.0]), "loads": [1.0],
        "threads": 1, "cpus": 2, "host": {"cpu_count": 2},
    }  # fmt: skip
    assert findings(**calm) == []
    assert findings(**{**calm, "cpus": 1, "loads": [2.0]}) == [], "the other CPU may be busy"
    for change, word in (
        ({"noise": noise_floor([[1.0, 1.3]])}, "repeats"),
        ({"drifted": drift([1.0, 1.2, 1.4])}, "slower"),
        ({"threads": 4}, "4 threads"),
        ({"host": {"cpu_count": 2, "cpu_quota": 0.5}}, "0.5 of the CPUs"),
        ({"loads": [9.0]}, "load"),
        ({"cpus": 1, "loads": [3.0]}, "load"),
        ({"cpus": 1, "host": {"cpu_count": 1}, "loads": [2.0]}, "load"),
        ({"host": {"cpu_count": 2, "governor": "powersave"}}, "powersave"),
    ):
        (finding,) = findings(**{**calm, **change})
        assert word in finding


def test_other_programs_are_seen_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "machine", lambda: {
        "allowed_cpus": 2, "cpu_count": 2, "cpu_quota": None, "governor": "performance"
    })  # fmt: skip
    monkeypatch.setattr(health.psutil, "cpu_percent", lambda seconds: 5.0)
    assert health.findings_now(2) == []
    (threads,) = health.findings_now(3)
    assert "3 threads" in threads
    monkeypatch.setattr(health.psutil, "cpu_percent", lambda seconds: 50.0)
    (busy,) = health.findings_now(2)
    assert "other programs use 1.0 of this machine's 2 CPUs now" in busy


@pytest.mark.parametrize("text", ["host", "host:9190", "host:x:key", ":9190:key", "host:9190:"])
def test_an_rpc_address_has_three_parts(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT:KEY"):
        rpc_address(text)
    assert rpc_address("host:9190:key") == ("host", 9190, "key")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "--device"),
        ({"device": "x"}, "nothing to measure"),
        ({"device": "x", "sample": ("a",), "per_task": 0}, "per_task"),
        ({"device": "x", "sample": ("a",), "choose_from": 0}, "choose_from"),
        ({"device": "x", "sample": ("a",), "most_tasks": -1}, "most_tasks"),
        ({"device": "x", "sample": ("a",), "most_programs": -1}, "most_programs"),
        ({"device": "x", "sample": ("a",), "run_timeout_s": 0.0}, "run_timeout_s"),
        (
            {"device": "x", "sample": ("a",), "timing": TimingOptions(max_repeats=2)},
            "min_repeats",
        ),
    ],
)
def test_options_that_make_no_sense(values: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        MeasureOptions(**values).check()  # type: ignore[arg-type]
