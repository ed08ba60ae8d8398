"""Baselines of a run: evaluated beside the model and saved for `cdmpp evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.judge import judge_in_detail
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import read_json, write_json
from cdmpp.models.base import CostModel
from cdmpp.models.registry import PARTIAL_CLASSES, baseline_class
from cdmpp.predict.saved_model import RUN_HINT

_FILE = "baselines.json"
#: Kinds without weights, whose state is saved in baselines.json.
KEPT = ("constant", "roofline", *PARTIAL_CLASSES)

Judge = Callable[[Samples, FloatArray], dict[str, Any]]


def judge_lines(
    samples: Samples, predicted_s: Mapping[str, FloatArray], judge: Judge = judge_in_detail
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, dict[str, Any]]]]:
    """Evaluates several models, the lines of a table, on the same samples.

    Args:
        predicted_s: line -> float64 [N]; NaN for samples that a baseline does not recognise.
        judge: returns the metrics of predictions.

    Returns:
        line -> metrics on all samples, without partial baselines; and partial baseline -> line ->
        metrics on the samples that the baseline recognises, itself first; empty if it recognises
        none.
    """
    whole = {name: values for name, values in predicted_s.items() if name not in PARTIAL_CLASSES}
    recognised: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, values in predicted_s.items():
        if kind in PARTIAL_CLASSES:
            rows = np.flatnonzero(np.isfinite(values))
            own = samples.take(rows)
            lines = {kind: values, **whole} if len(rows) else {}
            recognised[kind] = {name: judge(own, s[rows]) for name, s in lines.items()}
    return {name: judge(samples, values) for name, values in whole.items()}, recognised


def save_baselines(run_dir: Path, baselines: Mapping[str, CostModel]) -> None:
    """Writes baselines.json into a run folder: kind -> state, for kinds in `KEPT`."""
    states = {kind: model.save(run_dir) for kind, model in baselines.items() if kind in KEPT}
    write_json(run_dir / _FILE, states)


def load_baselines(run_dir: Path, kinds: Sequence[str]) -> dict[str, CostModel]:
    """Loads baselines of a run by kind, fitted on its training part.

    Raises:
        UsageError: a kind is unknown, or the run did not save it.
        DataError: the file is damaged.
    """
    classes = {kind: baseline_class(kind) for kind in kinds}
    path = run_dir / _FILE
    states = read_json(path, what="baselines", hint=RUN_HINT) if path.is_file() else {}
    for kind in kinds:
        if kind not in states:
            raise UsageError(
                f"{run_dir} has no saved baseline {kind!r}, which is fitted on a training part; it "
                f"has {', '.join(states) or 'none'}; train a run with "
                f'--set "baselines=[{",".join(KEPT)}]", which saves them'
            )
    try:
        return {kind: class_.load(run_dir, states[kind]) for kind, class_ in classes.items()}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error!r}); {RUN_HINT}") from error
