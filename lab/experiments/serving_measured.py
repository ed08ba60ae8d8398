"""Servers under load, calibrated on a few of their measured loads; models are held out.

A deployment is one model, system, backend, version, format, parallelism and day. Some points are
drawn from it as measured; the rest are the test part. The weight of the packaged fit against the
points, and the intervals, come from the other models, each with host times fitted without it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.comparison.llm.calibrate import HOSTS_S, fitted
from cdmpp.comparison.llm.evaluate import MeasuredLoad
from cdmpp.comparison.llm.load import MOST_POINTS, ServerCalibration, Shrinkage
from cdmpp.text import markdown_table

Spread = Mapping[str, tuple[float, float]]
KINDS = ("ttft", "tpot")
#: Columns that define a deployment.
_DEPLOYMENT = (
    "model_path", "system", "backend", "backend_version", "image", "precision", "gemm_quant_mode",
    "moe_quant_mode", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size",
    "first_measured", "wip",
)  # fmt: skip
#: At least two test rows after three measured ones.
_LEAST_ROWS = MOST_POINTS + 2
_SEEDS = range(3)
_HOST, _TTFT = (0.003, 0.01, 0.03, 0.1, 1e9), (0.03, 0.1, 0.3, 1.0, 1e9)
_TPOT = (0.0, 0.03, 0.1, 0.3, 1.0)
_FREE = Shrinkage(1e-9, 1e-9, 0.0)


@dataclass(frozen=True)
class Point:
    """A measured load with its simulations.

    Attributes:
        row: the prediction, with measured times.
        curve: see `cdmpp.comparison.llm.calibrate.curve`.
    """

    row: MeasuredLoad
    curve: FloatArray

    @property
    def lengths(self) -> tuple[int, int]:
        """Tokens in and out."""
        return self.row.cell.load.input_tokens, self.row.cell.load.output_tokens

    @property
    def users(self) -> int:
        """Requests in flight."""
        return self.row.cell.load.concurrency

    @property
    def measured(self) -> FloatArray:
        """float64 [2], seconds to the first token and per token."""
        return np.array([self.row.ttft_s, self.row.tpot_s])

    def predicted(self, one: ServerCalibration) -> FloatArray:
        """Returns float64 [2], the calibrated prediction, interpolated between `HOSTS_S`."""
        found = [np.interp(one.host_s, HOSTS_S, times) for times in self.curve]
        return np.array(found) * [one.ttft, one.tpot]


@dataclass(frozen=True)
class Trial:
    """Some points of a deployment that count as measured, and test points with equal lengths."""

    way: str
    seed: int
    known: Sequence[Point]
    test: Sequence[Point]

    @property
    def kind(self) -> str:
        """See `ServerCalibration.kind`."""
        lengths = frozenset(one.lengths for one in self.known)
        own = ServerCalibration(0.0, points=len(self.known), lengths=lengths)
        return own.kind(self.test[0].row.cell.load)

    def logs(self, one: ServerCalibration) -> FloatArray:
        """Returns float64 [test, 2], log(measured / predicted)."""
        return np.array([np.log(test.measured / test.predicted(one)) for test in self.test])

    def fitted(self, host_s: float, shrinkage: Shrinkage) -> ServerCalibration:
        """Returns the calibration on the known points."""
        return _fitted(self.known, host_s, shrinkage)


def _fitted(points: Sequence[Point], host_s: float, shrinkage: Shrinkage) -> ServerCalibration:
    curves, measured = ([getattr(one, name) for one in points] for name in ("curve", "measured"))
    return fitted(np.array(curves), np.array(measured), host_s, shrinkage)


def points_of(
    table: Sequence[Mapping[str, Any]],
    answered: Callable[[Sequence[Mapping[str, Any]], float], Sequence[MeasuredLoad]],
) -> list[list[Point]]:
    """Returns the points of each deployment with at least `_LEAST_ROWS` of them.

    Args:
        table: all columns.
        answered: (rows, seconds per request) -> predictions.
    """
    by_deployment: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in table:
        by_deployment[tuple(row[name] for name in _DEPLOYMENT)].append(row)
    found = []
    for part in by_deployment.values():
        if len(part) < _LEAST_ROWS:
            continue
        points = []
        for rows in zip(*(answered(part, host_s) for host_s in HOSTS_S), strict=True):
            times = [[getattr(one.cell, f"{kind}_s") for one in rows] for kind in KINDS]
            if None not in times[0]:
                points.append(Point(rows[0], np.array(times)[:, :, 0]))
        if len(points) >= _LEAST_ROWS:
            found.append(points)
    return found


def trials_of(points: Sequence[Point]) -> list[Trial]:
    """Returns trials with 1 to 3 known points: drawn from all points, or lowest, middle and highest
    concurrency at drawn lengths.
    """
    found = []
    for seed, way in product(_SEEDS, ("random", "sweep")):
        rng = np.random.default_rng(seed)
        if way == "random":
            known = [points[place] for place in rng.permutation(len(points))[:MOST_POINTS]]
        else:
            known = _ends_and_middle(points, rng)
        if len(known) < MOST_POINTS:
            continue
        by_lengths: dict[tuple[int, int], list[Point]] = defaultdict(list)
        for one in points:
            if not any(one is own for own in known):
                by_lengths[one.lengths].append(one)
        found += [
            Trial(way, seed, known[:count], test)
            for count in range(1, MOST_POINTS + 1)
            for test in by_lengths.values()
        ]
    return found


def _ends_and_middle(points: Sequence[Point], rng: np.random.Generator) -> list[Point]:
    lengths = [one.lengths for one in points]
    enough = sorted(one for one in set(lengths) if lengths.count(one) >= MOST_POINTS)
    if not enough:
        return []
    drawn = enough[rng.integers(len(enough))]
    own = sorted((one for one in points if one.lengths == drawn), key=lambda one: one.users)
    return [own[0], own[len(own) // 2], own[-1]]


@dataclass(frozen=True)
class MeasuredFit:
    """Trials of models, with host times fitted without the trial's model.

    Attributes:
        trials: of all deployments.
        host_s: a trial -> seconds per request, fitted without its model.
    """

    trials: Sequence[Trial]
    host_s: Callable[[Trial], float]

    def shrinkage(self) -> Shrinkage:
        """Returns the shrinkage with the smallest error; every combination of model family,
        backend and number of points has the same weight.
        """
        found = Shrinkage()
        tried = [replace(found, host=host, ttft=ttft) for host, ttft in product(_HOST, _TTFT)]
        found = min(tried, key=lambda one: self._error(one, 0))
        return min(
            (replace(found, tpot=tpot) for tpot in _TPOT), key=lambda one: self._error(one, 1)
        )

    def _error(self, shrinkage: Shrinkage, kind: int) -> float:
        errors: dict[tuple[str, str, int], list[FloatArray]] = defaultdict(list)
        for one in self.trials:
            row = one.test[0].row
            logs = one.logs(one.fitted(self.host_s(one), shrinkage))[:, kind]
            errors[row.family, row.backend, len(one.known)].append(np.abs(logs))
        return float(np.mean([np.concatenate(own).mean() for own in errors.values()]))

    def spreads(
        self, shrinkage: Shrinkage, conformal: Callable[[list[FloatArray]], tuple[float, float]]
    ) -> dict[str, Spread]:
        """Returns calibration kind -> factors of the ends, from errors of held-out models."""
        errors: dict[str, dict[str, list[FloatArray]]] = defaultdict(lambda: defaultdict(list))
        for one in self.trials:
            logs = one.logs(one.fitted(self.host_s(one), shrinkage))
            errors[one.kind][one.test[0].row.family].append(logs)
        return {
            kind: {
                name: conformal(
                    [np.concatenate(own)[:, [place, place]] for own in by_family.values()]
                )
                for place, name in enumerate(KINDS)
            }
            for kind, by_family in sorted(errors.items())
        }


@dataclass(frozen=True)
class Judged:
    """A trial of a held-out group; `logs`: method -> log(measured / predicted), [test, 2]."""

    trial: Trial
    logs: Mapping[str, FloatArray]
    before: Spread
    after: Spread

    def ends(self, place: int, is_after: bool) -> FloatArray:
        """Returns float64 [test, 2], logs of the interval ends over the predicted value."""
        kind = KINDS[place]
        found = np.tile(np.log((self.after if is_after else self.before)[kind]), (len(self), 1))
        if not is_after:  # add the kernels' own intervals
            own = [getattr(one.row.cell, f"{kind}_s") for one in self.trial.test]
            found += np.log([[end / one[0] for end in one[1:]] for one in own])
        return found

    def __len__(self) -> int:
        return len(self.trial.test)


def answers(
    trial: Trial, points: Sequence[Point], host_s: float, shrinkage: Shrinkage
) -> dict[str, FloatArray]:
    """Returns the errors of a trial without and with its measured points, and of baselines.

    Args:
        points: of the whole deployment, for the oracle.
    """
    plain = ServerCalibration(host_s)
    known = np.mean([np.log(one.measured / one.predicted(plain)) for one in trial.known], axis=0)
    nearest = [min(trial.known, key=lambda own: _distance(own, one)) for one in trial.test]
    return {
        "packaged": trial.logs(plain),
        "calibrated": trial.logs(trial.fitted(host_s, shrinkage)),
        "one factor": trial.logs(plain) - known,
        "nearest point": np.array([
            np.log(one.measured / own.measured)
            for one, own in zip(trial.test, nearest, strict=True)
        ]),
        "oracle": trial.logs(_fitted(points, host_s, _FREE)),
    }  # fmt: skip


def _distance(one: Point, other: Point) -> float:
    return math.dist(*(np.log([*own.lengths, own.users]) for own in (one, other)))


def page_parts(judged: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Returns sections of the page.

    Args:
        judged: `models left out` and `systems left out`.
    """
    found = []
    for title, every in judged.items():
        lines = [
            [f"{count} measured, {lengths}", *_line(part)]
            for count, lengths in product(
                range(1, MOST_POINTS + 1), ("all lengths", "same lengths", "other lengths")
            )
            if (part := [one for one in every if _is_of(one.trial, count, lengths)])
        ]
        titles = [
            "points", "n", "TTFT before (%)", "TTFT error (%)", "TPOT before (%)", "TPOT error (%)",
            "TTFT inside before", "TTFT inside", "TPOT inside before", "TPOT inside",
            "TTFT high / low before", "TTFT high / low", "TPOT high / low before",
            "TPOT high / low",
        ]  # fmt: skip
        heading = f"## With measured loads of the server, {title}\n"
        found += [heading, markdown_table(titles, lines, "lr"), ""]
    family = next(iter(judged.values()))
    names = list(family[0].logs)
    lines = []
    for place, kind in enumerate(KINDS):
        for count in range(1, MOST_POINTS + 1):
            part = [one for one in family if len(one.trial.known) == count]
            each = [f"{_error(part, name, place):.1f}" for name in names]
            lines.append([f"{kind.upper()}, {count} measured", *each])
    table = markdown_table(["median error (%)", *names], lines, "lr")
    found += ["## Beside baselines\n", table, ""]
    lines = [
        [f"{way}, {count} measured", *(_by_seed(family, way, count, place) for place in (0, 1))]
        for way in ("random", "sweep")
        for count in range(1, MOST_POINTS + 1)
    ]
    titles = ["points", "TTFT error (%), least to most of seeds", "TPOT error (%)"]
    return [*found, "## Which loads to measure\n", markdown_table(titles, lines, "lr"), ""]


def _is_of(trial: Trial, count: int, lengths: str) -> bool:
    return len(trial.known) == count and (lengths == "all lengths" or trial.kind.endswith(lengths))


def _line(part: Sequence[Judged]) -> list[str]:
    errors = [
        f"{_error(part, name, place):.1f}"
        for place in (0, 1)
        for name in ("packaged", "calibrated")
    ]
    inside, widths = [], []
    for place, is_after in product((0, 1), (False, True)):
        logs = [one.logs["calibrated" if is_after else "packaged"][:, place] for one in part]
        low, high = np.concatenate([one.ends(place, is_after) for one in part]).T
        every = np.concatenate(logs)
        inside.append(f"{100 * np.mean((low <= every) & (every <= high)):.0f} %")
        widths.append(f"{np.exp(np.median(high - low)):.2f}")
    return [f"{len(every):,}", *errors, *inside, *widths]


def _error(part: Sequence[Judged], name: str, place: int) -> float:
    logs = np.concatenate([one.logs[name][:, place] for one in part])
    return 100 * float(np.median(np.abs(np.exp(-logs) - 1)))


def _by_seed(every: Sequence[Judged], way: str, count: int, place: int) -> str:
    chosen = [one for one in every if one.trial.way == way and len(one.trial.known) == count]
    each = [
        _error([one for one in chosen if one.trial.seed == seed], "calibrated", place)
        for seed in _SEEDS
    ]
    return f"{np.median(each):.1f} ({min(each):.1f} to {max(each):.1f})"
