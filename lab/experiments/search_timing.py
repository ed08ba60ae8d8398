"""Helpers for benchmarks of searches: measured programs, and time in the cost model."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from cdmpp.datasets.metaschedule.databases import RECORD_FILE
from tvm_helper.tasks.build import built

_FAILED_S = 1e9
_JOURNAL = "journal.jsonl"


@derived_object
class TimedCostModel(meta_schedule.cost_model.PyCostModel):  # type: ignore[misc]
    """Wraps a cost model and measures the seconds that TVM waits for it.

    Args:
        model: any cost model of TVM or cdmpp.

    Attributes:
        seconds: spent in `predict` and `update` so far.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self.seconds = 0.0

    def predict(self, context: Any, candidates: Sequence[Any]) -> NDArray[np.float64]:
        """Returns the wrapped model's scores."""
        started = time.perf_counter()
        scores = np.asarray(self._model.predict(context, candidates), np.float64)
        self.seconds += time.perf_counter() - started
        return scores

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Updates the wrapped model."""
        started = time.perf_counter()
        self._model.update(context, candidates, results)
        self.seconds += time.perf_counter() - started

    def save(self, path: str) -> None:
        """Saves the wrapped model."""
        self._model.save(path)

    def load(self, path: str) -> None:
        """Loads the wrapped model."""
        self._model.load(path)


@derived_object
class TrialLog(meta_schedule.measure_callback.PyMeasureCallback):  # type: ignore[misc]
    """Records all trials; TVM's database omits the failed ones.

    Attributes:
        latency_s: median seconds of every measured program, in order; None if it failed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latency_s: list[float | None] = []

    def apply(
        self,
        task_scheduler: Any,
        task_id: int,
        measure_candidates: Sequence[Any],
        builder_results: Sequence[Any],
        runner_results: Sequence[Any],
    ) -> None:
        """Records a batch; called by TVM."""
        del task_scheduler, task_id, measure_candidates, builder_results
        for result in runner_results:
            run_s = [float(value) for value in result.run_secs or ()]
            is_good = result.error_msg is None and bool(run_s) and max(run_s) < _FAILED_S
            self.latency_s.append(float(np.median(run_s)) if is_good else None)


def recorded_traces(work_dir: Path) -> list[Any]:
    """Returns the traces of a search in the order of measurement, from a MetaSchedule database or
    from the journal of `cdmpp search`.
    """
    if (work_dir / _JOURNAL).is_file():
        return [entry["record"][1][0] for entry in journal_entries(work_dir)]
    with (work_dir / RECORD_FILE).open(encoding="utf-8") as lines:
        return [json.loads(line)[1][0] for line in lines]


def journal_entries(out: Path) -> list[dict[str, Any]]:
    """Returns the measured programs of `cdmpp search --out`, in order."""
    lines = (out / _JOURNAL).read_text(encoding="utf-8").splitlines()
    return [entry for entry in map(json.loads, lines) if entry["kind"] == "measured"]


def timed_in_turns(
    function: Any, traces: Mapping[str, Any], target: Any, *, repeats: int = 15
) -> dict[str, list[float]]:
    """Returns the seconds of every schedule of a function, with one reading of each per turn."""
    times: dict[str, list[float]] = {key: [] for key in traces}
    with tempfile.TemporaryDirectory() as scratch:
        modules = {
            key: built(function, trace, target, Path(scratch), str(place))
            for place, (key, trace) in enumerate(traces.items())
        }
        for _ in range(repeats):
            for key, (module, arguments) in modules.items():
                timer = module.time_evaluator(
                    "main", tvm.cpu(0), number=1, repeat=1, min_repeat_ms=30
                )
                times[key].append(float(timer(*arguments).mean))
    return times
