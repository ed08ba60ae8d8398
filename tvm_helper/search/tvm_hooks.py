"""Hooks for TVM's tuning: strategy, builder, runner and cost model of a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from tvm_helper.compat import derived_object, meta_schedule
from tvm_helper.search.evolution import Evolution
from tvm_helper.search.session import SearchSession, runner_result


@derived_object
class SessionStrategy(meta_schedule.search_strategy.PySearchStrategy):  # type: ignore[misc]
    """Evolutionary search whose candidates pass through a session.

    Args:
        session: the session.
        number: index of the task.
        population: number of candidates evolved per round.
        seed: seed of the draws.
    """

    def __init__(self, session: SearchSession, number: int, population: int, seed: int) -> None:
        super().__init__()
        self._session = session
        self._number = number
        self._search = Evolution(population, seed)
        self._context: Any = None

    def _initialize_with_tune_context(self, context: Any) -> None:
        self._context = context
        self._search._initialize_with_tune_context(context)

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: Sequence[Any],
        database: Any = None,
        cost_model: Any = None,
    ) -> None:
        """Prepares the search."""
        self._search.pre_tuning(
            max_trials, num_trials_per_iter, design_spaces, database, cost_model
        )

    def post_tuning(self) -> None:
        """Ends the search."""
        self._search.post_tuning()

    def generate_measure_candidates(self) -> list[Any] | None:
        """Returns the next candidates; None if the task gets no more."""
        with self._session.guard():
            return self._session.candidates(
                self._number, self._context, self._search.generate_measure_candidates
            )

    def notify_runner_results(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Passes measurements to the search."""
        self._search.notify_runner_results(candidates, results)


@derived_object
class SessionBuilder(meta_schedule.builder.PyBuilder):  # type: ignore[misc]
    """Builds a round's candidates in the session's worker processes."""

    def __init__(self, session: SearchSession) -> None:
        super().__init__()
        self._session = session

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Returns results for TVM; the session keeps the artifacts."""
        with self._session.guard():
            outcomes = self._session.build([one.mod for one in build_inputs])
            return [
                meta_schedule.builder.BuilderResult(None, one.error or "failed")
                if one.error_code
                else meta_schedule.builder.BuilderResult("in the session", None)
                for one in outcomes
            ]


@derived_object
class _Result(meta_schedule.runner.PyRunnerFuture):  # type: ignore[misc]
    """A finished measurement."""

    def __init__(self, costs_s: list[float] | None, error: str | None) -> None:
        super().__init__()
        self._values = costs_s, error

    def done(self) -> bool:
        """Returns True."""
        return True

    def result(self) -> Any:
        """Returns TVM's result object."""
        return runner_result(*self._values)


@derived_object
class SessionRunner(meta_schedule.runner.PyRunner):  # type: ignore[misc]
    """Times the programs that the session has built."""

    def __init__(self, session: SearchSession) -> None:
        super().__init__()
        self._session = session

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Returns the measurements, one per input."""
        with self._session.guard():
            results = self._session.run()
            assert len(results) == len(runner_inputs)
            return [_Result(costs_s, error) for costs_s, error in results]


@derived_object
class ClockedModel(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
    """Cost model whose calls are timed by a session.

    Args:
        model: a cost model of TVM or `CdmppCostModel`.

    Attributes:
        session: the session; set before the first call.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.session: SearchSession | None = None

    def predict(self, context: Any, candidates: Sequence[Any]) -> FloatArray:
        """Returns float64 [candidate], higher is better."""
        scores = self._clocked(lambda: self.model.predict(context, list(candidates)))
        return np.asarray(scores, np.float64)

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Trains the model on a measured batch."""
        if len(candidates):
            self._clocked(lambda: self.model.update(context, list(candidates), list(results)))

    def save(self, path: str) -> None:
        """Saves the model."""
        self.model.save(path)

    def load(self, path: str) -> None:
        """Loads the model."""
        self.model.load(path)

    def _clocked(self, call: Callable[[], Any]) -> Any:
        assert self.session is not None
        with self.session.guard(), self.session.clock("cost_model"):
            return call()
