"""Out-of-distribution GPU programs: bound and schedule against a constant and trees."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cdmpp.analytic.roofline.schedule_times import (
    SCHEDULE_TIMES_FORMAT,
    RatioWidths,
    ScheduleTimes,
    kinds_of,
    packaged_path,
)
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.conformal import owner_means
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.selection import cap_programs
from cdmpp.datasets.sources import extracted_folder
from cdmpp.files.atomic import write_json
from cdmpp.files.stored import to_json
from cdmpp.models.gbdt import GbdtCostModel
from cdmpp.models.options import GbdtOptions
from cdmpp.predict.networks import NetworkQuestion
from cdmpp.text import interval_text, markdown_table, percent_text
from lab.pages import sections, write_page
from lab.paths import ROOT
from lab.schedule_fit import MeasuredSchedules, fit_schedule_times
from lab.stamp import PROGRAMS, stamp

#: Maximum programs per device for fits and trees, spread evenly over tasks.
_PROGRAMS, _TREE_PROGRAMS = 2000, 500
_TREES = GbdtOptions(trees=80, depth=5)
_NETWORK, _DEVICES = ROOT / "examples" / "networks.py", ("t4", "v100", "a100")


@dataclass(frozen=True)
class Answer:
    """Errors on a held-out group; means over tasks.

    Attributes:
        what: the held-out device or kind of operator.
        constant, trees, schedule: mean |log(predicted / measured)| of bounds times one constant, of
            trees, and of bounds and schedules; trees None if none were trained.
        factor: of the intervals, in each direction, calibrated without the group.
        inside: share of the programs inside their intervals.
    """

    what: str
    tasks: int
    programs: int
    constant: float
    trees: float | None
    schedule: float
    factor: float
    inside: float


def experiment(
    autotvm: Path = ROOT / "cache" / "autotvm",
    cache: Path = ROOT / "cache",
    package: bool = False,
    networks: bool = True,
) -> None:
    """Holds out devices and kinds of operators in turn, evaluates templates of AutoTVM and predicts
    ResNet-50; writes the page.

    Args:
        autotvm: extracted logs; no fit is trained on them.
        package: whether to write the fit of all programs into the package.
        networks: whether to predict ResNet-50.
    """
    asked = MeasuredSchedules.of(_measured(autotvm, cache))
    folders = [
        extracted_folder(ROOT / "data" / "ansor-gpu", None, cache_dir=cache),
        ROOT / "data" / "metaschedule-a100",
    ]
    samples = _measured(merged_folder(folders, cache), cache)
    measured = MeasuredSchedules.of(samples)
    if package:
        values = to_json(fit_schedule_times(measured))
        write_json(packaged_path(), {"format": SCHEDULE_TIMES_FORMAT, **values})
    device = np.array([spec.name for spec in samples.devices], np.str_)[samples.device]
    devices = [_left_out(samples, device, name, is_new=True) for name in np.unique(device)]
    kinds = kinds_of(samples)
    operators = [_left_out(samples, kinds, name, is_new=False) for name in np.unique(kinds)]
    found = {"devices": devices, "operators": operators, "templates": templates(measured, asked)}
    tables = {name: _table(name, own) for name, own in found.items()}
    numbers = {name: [asdict(one) for one in own] for name, own in found.items()}
    rows = resnet() if networks else []
    text = sections(
        "tvm-gpu", **tables, networks=markdown_table(["GPU", "ResNet-50, batch 1"], rows)
    )
    print(write_page("tvm-gpu", text, {**numbers, "networks": rows},
                     stamp("python -m lab run tvm-gpu", schemas=PROGRAMS)))  # fmt: skip


def _measured(folder: Path, cache: Path) -> Samples:
    samples = load_samples(folder, cache_dir=cache)
    samples = samples.take(np.flatnonzero(np.isfinite(samples.latency_s)))
    return cap_programs(samples, _PROGRAMS, seed=0)


def _left_out(samples: Samples, group: TextArray, name: str, *, is_new: bool) -> Answer:
    """Returns the errors on a group of fits without it.

    Args:
        is_new: whether the group is a device rather than a kind of operator.
    """
    asked, others = samples.take(group == name), samples.take(group != name)
    own, times = MeasuredSchedules.of(asked), fit_schedule_times(MeasuredSchedules.of(others))
    trees = GbdtCostModel(_TREES)
    trees.fit(cap_programs(others, _TREE_PROGRAMS, seed=0), others.take(np.zeros(0, np.int64)),
              seed=0)  # fmt: skip
    widths = times.new if is_new else times.known
    learned = np.abs(np.log(trees.predict(asked) / asked.latency_s))
    return _answer(name, own, times, widths, MeasuredSchedules.of(others), learned)


def templates(measured: MeasuredSchedules, asked: MeasuredSchedules) -> list[Answer]:
    """Returns the errors on programs of AutoTVM's templates, per device, of fits without it."""
    found = []
    for name in np.unique(asked.device).tolist():
        others = measured.take(np.flatnonzero(measured.device != name))
        times = fit_schedule_times(others)
        own = asked.take(np.flatnonzero(asked.device == name))
        found.append(_answer(name, own, times, times.new, others, None))
    return found


def _answer(
    name: str,
    own: MeasuredSchedules,
    times: ScheduleTimes,
    widths: RatioWidths,
    others: MeasuredSchedules,
    learned: FloatArray | None,
) -> Answer:
    error = np.abs(times.fit.log_s(own.columns) - own.log_s)
    width = widths.of(own.kind, own.columns.is_ordinary)
    ratio = others.log_s - np.log(others.columns.floor_s)
    constant = np.log(own.columns.floor_s) + np.median(ratio) - own.log_s
    inside = (error <= width).astype(np.float64)

    def mean(values: FloatArray) -> float:
        _, owner = np.unique(own.owner, return_inverse=True)
        return float(owner_means(values, owner).mean())

    return Answer(
        name, int(own.owner.max()) + 1, len(error), mean(np.abs(constant)),
        None if learned is None else mean(learned), mean(error), float(np.exp(mean(width))),
        mean(inside),
    )  # fmt: skip


def resnet() -> list[list[str]]:
    """Returns the predicted latency of untuned ResNet-50 compiled by TVM, on each device."""
    from cdmpp.networks.graph.factory import load_factory
    from tvm_helper.replay.ways import network_answers

    factory = load_factory(f"{_NETWORK}:resnet50")
    question = NetworkQuestion(
        factory, "resnet50", ways=("tvm-untuned",), labels=_DEVICES, shapes=((3, 224, 224),)
    )
    return [
        [one.device, interval_text(one.latency_s, one.low_s, one.high_s)]
        for one in network_answers(question)
    ]


def _table(name: str, answers: list[Answer]) -> str:
    head = "device" if name != "operators" else "kind of operators"
    heads = [
        head, "tasks", "programs", "bound times a constant", "trees", "bound and schedule",
        "factor each way", "in it",
    ]  # fmt: skip
    rows = [
        [one.what, f"{one.tasks}", f"{one.programs:,}", f"{one.constant:.2f}",
         "-" if one.trees is None else f"{one.trees:.2f}", f"{one.schedule:.2f}",
         f"{one.factor:.1f}", percent_text(one.inside)]
        for one in answers
    ]  # fmt: skip
    return markdown_table(heads, rows)
