"""The trials of a study as rows for tables, plots and `--json`."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from cdmpp.autotune.slots import REASON, fault_of

#: Attributes of a trial that are copied into its row.
_FACTS = ("mape", "median_ape", "spearman_by_task", "predict_s", "parameters")


@dataclass(frozen=True)
class TrialRow:
    """Values of one trial.

    Attributes:
        number: number in the study.
        state: `complete`, `pruned`, `fail`, `running` or `waiting`.
        values: of the objectives; for a pruned trial, its last intermediate value; may be empty.
        settings: name -> chosen value.
        reason: why it did not finish; empty = it finished or has no failure.
        model: kind of model.
        mape: on the validation part; None = not finished.
        median_ape: on the validation part; None = not finished.
        spearman_by_task: on the validation part; None = not finished.
        predict_s: seconds per prediction (one program on one device), in a batch.
        parameters: of the network; None = no network.
        steps: optimiser steps.
        epochs: epochs.
        cpu_s: CPU seconds.
        wall_s: wall seconds.
        finished_s: wall seconds from the start of the first trial to its end; None = not ended.
    """

    number: int
    state: str
    values: tuple[float, ...]
    settings: dict[str, Any]
    reason: str
    model: str
    mape: float | None
    median_ape: float | None
    spearman_by_task: float | None
    predict_s: float | None
    parameters: int | None
    steps: int
    epochs: int
    cpu_s: float
    wall_s: float
    finished_s: float | None

    @property
    def is_done(self) -> bool:
        """Whether it was trained to the end and evaluated."""
        return self.state == "complete"


def trial_rows(study: optuna.Study) -> list[TrialRow]:
    """Returns the started trials by number."""
    trials = [t for t in study.get_trials(deepcopy=False) if t.state != TrialState.WAITING]
    begun = [trial.datetime_start for trial in trials if trial.datetime_start]
    start = min(begun) if begun else None
    rows = []
    for trial in trials:
        facts = trial.user_attrs
        end = trial.datetime_complete
        rows.append(
            TrialRow(
                number=trial.number,
                state=trial.state.name.lower(),
                values=tuple(trial.values or ()),
                settings=dict(trial.params),
                reason=str(facts.get(REASON, "its worker died" if fault_of(trial) else "")),
                model=str(facts.get("model", "")),
                **{name: facts.get(name) for name in _FACTS},
                steps=int(facts.get("steps", 0)),
                epochs=int(facts.get("epochs", 0)),
                cpu_s=float(facts.get("cpu_s", 0.0)),
                wall_s=float(facts.get("wall_s", 0.0)),
                finished_s=(end - start).total_seconds() if end and start else None,
            )
        )
    return rows


def row_json(row: TrialRow) -> dict[str, Any]:
    """Returns a row as a JSON object."""
    return {**asdict(row), "values": list(row.values)}


def front(rows: list[TrialRow]) -> list[TrialRow]:
    """Returns the Pareto front of the finished trials, fastest prediction first.

    The error is the first value, the time is `predict_s`.
    """
    done = [row for row in rows if row.is_done and row.predict_s is not None]
    done.sort(key=lambda row: (row.predict_s, row.values[0]))
    found: list[TrialRow] = []
    for row in done:
        if not found or row.values[0] < found[-1].values[0]:
            found.append(row)
    return found


def best_so_far(rows: list[TrialRow]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns float64 [N], the lowest first value of finished trials up to each row, or NaN."""
    best = np.full(len(rows), np.nan)
    least = np.nan
    for index, row in enumerate(rows):
        if row.is_done:
            least = float(np.fmin(least, row.values[0]))
        best[index] = least
    return best


def importances(study: optuna.Study) -> dict[str, float]:
    """Returns the share of each setting in the variance of the finished trials, largest first;
    empty for fewer than four finished trials, or if all have the same value.
    """
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    values = {trial.values[0] for trial in done}
    if len(done) < 4 or len(values) < 2:
        return {}
    shared = set.intersection(*(set(trial.params) for trial in done))
    varied = {name for name in shared if len({trial.params[name] for trial in done}) > 1}
    if not varied:
        return {}
    with warnings.catch_warnings():
        # PED-ANOVA warns that a `target` must be minimised; this one is.
        warnings.filterwarnings("ignore", "PedAnovaImportanceEvaluator", UserWarning)
        found = optuna.importance.get_param_importances(
            study,
            evaluator=optuna.importance.PedAnovaImportanceEvaluator(),
            params=sorted(varied),
            target=lambda trial: trial.values[0],
        )
    return {name: float(value) for name, value in found.items()}
