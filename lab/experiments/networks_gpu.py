"""Step times of timm's networks on three GPUs, with families and devices held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.arrays import BoolArray, FloatArray, IntArray
from cdmpp.config import to_dict
from cdmpp.files.atomic import write_bytes
from cdmpp.networks.step_time.fit import StepFitOptions, family_folds
from cdmpp.networks.step_time.graphs import read_graphs
from cdmpp.networks.step_time.macs_baseline import macs_factors, macs_logs
from cdmpp.networks.step_time.model import StepTimeModel
from cdmpp.networks.step_time.runs import MeasuredRun, read_runs
from cdmpp.text import markdown_table, percent_text
from lab.experiments.seernet_on_timm import seernet_logs
from lab.figures import read_columns
from lab.pages import sections, write_page
from lab.paths import PAGES, ROOT, SHARED_DATA
from lab.stamp import stamp

TABLE = SHARED_DATA / "timm-bench" / "timm_bench.parquet"
#: Folds of the families on which noise, epochs and batch were chosen.
CHOSEN_ON = (0, 1)
#: Device and configuration with the most runs.
_SEERNET_ON = ("rtx3090", "infer nchw eager")
SEERNET_FITS = ROOT / "runs" / "seernet-timm"
_SAMPLES, _SEED = 300, 0


def experiment(run: Path = ROOT / "runs" / "step_time", table: Path = TABLE) -> None:
    """Writes the page (after `cdmpp networks train --table`).

    Args:
        run: run folder of that training.
        table: its training table.
    """
    steps = _Judged(run, read_runs(table)[0])
    lines = {"the model": steps.log_predicted, "MACs at peak, one factor a way": steps.log_macs,
             "the same network on another device, one factor": steps.log_elsewhere}  # fmt: skip
    rows, kept = [], {}
    for name, chosen in steps.goals().items():
        known = chosen & steps.is_judged
        cells = [name, f"{known.sum():,}"]
        for line, logs in lines.items():
            value = steps.median_ape(known, logs)
            cells.append(_with_interval(value))
            kept[f"{name}, {line}"] = value
        rows.append(cells)
    goals = markdown_table(["families left out", "runs", *lines], rows)

    devices = []
    for label in sorted(set(steps.device)):
        for way in sorted(set(steps.way)):
            chosen = steps.is_judged & (steps.device == label) & (steps.way == way)
            unseen = chosen & np.isfinite(steps.log_unseen)
            if not chosen.any():
                continue
            errors = steps.median_ape(unseen, steps.log_unseen)
            devices.append(
                [f"`{label}`", way, f"{chosen.sum():,}", _with_interval(
                    steps.median_ape(chosen, steps.log_predicted)),
                 percent_text(steps.inside(chosen), 0),
                 "-" if way.startswith("train") else _with_interval(errors)]
            )  # fmt: skip
    by_device = markdown_table(
        ["device", "way of running", "runs", "median error, %", "in the interval",
         "device left out too"], devices,
    )  # fmt: skip

    seernet, seernet_values = _seernet(steps)
    facts = {
        "goals": {name: list(value) for name, value in kept.items() if np.isfinite(value).all()},
        "options": to_dict(StepFitOptions()), "seernet": seernet_values,
    }  # fmt: skip
    _picture(steps)
    text = sections("networks-gpu", goals=goals, by_device=by_device, seernet=seernet)
    found = stamp("python -m lab run networks-gpu", schemas=())
    write_page("networks-gpu", text, facts, found)


class _Judged:
    """Measured runs with predictions of fits without their families."""

    def __init__(self, run: Path, runs: Sequence[MeasuredRun]) -> None:
        columns = read_columns(run / "left_out.parquet")
        model = StepTimeModel.load(run)
        graphs = read_graphs()
        self.runs = [
            one for one in runs if one.device in model.devices and (one.arch, one.size) in graphs
        ]
        assert np.array_equal(columns["arch"], [one.arch for one in self.runs])
        self.log_s = np.log(columns["measured_s"])
        self.seeds = [np.log(columns[name]) for name in columns if name.startswith("seed")]
        self.log_predicted = np.mean(self.seeds, axis=0)
        self.log_unseen = np.log(columns["device_left_out_s"])
        self.device, self.way, self.arch = (
            np.array(columns[name], np.str_) for name in ("device", "way", "arch")
        )
        self.parts = family_folds(self.runs, StepFitOptions().folds, seed=0)
        self.is_judged = ~np.isin(self.parts, CHOSEN_ON)
        self.width = np.array([model.half_width(one.device, one.execution) for one in self.runs])
        self.log_macs = np.full(len(self.runs), np.nan)
        self.log_elsewhere = np.full(len(self.runs), np.nan)
        for part in np.unique(self.parts):
            here, others = self.parts == part, np.flatnonzero(self.parts != part)
            self.log_macs[here] = macs_logs(self.runs, macs_factors(self.runs, others))[here]
            self.log_elsewhere[here] = self._elsewhere(others)[here]

    def goals(self) -> Mapping[str, BoolArray]:
        """Returns the groups of runs that have a goal."""
        infer = np.char.startswith(self.way, "infer")
        compiled = np.char.endswith(self.way, "compiled")
        return {
            "inference, eager": infer & ~compiled, "inference, compiled": infer & compiled,
            "training step": ~infer,
        }  # fmt: skip

    def median_ape(self, rows: BoolArray, logs: FloatArray) -> tuple[float, float, float]:
        """Returns the median error and its 95 % interval over architectures."""
        chosen = np.flatnonzero(rows & np.isfinite(logs))
        if not len(chosen):
            return float("nan"), float("nan"), float("nan")
        errors = np.abs(np.expm1(logs[chosen] - self.log_s[chosen]))
        owner = np.unique(self.arch[chosen], return_inverse=True)[1]
        order = np.argsort(owner, kind="stable")
        parts = np.split(errors[order], np.cumsum(np.bincount(owner))[:-1])
        generator = np.random.default_rng(_SEED)
        draws = generator.integers(0, len(parts), (_SAMPLES, len(parts)))
        drawn = [np.median(np.concatenate([parts[i] for i in draw])) for draw in draws]
        low, high = np.quantile(drawn, [0.025, 0.975])
        return float(np.median(errors)), float(low), float(high)

    def inside(self, rows: BoolArray) -> float:
        """Returns the share of runs inside their intervals."""
        return float(np.mean(np.abs(self.log_predicted - self.log_s)[rows] <= self.width[rows]))

    def per_sample(self, logs: FloatArray) -> FloatArray:
        """Returns float64 [N], logs of seconds per sample, because batches of a pair may differ."""
        return logs - np.log([run.batch for run in self.runs])

    def _elsewhere(self, others: IntArray) -> FloatArray:
        """Returns float64 [N], log seconds predicted from the same network and execution on another
        device: time per sample, times a factor per pair of devices and execution.
        """

        def key(run: MeasuredRun, device: str) -> tuple[Any, ...]:
            return run.arch, run.size, run.execution, device

        labels = sorted(set(self.device))
        logs = self.per_sample(self.log_s)
        places: dict[Any, int] = {}
        for place, run in enumerate(self.runs):
            places.setdefault(key(run, run.device), place)
        ratios: dict[Any, list[float]] = {}
        partner: list[tuple[int, Any] | None] = []
        is_other = np.zeros(len(self.runs), bool)
        is_other[others] = True
        for place, run in enumerate(self.runs):
            found = next(
                (
                    (places[key(run, label)], (run.execution, run.device, label))
                    for label in labels
                    if label != run.device and key(run, label) in places
                ),
                None,
            )
            partner.append(found)
            if found is not None and is_other[place]:
                ratios.setdefault(found[1], []).append(logs[place] - logs[found[0]])
        factors = {name: float(np.median(values)) for name, values in ratios.items()}
        return np.array(
            [
                np.nan if one is None or one[1] not in factors
                else logs[one[0]] + factors[one[1]] + np.log(run.batch)
                for one, run in zip(partner, self.runs, strict=True)
            ]
        )  # fmt: skip


def _seernet(steps: _Judged) -> tuple[str, dict[str, list[float]]]:
    """Returns the table of SeerNet and the model on one configuration, and its values."""
    rows = (steps.device == _SEERNET_ON[0]) & (steps.way == _SEERNET_ON[1])
    judged = sorted(set(steps.parts.tolist()) - set(CHOSEN_ON))
    found = seernet_logs(steps.runs, rows, steps.parts, judged, SEERNET_FITS)
    chosen = rows & steps.is_judged
    lines = {"the model, one seed": steps.seeds[0], "SeerNet, one seed": found,
             "MACs at peak, one factor a way": steps.log_macs}  # fmt: skip
    values = {name: steps.median_ape(chosen, logs) for name, logs in lines.items()}
    table = markdown_table(
        ["trained on", "runs", *lines],
        [[f"`{_SEERNET_ON[0]}`, {_SEERNET_ON[1]}", f"{chosen.sum():,}",
          *map(_with_interval, values.values())]],
    )  # fmt: skip
    return table, {name: list(value) for name, value in values.items()}


def _with_interval(value: tuple[float, float, float]) -> str:
    if not np.isfinite(value[0]):
        return "-"
    middle, low, high = (100 * one for one in value)
    return f"{middle:.1f} [{low:.1f}, {high:.1f}]"


def _picture(steps: _Judged) -> None:
    """Draws predicted against measured times, one panel per device."""
    import io

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = sorted(set(steps.device))
    figure, axes = plt.subplots(1, len(labels), figsize=(11, 3.8), sharex=True, sharey=True)
    colours = {"infer": "tab:blue", "compiled": "tab:orange", "train": "tab:green"}
    words = {"infer": "inference, eager", "compiled": "inference, compiled", "train": "training"}
    kind = np.where(
        np.char.endswith(steps.way, "compiled"), "compiled",
        np.where(np.char.startswith(steps.way, "train"), "train", "infer"),
    )  # fmt: skip
    for axis, label in zip(axes, labels, strict=True):
        for name, colour in colours.items():
            rows = np.flatnonzero((steps.device == label) & (kind == name) & steps.is_judged)
            if len(rows):
                measured, said = (
                    1e3 * np.exp(logs[rows]) for logs in (steps.log_s, steps.log_predicted)
                )
                style = {"color": colour, "markersize": 2, "alpha": 0.5}
                axis.plot(measured, said, ".", label=words[name], **style)
        ends = [1e3 * np.exp(steps.log_s.min()), 1e3 * np.exp(steps.log_s.max())]
        axis.plot(ends, ends, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(label)
        axis.set_xlabel("measured step, ms")
        axis.legend(loc="upper left", fontsize=7, markerscale=4, frameon=False)
    axes[0].set_ylabel("predicted step, ms")
    figure.tight_layout()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    write_bytes(PAGES / "networks-gpu.png", content.getvalue())
