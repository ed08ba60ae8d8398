"""Devices that a model has never seen, and what its intervals hold there.

The models of one chip are those of `lab.experiments.compiled`; they are trained where they are not
there (three seeds, 2 minutes each).
"""

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
from cdmpp.datasets.sources import extracted_folder
from cdmpp.devices.spec import DeviceSpec
from cdmpp.metrics import Judged, spearman_by_task
from cdmpp.predict.corrections import MachineCodeCorrection
from cdmpp.predict.estimates import NEW_DEVICE_FACTOR, Estimates, TrainedModel, load_trained
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.saved_model import task_digest
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.text import markdown_table, percent_text
from lab.experiments.compiled import CHIPS, SEEDS, without_chip
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp

#: Over what the worst known device needs: what the table shows beside `NEW_DEVICE_FACTOR`.
FACTORS = (1.0, 1.25, 1.5, NEW_DEVICE_FACTOR, 2.0)
#: Packed campaigns on a chip that no shipped model has learned from.
_THIRD_CHIP = ("zen5-records", "zen5-kernels")


@dataclass(frozen=True)
class Answer:
    """What a model says of a new device; means over tasks.

    Attributes:
        name: of the device.
        is_known_family: whether the model was trained on devices of its kind and family.
        is_far: whether the programs are unlike all that it was trained on.
        log_error: mean |log(predicted / measured)|.
        oracle: log error of who knows each task's median; None where most tasks have one program.
        constant: log error of who says the median of all these programs of each.
        median_ratio: predicted over measured.
        spearman: within a task; None where no task has enough programs.
        factor: of the intervals, each way.
        inside: share of the programs in their intervals.
        inside_at: likewise, with each of `FACTORS`; none where it is not like a known one.
    """

    name: str
    is_known_family: bool
    is_far: bool
    tasks: int
    programs: int
    mape: float
    log_error: float
    oracle: float | None
    constant: float
    median_ratio: float
    spearman: float | None
    factor: float
    inside: float
    inside_at: tuple[float, ...]


def experiment(
    datasets: tuple[Path, ...] = (ROOT / "cache" / "autotvm",),
    work: Path = ROOT / "runs" / "measured-elsewhere",
    cache: Path = ROOT / "cache",
) -> None:
    """Predicts the devices left out and unseen ones (after `make tables`), and writes the page.

    Args:
        datasets: of devices, for the shipped model.
    """
    folder = extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=cache)
    left_out = chips_left_out(load_samples(folder), work)
    shipped = load_trained(model_folder(PRETRAINED), with_code=True)
    third: dict[str, list[Answer]] = {}
    for name in _THIRD_CHIP:
        place = cache / "data" / name
        samples = load_samples(place, cache_dir=cache)
        third[name] = new_devices(shipped, samples)
        third[f"{name}-compiled"] = new_devices(shipped, samples, read_machine_code(place))
    unseen: list[Answer] = []
    for dataset in datasets:
        unseen += new_devices(shipped, load_samples(dataset, cache_dir=cache))
    found = {"left_out": left_out, **third, "unseen": unseen}
    tables = {
        name.removeprefix("zen5-").replace("-", "_"): _tables(answers)
        for name, answers in found.items()
    }
    values = {name: [asdict(one) for one in answers] for name, answers in found.items()}
    origin = stamp("python -m lab run new-devices", schemas=PROGRAMS, models=[PRETRAINED])
    write_page("new-devices", sections("new-devices", **tables), values, origin)


def chips_left_out(samples: Samples, work: Path) -> list[Answer]:
    """Returns what models of one chip say of the labels of the other, one for each seed."""
    found = []
    for chip in CHIPS:
        for seed in SEEDS:
            trained, _, asked = without_chip(samples, chip, work / f"without-{chip}-{seed}", seed)
            found += new_devices(trained, asked)
    return found


def new_devices(
    trained: TrainedModel, samples: Samples, code: Sequence[MachineCode] = ()
) -> list[Answer]:
    """Returns what a model says of the devices that it was not trained on, of tasks that it was not
    trained on: of programs that are like those that it was trained on, and of others.

    Args:
        code: machine code of the programs, which counts in where it is known.
    """
    known = {spec.name for spec in trained.card.devices}
    is_met = np.array([task_digest(str(name)) in trained.card.training_tasks
                       for name in samples.programs.tasks])  # fmt: skip
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
                shows = not (is_far or code)
                answers.append(_answer(trained, spec, part, said, is_far=is_far, shows=shows))
    return answers


def _answer(
    trained: TrainedModel,
    spec: DeviceSpec,
    own: Samples,
    found: Estimates,
    *,
    is_far: bool,
    shows: bool,
) -> Answer:
    """Returns what it says of a device.

    Args:
        shows: whether other widths are tried.
    """
    _, task, of_task = np.unique(own.task_id, return_inverse=True, return_counts=True)
    log_ratio = np.log(found.latency_s / own.latency_s)
    half_width = np.log(found.high_s / found.latency_s)
    is_known_family = bool(trained.devices_like(spec))

    def mean(values: NDArray[Any]) -> float:
        return float(owner_means(values.astype(np.float64), task).mean())

    judged = Judged(own.latency_s, found.latency_s, task, own.device, np.ones(task.max() + 1))
    inside = (found.low_s <= own.latency_s) & (own.latency_s <= found.high_s)
    widths = [factor / NEW_DEVICE_FACTOR * half_width for factor in FACTORS]
    return Answer(
        spec.name, is_known_family, is_far, int(task.max()) + 1, len(own),
        mape=mean(np.abs(np.expm1(log_ratio))),
        log_error=mean(np.abs(log_ratio)),
        oracle=mean(np.abs(np.log(oracle_task_median(own) / own.latency_s)))
        if np.median(of_task) > 1
        else None,
        constant=mean(np.abs(np.log(np.median(own.latency_s) / own.latency_s))),
        median_ratio=float(np.exp(np.median(log_ratio))),
        spearman=spearman_by_task(judged),
        factor=float(np.exp(mean(half_width))),
        inside=mean(inside),
        inside_at=tuple(mean(np.abs(log_ratio) <= one) for one in widths)
        if is_known_family and shows
        else (),
    )  # fmt: skip


def _tables(answers: Sequence[Answer]) -> str:
    """Returns how far off the answers are, and what the widths hold; means over seeds."""
    groups: dict[tuple[str, bool], list[Answer]] = {}
    for one in answers:
        groups.setdefault((one.name, one.is_far), []).append(one)
    errors, widths = [], []
    for (name, is_far), own in sorted(groups.items()):
        oracles = [one.oracle for one in own if one.oracle is not None]
        orders = [one.spearman for one in own if one.spearman is not None]
        errors.append([
            name, "no" if own[0].is_known_family else "yes", "yes" if is_far else "no",
            *(f"{_mean(own, count):,.0f}" for count in ("tasks", "programs")),
            percent_text(_mean(own, "mape")), f"{_mean(own, 'log_error'):.2f}",
            f"{np.mean(oracles):.2f}" if oracles else "-", f"{_mean(own, 'constant'):.2f}",
            f"{_mean(own, 'median_ratio'):.2f}", f"{np.mean(orders):.2f}" if orders else "-",
            f"{np.exp(np.mean([np.log(one.factor) for one in own])):.1f}",
            percent_text(_mean(own, "inside")),
        ])  # fmt: skip
        if own[0].inside_at:
            shares = np.mean([one.inside_at for one in own], axis=0)
            widths.append([name, *(percent_text(share) for share in shares)])
    tables = [markdown_table(_HEADS, errors)]
    if widths:
        tables.append(markdown_table(["device", *(f"{one:g} times" for one in FACTORS)], widths))
    return "\n\n".join(tables)


def _mean(answers: Sequence[Answer], name: str) -> float:
    return float(np.mean([getattr(one, name) for one in answers]))


_HEADS = (
    "device", "strange family", "strange programs", "tasks", "programs", "MAPE", "log error",
    "its task's median", "one latency", "median ratio", "Spearman within a task",
    "factor each way", "in it",
)  # fmt: skip
