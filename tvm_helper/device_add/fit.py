"""Models fitted to a new device's measurements: fine-tuned, from scratch and baselines."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.calibration.ood import TrainingTasks
from cdmpp.datasets.budget import hold_out, of_tasks
from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.files.atomic import make_folder, read_json, write_json
from cdmpp.models.base import CostModel
from cdmpp.models.loop.progress import RunProgress
from cdmpp.predict.machine_code.model import CodeModel
from cdmpp.predict.saved_model import ModelCard, extended_card, save_model
from cdmpp.text import counted
from cdmpp.training.finetune.adapt import Adapted, adapt, comparable
from cdmpp.training.finetune.adapted_code import save_adapted_code
from cdmpp.training.finetune.one_factor import as_device, fit_one_factor, with_devices
from cdmpp.training.finetune.options import FinetuneOptions
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import new_model
from cdmpp.training.run_folder import save_trained

PRETRAINED, ONE_FACTOR, SCRATCH, TREES = "pretrained", "one_factor", "scratch", "trees"
CURVE_FOLDER = "curve"
_STEP_CHOICES = (160, 120, 80, 40)
#: Tunings of one adaptation: three folds and the full data, each for adapters and all weights.
_TUNINGS = 8
#: Cost of a step (forward, backward, optimiser) over that of predicting its programs.
_STEP_COST = 4.0
#: Maximum share of the fitting time for the final model.
_FINAL_SHARE = 0.4


@dataclass(frozen=True)
class Fits:
    """Inputs of all fits to a device.

    Attributes:
        folder: run folder of the device.
        model: the model to start from.
        card: its card.
        model_dir: its folder.
        learn: measured samples of the training tasks.
        order: int64, tasks of `learn`, best first.
        test: measured samples of the test tasks.
        seed: seed of the training.
        programs: programs of `learn` and `test`, with the leaf columns that `reader` reads.
        reader: machine-code model in `model_dir`; None without one.
        code: machine code of the measured programs, as far as available.
    """

    folder: Path
    model: CostModel
    card: ModelCard
    model_dir: Path
    learn: Samples
    order: IntArray
    test: Samples
    seed: int
    programs: ProgramArrays
    reader: CodeModel | None = None
    code: tuple[MachineCode, ...] = ()

    def train(self, count: int) -> Samples:
        """Returns the samples of the first `count` tasks, their device as the card describes it."""
        return self.card.as_told(of_tasks(self.learn, self.order[:count]))


def zero_shot(fits: Fits) -> FloatArray:
    """Returns the unadapted model's predictions for the test samples, in seconds."""
    return fits.model.predict(fits.test)


def choose_steps(fits: Fits, seconds: float) -> int:
    """Returns the number of steps per tuning with which the final model fits into `seconds`."""
    options = FinetuneOptions()
    part = fits.model.tunable_part()
    few = fits.learn.take(np.arange(min(len(fits.learn), options.programs_per_batch)))
    part.predict(few)
    started = time.perf_counter()
    part.predict(few)
    step_s = _STEP_COST * (time.perf_counter() - started)
    fitting = [n for n in _STEP_CHOICES if _TUNINGS * n * step_s <= _FINAL_SHARE * seconds]
    return max(fitting, default=min(_STEP_CHOICES))


def final_model(
    fits: Fits, steps: int, split: dict[str, Any], versions: dict[str, str], progress: RunProgress
) -> tuple[FloatArray, dict[str, Any]]:
    """Adapts the model to all tasks and writes it into the run folder; returns its predictions for
    the test samples and facts about the fit.

    A model that the folder already has is not fitted again.
    """
    count = len(fits.order)

    def fit() -> tuple[FloatArray, dict[str, Any]]:
        adapted = _adapt(fits, count, steps, progress, run_dir=fits.folder)
        _save(fits, adapted, split, versions)
        return adapted.model.predict(fits.test), _detail(adapted, steps)

    return _once(fits, PRETRAINED, count, fit)


def point(
    fits: Fits, start: str, count: int, steps: int, progress: RunProgress
) -> tuple[FloatArray, dict[str, Any]]:
    """Returns a point of the curve: predictions for the test samples, and facts about the fit.

    The point is computed once and stored in the folder.

    Args:
        start: `pretrained`, `one_factor`, `scratch` or `trees`.
        count: number of training tasks.
    """
    train = fits.train(count)

    def fit() -> tuple[FloatArray, dict[str, Any]]:
        if start == PRETRAINED:
            adapted = _adapt(fits, count, steps, progress)
            return adapted.model.predict(fits.test), _detail(adapted, steps)
        if start == ONE_FACTOR:
            known = comparable(train, fits.card.devices)
            nearest, factor = fit_one_factor(
                fits.model, with_devices(train, fits.card.devices), known
            )
            test = as_device(with_devices(fits.test, fits.card.devices), nearest)
            return factor * fits.model.predict(test), {"nearest": nearest, "factor": factor}
        part, held_out = hold_out(train, seed=fits.seed)
        kind = fits.model.tunable_part().kind if start == SCRATCH else "gbdt"
        model = new_model(kind, TrainOptions())
        model.fit(
            part, held_out, seed=fits.seed,
            on_progress=lambda value: progress(f"from scratch, {counted(count, 'task')}", value),
        )  # fmt: skip
        return model.predict(fits.test), {"kind": kind}

    return _once(fits, start, count, fit)


def read_point(fits: Fits, start: str, count: int) -> tuple[FloatArray, dict[str, Any]] | None:
    """Returns a stored point of the curve; None if it was not computed yet."""
    path = _path(fits, start, count)
    if not path.is_file():
        return None
    value = read_json(path, what="point of the curve", hint=f"remove {path} to compute it again")
    return np.array(value["predicted_s"], np.float64), value["detail"]


def _adapt(
    fits: Fits, count: int, steps: int, progress: RunProgress, run_dir: Path | None = None
) -> Adapted:
    options = FinetuneOptions(steps=steps)
    return adapt(
        fits.model, fits.train(count), fits.card.devices, options=options, seed=fits.seed,
        run_dir=run_dir,
        on_progress=lambda value: progress(f"fine-tuning on {counted(count, 'task')}", value),
    )  # fmt: skip


def _detail(adapted: Adapted, steps: int) -> dict[str, Any]:
    return {**adapted.facts, "most_steps": steps}


def _once(
    fits: Fits, start: str, count: int, fit: Callable[[], tuple[FloatArray, dict[str, Any]]]
) -> tuple[FloatArray, dict[str, Any]]:
    found = read_point(fits, start, count)
    if found is not None:
        return found
    make_folder(fits.folder / CURVE_FOLDER, what="points of the curve")
    started = time.perf_counter()
    predicted_s, detail = fit()
    detail = {**detail, "seconds": time.perf_counter() - started}
    write_json(_path(fits, start, count), {"detail": detail, "predicted_s": predicted_s.tolist()})
    return predicted_s, detail


def _path(fits: Fits, start: str, count: int) -> Path:
    return fits.folder / CURVE_FOLDER / f"{start}-{count}.json"


def _save(fits: Fits, adapted: Adapted, split: dict[str, Any], versions: dict[str, str]) -> None:
    """Writes weights, card and training tasks, with intervals calibrated on held-out samples."""
    card = replace(
        extended_card(fits.card, adapted.model.kind, fits.learn, split), versions=versions
    )
    if adapted.held_out is None:
        save_model(adapted.model, fits.folder, card)
        return
    save_trained(
        adapted.model, fits.folder, card, train=fits.learn, validation=adapted.held_out,
        validation_s=adapted.held_out_s[adapted.choice.kept],
        base_tasks=TrainingTasks.load(fits.model_dir),
    )  # fmt: skip
    save_adapted_code(fits.folder, fits.reader, fits.code, adapted, fits.programs)
