"""Measures how far a trained model errs on kinds of operators that it has not learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray
from cdmpp.calibration.intervals import operator_kinds
from cdmpp.calibration.left_out_kinds import strange_factor
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.predict.saved_model import read_card, write_strange_factor
from cdmpp.training.options import TrainOptions

#: Programs of each device that trees without some kinds learn from.
_PROGRAMS_PER_DEVICE = 3000


def measure_left_out_kinds(run_dir: Path, options: TrainOptions, samples: Samples) -> float | None:
    """Trains the ensemble's trees without some kinds of operators in turn, and adds to the model's
    card how much wider than its intervals the errors on those are; nothing to a model without
    intervals.

    Args:
        samples: what the model was trained and calibrated on.

    Returns:
        The factor; None where it could not be measured.

    Raises:
        DataError: there is no complete model, or a file cannot be written.
    """
    calibration = read_card(run_dir).calibration
    if calibration is None:
        return None
    samples = cap_programs(samples, _PROGRAMS_PER_DEVICE, seed=0)
    nothing = samples.take(np.zeros(0, np.int64))
    widths = [calibration.by_device.get(one.name, calibration.pooled) for one in samples.devices]

    def error_of(is_left_out: BoolArray) -> FloatArray:
        trees = GbdtCostModel(options.ensemble.trees)
        trees.fit(samples.take(~is_left_out), nothing, seed=options.seed)
        strange = samples.take(is_left_out)
        return np.asarray(np.abs(np.log(trees.predict(strange) / strange.latency_s)))

    tasks = np.asarray(samples.programs.tasks, np.str_)[samples.task_id]
    kinds = operator_kinds(samples).astype(np.str_)
    factor = strange_factor(kinds, tasks, np.array(widths)[samples.device], error_of)
    write_strange_factor(run_dir, factor)
    return factor
