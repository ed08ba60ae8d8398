"""Do the measured programs of a task, or its other candidates, help to choose?

Needs the tables of the searched, wide campaigns (`make tables`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xgboost
from numpy.typing import NDArray

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sources import extracted_folder
from cdmpp.metrics import mean_and_interval, spearman
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.saved_model import task_digest
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.text import markdown_table
from lab.experiments.ranked_learners import MODES, Components, NeighbourTrees, Pool, SetRanker
from lab.figures import log_ratio_text
from lab.journal import Journal
from lab.pages import filled, write_page
from lab.paths import ROOT
from lab.stamp import PROGRAMS, stamp
from tvm_helper.cost_model.neighbours import Misses, neighbour_columns
from tvm_helper.cost_model.safety_net import SafetyNet

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Says = Callable[[IntArray, IntArray], FloatArray]

SEEDS = (0, 1, 2)
#: Measured programs of a task; the next 32 at most are the candidates, a quarter is chosen.
MEASURED, NEXT = (8, 16, 24), 32
_FOLDS = 3
_DRAWS = 200
_ROUND = 16
_SHARE = 0.5
#: A gap of the journal that is the beginning of another search.
_PAUSE_S = 300
#: As TVM's XGBModel.
_XGB = {"max_depth": 10, "gamma": 0.001, "min_child_weight": 0, "eta": 0.2, "seed": 43,
        "nthread": 1, "tree_method": "hist", "max_bin": 64}  # fmt: skip
_XGB_ROUNDS = 60
LINES = {
    "random": "at random",
    "model": "the shipped model alone",
    "today": "as a search scores: the model, XGB of the search where it ranks better",
    "xgb": "XGB of the task's measured programs",
    "blend": "the model and that XGB, half each",
    "neighbours": "the model and what it missed on the task's measured programs",
    "neighbours_xgb": "the same, and a fifth of that XGB",
    "trees": "trees over measured neighbours (3 seeds)",
    **{mode: f"set network, {words} (3 seeds)" for mode, words in {
        "alone": "each candidate alone", "across": "attention across candidates",
        "measured": "attention to measured programs", "both": "both attentions"}.items()},
}  # fmt: skip


def loaded(trained: TrainedModel) -> tuple[Pool, dict[str, Any]]:
    """Returns all programs of tasks that the model did not learn from, those of searches in the
    order in which they were measured; and for each its set, its task, whether its task is judged,
    its search and its round.
    """
    cache = ROOT / "cache"
    folders = {
        "searched": cache / "data" / "metaschedule-cpu-searched",
        "wide": cache / "data" / "metaschedule-cpu-wide",
        "found": ROOT / "data" / "metaschedule-cpu-found",
        "random": ROOT / "data" / "metaschedule-cpu",
        "tenset": extracted_folder(ROOT / "data" / "tenset-cpu", None, cache_dir=cache),
    }
    pools: list[Pool] = []
    facts: dict[str, list[Any]] = {"set": [], "is_judged": [], "search": [], "round": []}
    groups = 0
    for name, folder in folders.items():
        samples = load_samples(folder, cache_dir=cache)
        digest = [task_digest(str(task)) for task in samples.programs.tasks]
        is_new = np.array([one not in trained.card.training_tasks for one in digest])
        samples = samples.take(is_new[samples.task_id])
        place = _places(folder) if name == "searched" else None
        if place is not None:
            names = samples.programs.program_id[samples.program]
            samples = samples.take(np.argsort([place[str(one)][0] for one in names]))
        names = samples.programs.program_id[samples.program]
        _, group = np.unique(samples.task_id * 64 + samples.device, return_inverse=True)
        pools.append(_pool(trained, samples, group + groups, is_searched=place is not None))
        groups += int(group.max()) + 1
        facts["set"] += [name] * len(samples)
        facts["is_judged"] += [place is not None and _is_judged(digest[one])
                               for one in samples.task_id]  # fmt: skip
        for at, key in ((1, "search"), (2, "round")):
            facts[key] += [0 if place is None else place[str(one)][at] for one in names]
    columns = {one: np.concatenate([getattr(p, one) for p in pools]) for one in vars(pools[0])}
    pool = Pool(**columns)
    return pool, {name: np.array(values) for name, values in facts.items()}


def _is_judged(digest: str) -> bool:
    return int(hashlib.sha256(f"ranked{digest}".encode()).hexdigest(), 16) % 2 == 1


def _pool(trained: TrainedModel, samples: Samples, group: IntArray, *, is_searched: bool) -> Pool:
    model = trained.model
    assert isinstance(model, EnsembleCostModel)
    batches = model.transformer._batches(samples)
    embedding: dict[int, FloatArray] = {}
    with torch.no_grad():
        for programs in batches.in_order(256):
            _, state = model.transformer.tuning_network().with_embedding(batches.batch(programs))
            rows = state.transpose(0, 1).flatten(1).numpy()
            embedding |= dict(zip(batches.sample_rows(programs).tolist(), rows, strict=True))
    return Pool(
        group=group, is_searched=np.full(len(samples), is_searched),
        log_s=np.log(samples.latency_s), said=np.log(model.predict(samples)),
        columns=neighbour_columns(samples),
        embedding=np.stack([embedding[one] for one in range(len(samples))]).astype(np.float32),
    )  # fmt: skip


def _places(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Returns program id -> place in the journal, search and round."""
    found: dict[str, tuple[int, int, int]] = {}
    search = number = 0
    last: dict[str, Any] | None = None
    for line in (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] != "measured":
            continue
        if last is not None:
            pause = entry["measured_at"] - last["measured_at"]
            search += pause < 0 or pause > _PAUSE_S
            number += entry["task"] != last["task"]
        found[entry["program_id"]] = (len(found), search, number)
        last = entry
    return found


def examples(pool: Pool, asked: IntArray) -> Iterator[tuple[int, int, IntArray, IntArray]]:
    """Yields (group, number of measured programs, these, the candidates) of what was searched."""
    for group in np.unique(pool.group[asked]):
        rows = asked[pool.group[asked] == group]
        for count in MEASURED:
            following = rows[count : count + NEXT]
            if len(following) >= 8:
                yield int(group), count, rows[:count], following


def today(pool: Pool, facts: dict[str, Any], rows: IntArray) -> Says:
    """Returns how a search with the safety net scores, replayed round by round.

    TVM's model learns from all that a search has measured whenever that has grown by a fifth. Its
    features are pooled leaf columns here.
    """
    states: dict[int, tuple[Any, float]] = {}
    for search in np.unique(facts["search"][rows]):
        own = rows[facts["search"][rows] == search]
        net, trees, learned = SafetyNet(), None, 0
        is_first = np.r_[True, np.diff(facts["round"][own]) != 0]
        starts = np.flatnonzero(is_first)
        pieces = [piece for part in np.split(own, starts[1:])
                  for piece in np.split(part, range(_ROUND, len(part), _ROUND))]  # fmt: skip
        seen = 0
        for piece in pieces:
            states |= dict.fromkeys(piece.tolist(), (trees, net.peer_share))
            peer: FloatArray | None = None if trees is None else _rate(trees, pool, piece)
            net.judge("", np.exp(pool.log_s[piece]), -np.exp(pool.said[piece]), peer)
            seen += len(piece)
            if seen - learned >= learned / 5:
                learned, trees = seen, _xgb(pool, own[:seen])

    def says(_: IntArray, asked: IntArray) -> FloatArray:
        trees, share = states[int(asked[0])]
        rate: FloatArray = np.exp(pool.said[asked].min() - pool.said[asked])
        if trees is None or share == 0:
            return -rate
        return -((1.0 - share) * rate + share * np.maximum(_rate(trees, pool, asked), 0.0))

    return says


def _xgb(pool: Pool, rows: IntArray) -> Any:
    """Returns trees on the best latency of each task over the program's, weighted with it."""
    best = {one: pool.log_s[rows][pool.group[rows] == one].min()
            for one in np.unique(pool.group[rows])}  # fmt: skip
    label = np.exp(np.array([best[one] for one in pool.group[rows]]) - pool.log_s[rows])
    table = xgboost.DMatrix(pool.columns[rows], label, weight=label)
    return xgboost.train(_XGB, table, num_boost_round=_XGB_ROUNDS)


def _rate(trees: Any, pool: Pool, rows: IntArray) -> FloatArray:
    return np.asarray(trees.predict(xgboost.DMatrix(pool.columns[rows])), np.float64)


def plain_lines(pool: Pool) -> dict[str, Says]:
    """Returns the lines that learn from the task's measured programs alone, or not at all."""

    def xgb(measured: IntArray, asked: IntArray) -> FloatArray:
        return np.maximum(_rate(_xgb(pool, measured), pool, asked), 0.02)

    def blend(measured: IntArray, asked: IntArray) -> FloatArray:
        rate: FloatArray = np.exp(pool.said[asked].min() - pool.said[asked])
        return -((1.0 - _SHARE) * rate + _SHARE * xgb(measured, asked))

    def neighbours(measured: IntArray, asked: IntArray) -> FloatArray:
        miss = pool.log_s[measured] - pool.said[measured]
        return pool.said[asked] + Misses(pool.columns[measured], miss).told(pool.columns[asked])

    return {
        "model": lambda _, asked: pool.said[asked],
        "xgb": lambda measured, asked: -xgb(measured, asked),
        "blend": blend,
        "neighbours": neighbours,
        "neighbours_xgb": lambda measured, asked: (
            0.8 * neighbours(measured, asked) - 0.2 * np.log(xgb(measured, asked))
        ),
    }


def learned_lines(pool: Pool, rows: NDArray[np.bool_], seed: int) -> dict[str, Says]:
    """Returns the lines that learn from programs of other tasks, `rows`."""
    known = pool.take(rows)
    trees = NeighbourTrees(known, seed=seed)
    components = Components(known)
    found: dict[str, Says] = {"trees": lambda m, a: trees.said(pool, m, a)}
    for name, mode in MODES.items():
        ranker = SetRanker(known, components, mode, seed=seed)
        found[name] = lambda m, a, ranker=ranker: ranker.said(pool, m, a)  # type: ignore[misc]
    return found


def judged_by(pool: Pool, name: str, says: Says, asked: IntArray) -> list[dict[str, Any]]:
    """Returns a row for every example: order, and the best of the chosen over the best of all."""
    rows = []
    for group, count, measured, following in examples(pool, asked):
        log_s = pool.log_s[following]
        said = says(measured, following)
        chosen = np.argsort(said, kind="stable")[: max(2, len(following) // 4)]
        lost = float(log_s[chosen].min() - log_s.min())
        rows.append({"line": name, "task": group, "measured": count,
                     "spearman": _spearman(said, log_s), "log_ratio": lost})  # fmt: skip
    return rows


def _spearman(said: FloatArray, log_s: FloatArray) -> float:
    return float(spearman(said, log_s)) if np.ptp(said) > 0 and np.ptp(log_s) > 0 else 0.0


def judge(*, is_development: bool) -> dict[str, Any]:
    """Returns what all lines are worth, on development tasks in folds or on the judged tasks."""
    torch.set_num_threads(1)
    trained = load_trained(model_folder("pretrained"))
    pool, facts = loaded(trained)
    searched = np.flatnonzero(pool.is_searched)
    asked = searched[facts["is_judged"][searched] != is_development]
    history = asked if is_development else searched
    rng = np.random.default_rng(0)
    began = time.process_time()
    lines = {**plain_lines(pool), "today": today(pool, facts, history)}
    rows = [row for name, says in lines.items() for row in judged_by(pool, name, says, asked)]
    for _ in range(_DRAWS):
        rows += judged_by(pool, "random", lambda _, a: rng.random(len(a)), asked)
    folds = pool.group % _FOLDS if is_development else np.zeros(len(pool.group), np.int64)
    seeds = SEEDS[:1] if is_development else SEEDS
    for fold, seed in itertools.product(np.unique(folds[asked]), seeds):
        own = asked[folds[asked] == fold]
        learn = ~facts["is_judged"] & ~np.isin(pool.group, pool.group[own])
        for name, says in learned_lines(pool, learn, seed).items():
            rows += judged_by(pool, name, says, own)
        print(f"fold {fold}, seed {seed}: {time.process_time() - began:.0f} CPU s", flush=True)
    return {
        "rows": _means(rows), "unchosen": _unchosen(pool, facts, lines),
        "tasks": len({row["task"] for row in rows}), "cpu_s": time.process_time() - began,
        "stamp": stamp("", schemas=PROGRAMS, models=[PRETRAINED]),
    }  # fmt: skip


def _unchosen(pool: Pool, facts: dict[str, Any], lines: dict[str, Says]) -> list[dict[str, Any]]:
    """Returns the same for programs that no model chose: half of a task's count as measured."""
    rng = np.random.default_rng(0)
    rows = []
    for name, group in itertools.product(("wide", "random", "tenset"), np.unique(pool.group)):
        own = np.flatnonzero((pool.group == group) & (facts["set"] == name))
        for _ in range(3 if len(own) >= 8 else 0):
            drawn = rng.permutation(own)
            half = drawn[: len(own) // 2], drawn[len(own) // 2 :]
            for line in ("model", "xgb", "blend", "neighbours", "neighbours_xgb"):
                found = _spearman(lines[line](*half), pool.log_s[half[1]])
                rows.append({"set": name, "line": line, "task": int(group), "spearman": found})
    return rows


def _means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["line"], row["task"], row["measured"]), []).append(row)
    return [
        {"line": line, "task": task, "measured": measured,
         **{key: float(np.mean([one[key] for one in own])) for key in ("spearman", "log_ratio")}}
        for (line, task, measured), own in found.items()
    ]  # fmt: skip


def experiment(work: Path = ROOT / "runs" / "ranked-together") -> None:
    """Judges on both kinds of tasks what is not judged yet; writes the tables of the page, whose
    text is in the page.
    """
    journal = Journal(work / "judged.jsonl")
    found = {
        name: dict(journal.cell(name, partial(judge, is_development=name == "develop")))
        for name in ("judge", "develop")
    }
    tables = [_table(found[step]["rows"]) for step in ("judge", "develop")]
    rows = found["develop"]["unchosen"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    names = list(dict.fromkeys(row["line"] for row in rows))
    plain = {name: {one: _by_task([r for r in rows if r["set"] == name and r["line"] == one],
                                  "spearman") for one in names} for name in sets}  # fmt: skip
    tables.append(
        markdown_table(
            ["line", *(f"{name} ({len(plain[name]['model'])} tasks)" for name in sets)],
            [[LINES[one], *(_correlation(plain[name], one, "model") for name in sets)]
             for one in names],
        )
    )  # fmt: skip
    text = filled("ranked-together", **{f"table_{n}": table for n, table in enumerate(tables)})
    command = "python -m lab run ranked-together"
    parts = [found[step].pop("stamp", None) for step in found]
    origin = stamp(command, schemas=PROGRAMS, models=[PRETRAINED], parts=parts)
    write_page("ranked-together", text, found, origin)


def _table(rows: list[dict[str, Any]]) -> str:
    """Returns a line for each scorer: order and loss by number of measured programs, and both over
    all of them beside today's.
    """
    values: dict[str, dict[str, dict[int, float]]] = {
        key: {line: _by_task([row for row in rows if row["line"] == line], key) for line in LINES}
        for key in ("spearman", "log_ratio")
    }
    table = []
    for line, words in LINES.items():
        cells = [words]
        for count in MEASURED:
            own = [row for row in rows if row["line"] == line and row["measured"] == count]
            order = np.mean([row["spearman"] for row in own])
            lost = np.exp(np.mean([row["log_ratio"] for row in own]))
            cells.append(f"{order:.2f}, {lost:.3f}")
        cells.append(_correlation(values["spearman"], line, "today"))
        cells.append(log_ratio_text(*_difference(values["log_ratio"], line, "today")))
        table.append(cells)
    tasks = {
        count: len({row["task"] for row in rows if row["measured"] == count}) for count in MEASURED
    }
    heads = [f"{count} measured ({tasks[count]} tasks)" for count in MEASURED]
    return markdown_table(
        ["who chooses", *heads, "Spearman, less today's", "best chosen, over today's"], table
    )


def _by_task(rows: list[dict[str, Any]], key: str) -> dict[int, float]:
    tasks = sorted({row["task"] for row in rows})
    return {task: float(np.mean([row[key] for row in rows if row["task"] == task]))
            for task in tasks}  # fmt: skip


def _difference(values: dict[str, dict[int, float]], line: str, base: str) -> tuple[float, float]:
    """Returns the mean over tasks and its 95 % half width."""
    mean, half = mean_and_interval([one - values[base][task] for task, one in values[line].items()])
    return mean, half or 0.0


def _correlation(values: dict[str, dict[int, float]], line: str, base: str) -> str:
    if line == base:
        return f"({np.mean(list(values[line].values())):.2f})"
    mean, half = _difference(values, line, base)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"
