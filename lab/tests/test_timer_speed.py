"""A disabled timer costs less than 200 ns."""

from __future__ import annotations

from pytest_benchmark.fixture import BenchmarkFixture

from cdmpp.timing.stats import enable_timers, timer

COUNT = 5_000


def test_a_timer_that_is_off(benchmark: BenchmarkFixture) -> None:
    enable_timers(False)

    def run() -> None:
        for _ in range(COUNT):
            with timer("name"):
                pass

    benchmark(run)
    if not benchmark.disabled:
        assert benchmark.stats is not None
        assert benchmark.stats.stats.min / COUNT < 200e-9
