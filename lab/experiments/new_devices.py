"""Predictions of the shipped model and coverage of its intervals on an unseen device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.judge import oracle_task_median
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import Estimates, TrainedModel, load_trained
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.saved_model import task_digest
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.text import markdown_table, percent_text
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

#: Packed campaigns on chips that are not in the training data of any shipped model -> sections.
_NEW_CHIPS = {"zen5-records": "records", "zen5-kernels": "kernels"}


@dataclass(frozen=True)
class Answer:
    """Errors of a model on a new device; means over tasks.

    Attributes:
        name: of the device.
        is_known_family: whether devices of its kind and family are in the training data.
        is_far: whether the programs are out-of-distribution.
        log_error: mean |log(predicted / measured)|.
        oracle: log error of each task's measured median; None if most tasks have one program.
        median_ratio: predicted over measured.
        factor: of the intervals, in each direction.
        inside: share of the programs inside their intervals.
    """

    name: str
    is_known_family: bool
    is_far: bool
    tasks: int
    programs: int
    mape: float
    log_error: float
    oracle: float | None
    median_ratio: float
    factor: float
    inside: float


def experiment(cache: Path = ROOT / "cache") -> None:
    """Predicts the programs of the unseen chips (after `make tables`) and writes the page."""
    shipped = load_trained(model_folder(PRETRAINED), with_code=True)
    found: dict[str, list[Answer]] = {}
    for name, short in _NEW_CHIPS.items():
        place = cache / "data" / name
        samples = load_samples(place, cache_dir=cache)
        found[short] = new_devices(shipped, samples)
        found[f"{short}_compiled"] = new_devices(shipped, samples, read_machine_code(place))
    tables = {name: _table(answers) for name, answers in found.items()}
    values = {name: [asdict(one) for one in answers] for name, answers in found.items()}
    origin = stamp("python -m lab run new-devices", schemas=PROGRAMS, models=[PRETRAINED])
    write_page("new-devices", sections("new-devices", **tables), values, origin)


def new_devices(
    trained: TrainedModel, samples: Samples, code: Sequence[MachineCode] = ()
) -> list[Answer]:
    """Returns a model's errors on unseen devices and tasks, separately for in-distribution and
    out-of-distribution programs.

    Args:
        code: machine code of the programs, used where it is known.
    """
    known = {spec.name for spec in trained.card.devices}
    learned = trained.learned_tasks
    is_met = np.array([task_digest(str(name)) in learned for name in samples.programs.tasks])
    answers = []
    for index, spec in enumerate(samples.devices):
        own = samples.take((samples.device == index) & ~is_met[samples.task_id])
        if spec.name in known or len(own) == 0:
            continue
        found = trained.estimate(own)
        assert found.is_far is not None
        for is_far in (False, True):
            rows = found.is_far == is_far
            if rows.any():
                part, latency_s = own.take(rows), found.latency_s[rows]
                steps = [MachineCodeCorrection(code_columns(part, table)) for table in code]
                said = trained.estimate(part, steps, latency_s=latency_s)
                answers.append(_answer(trained, spec, part, said, is_far=is_far))
    return answers


def _answer(
    trained: TrainedModel, spec: DeviceSpec, own: Samples, found: Estimates, *, is_far: bool
) -> Answer:
    """Returns the errors of the predictions for a device."""
    _, task, of_task = np.unique(own.task_id, return_inverse=True, return_counts=True)
    log_ratio = np.log(found.latency_s / own.latency_s)
    half_width = np.log(found.high_s / found.latency_s)
    is_known_family = bool(trained.devices_like(spec))

    def mean(values: NDArray[Any]) -> float:
        return float(owner_means(values.astype(np.float64), task).mean())

    inside = (found.low_s <= own.latency_s) & (own.latency_s <= found.high_s)
    return Answer(
        spec.name, is_known_family, is_far, int(task.max()) + 1, len(own),
        mape=mean(np.abs(np.expm1(log_ratio))),
        log_error=mean(np.abs(log_ratio)),
        oracle=mean(np.abs(np.log(oracle_task_median(own) / own.latency_s)))
        if np.median(of_task) > 1
        else None,
        median_ratio=float(np.exp(np.median(log_ratio))),
        factor=float(np.exp(mean(half_width))),
        inside=mean(inside),
    )  # fmt: skip


def _table(answers: Sequence[Answer]) -> str:
    """Returns the table of errors, one row per device and kind of programs."""
    rows = [
        [
            one.name, "no" if one.is_known_family else "yes", "yes" if one.is_far else "no",
            f"{one.tasks:,}", f"{one.programs:,}", percent_text(one.mape), f"{one.log_error:.2f}",
            "-" if one.oracle is None else f"{one.oracle:.2f}", f"{one.median_ratio:.2f}",
            f"{one.factor:.1f}", percent_text(one.inside),
        ]
        for one in sorted(answers, key=lambda one: (one.name, one.is_far))
    ]  # fmt: skip
    return markdown_table(_HEADS, rows)


_HEADS = (
    "device", "strange family", "strange programs", "tasks", "programs", "MAPE", "log error",
    "its task's median", "median ratio", "factor each way", "in it",
)  # fmt: skip
