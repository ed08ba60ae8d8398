"""Learners that rank candidates of a task together, beside its measured programs: set networks
and trees over neighbours. What `lab.experiments.ranked_together` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import xgboost
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tvm_helper.cost_model.neighbours import Misses

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

#: What a set network does beside looking at each candidate alone.
MODES = {"alone": "", "across": "a", "measured": "m", "both": "am"}
_HIDDEN, _BLOCKS, _HEADS = 64, 2, 4
_EPOCHS, _BATCH, _RATE, _DECAY = 15, 32, 1e-3, 0.1
#: Programs of an example: measured ones at most, all at most.
_MOST_MEASURED, _MOST = 24, 48
_SEARCH_TIMES = 4
_FROM_EMBEDDING, _FROM_COLUMNS = 32, 64


@dataclass(frozen=True)
class Pool:
    """Programs of tasks that the model did not learn from.

    Attributes:
        group: int64 [N], equal for programs of one task on one device.
        is_searched: bool [N], whether a search chose them; in the order in which it measured them.
        log_s: float64 [N], measured.
        said: float64 [N], log seconds by the model.
        columns: float64 [N, column], see `neighbour_columns`.
        embedding: float32 [N, E], by the model's transformer.
    """

    group: IntArray
    is_searched: NDArray[np.bool_]
    log_s: FloatArray
    said: FloatArray
    columns: FloatArray
    embedding: NDArray[np.float32]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Pool:
        """Returns some of the programs."""
        return replace(self, **{name: value[rows] for name, value in vars(self).items()})

    def groups(self) -> list[IntArray]:
        """Returns the rows of every group of eight programs or more, in order."""
        found = [np.flatnonzero(self.group == one) for one in np.unique(self.group)]
        return [rows for rows in found if len(rows) >= 8]


class _Block(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self._mode = mode
        self.inner = nn.Sequential(
            nn.LayerNorm(_HIDDEN), nn.Linear(_HIDDEN, 2 * _HIDDEN), nn.GELU(), nn.Dropout(0.1),
            nn.Linear(2 * _HIDDEN, _HIDDEN),
        )  # fmt: skip
        self.across = nn.Sequential(nn.LayerNorm(2 * _HIDDEN), nn.Linear(2 * _HIDDEN, _HIDDEN))
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.ask, self.key = nn.Linear(_HIDDEN, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        self.value = nn.Linear(_HIDDEN + 3, _HIDDEN)
        self.out = nn.Linear(_HIDDEN, _HIDDEN)

    def forward(self, state: Tensor, told: Tensor, mask: Tensor, measured: Tensor) -> Tensor:
        state = state + self.inner(state)
        if "a" in self._mode:
            count = mask.sum(dim=1)[:, None, None]
            scaled = (state / self.log_temperature.exp()).masked_fill(~mask[..., None], -1e9)
            share = torch.softmax(scaled, dim=1) * count
            state = state + self.across(torch.cat([state, state * share], dim=-1))
        if "m" in self._mode:
            batch, length, _ = state.shape
            parts = (self.ask(state), self.key(state), self.value(torch.cat([state, told], -1)))
            ask, key, value = (one.view(batch, length, _HEADS, -1).transpose(1, 2) for one in parts)
            has_any = measured.any(dim=1)[:, None, None]
            seen = measured[:, None, None, :] | ~has_any[:, None]
            mixed = functional.scaled_dot_product_attention(ask, key, value, attn_mask=seen)
            mixed = mixed.transpose(1, 2).reshape(batch, length, _HIDDEN)
            state = state + has_any * self.out(mixed)
        return state


class SetNet(nn.Module):
    """Scores the candidates of a task: what the model says of each, plus a learned term."""

    def __init__(self, mode: str, inputs: int) -> None:
        super().__init__()
        self.project = nn.Linear(inputs, _HIDDEN)
        self.blocks = nn.ModuleList(_Block(mode) for _ in range(_BLOCKS))
        last = nn.Linear(_HIDDEN, 1)
        nn.init.zeros_(last.weight)
        self.head = nn.Sequential(nn.LayerNorm(_HIDDEN), last)
        self.trust = nn.Parameter(torch.ones(()))

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Returns float32 [set, program], log seconds but for a constant of the set."""
        state = self.project(batch["inputs"])
        for block in self.blocks:
            state = block(state, batch["told"], batch["mask"], batch["measured"])
        score: Tensor = self.trust * batch["said"] + self.head(state).squeeze(-1)
        return score


class Components:
    """Principal components of the transformer's embedding and of the leaf columns.

    Args:
        pool: what they are fitted on.
    """

    def __init__(self, pool: Pool) -> None:
        self._parts = [
            _principal(one, count)
            for one, count in zip(_wide(pool), (_FROM_EMBEDDING, _FROM_COLUMNS), strict=True)
        ]

    def of(self, pool: Pool) -> FloatArray:
        """Returns float64 [N, component]."""
        parts = [
            np.clip((one - mean) / deviation, -5, 5) @ axes
            for one, (mean, deviation, axes) in zip(_wide(pool), self._parts, strict=True)
        ]
        return np.concatenate(parts, axis=1)


def _wide(pool: Pool) -> tuple[FloatArray, FloatArray]:
    return pool.embedding.astype(np.float64), pool.columns


class SetRanker:
    """A set network trained on tasks that the model has not seen; it sees components as they are
    and relative to the set.
    """

    def __init__(self, pool: Pool, components: Components, mode: str, *, seed: int) -> None:
        self._components = components
        reduced = components.of(pool)
        groups = pool.groups()
        self._spread = np.sqrt(np.mean([reduced[rows].var(axis=0) for rows in groups], axis=0))
        rng = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._net = SetNet(mode, 2 * reduced.shape[1] + 1)
            self._fit(pool, reduced, groups, rng)
        self._net.eval()

    def said(self, pool: Pool, measured: IntArray, asked: IntArray) -> FloatArray:
        """Returns float64 [A], log seconds but for a constant."""
        rows = np.r_[measured, asked]
        batch = self._batch(pool.take(rows), [(np.arange(len(rows)), len(measured))])
        with torch.no_grad():
            return np.asarray(self._net(batch)[0, len(measured) :].numpy(), np.float64)

    def _fit(
        self, pool: Pool, reduced: FloatArray, groups: list[IntArray], rng: np.random.Generator
    ) -> None:
        times = [_SEARCH_TIMES if pool.is_searched[rows[0]] else 1 for rows in groups]
        order = np.repeat(np.arange(len(groups)), times)
        steps = _EPOCHS * -(-len(order) // _BATCH)
        optimiser = torch.optim.AdamW(self._net.parameters(), _RATE, weight_decay=_DECAY)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=steps + 1)
        for _ in range(_EPOCHS):
            rng.shuffle(order)
            for start in range(0, len(order), _BATCH):
                examples = [
                    drawn_example(pool, groups[one], rng) for one in order[start : start + _BATCH]
                ]
                batch = self._batch(pool, examples, reduced)
                loss = _order_loss(self._net(batch), batch)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(self._net.parameters(), 1.0)
                optimiser.step()
                rate.step()

    def _batch(
        self,
        pool: Pool,
        examples: Sequence[tuple[IntArray, int]],
        reduced: FloatArray | None = None,
    ) -> dict[str, Tensor]:
        """Returns padded sets; an example: rows, measured ones first, and their number."""
        reduced = self._components.of(pool) if reduced is None else reduced
        shape = (len(examples), max(len(rows) for rows, _ in examples))
        inputs = np.zeros((*shape, 2 * reduced.shape[1] + 1), np.float32)
        told = np.zeros((*shape, 3), np.float32)
        said, log_s = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        mask, measured = np.zeros(shape, bool), np.zeros(shape, bool)
        for place, (rows, count) in enumerate(examples):
            own, first = reduced[rows], rows[:count]
            relative = np.clip((own - own.mean(axis=0)) / np.maximum(self._spread, 1e-2), -5, 5)
            size = len(rows)
            said[place, :size] = pool.said[rows] - pool.said[rows].mean()
            inputs[place, :size] = np.c_[relative, 0.5 * own, said[place, :size]]
            log_s[place, :size] = pool.log_s[rows]
            mask[place, :size], measured[place, :count] = True, True
            if count:
                miss = pool.log_s[first] - pool.said[first]
                told[place, :count] = np.clip(
                    np.c_[pool.log_s[first] - pool.log_s[first].mean(), miss - miss.mean(),
                          np.ones(count)], -3, 3,
                )  # fmt: skip
        arrays = {"inputs": inputs, "told": told, "said": said, "log_s": log_s, "mask": mask,
                  "measured": measured}  # fmt: skip
        return {name: torch.from_numpy(value) for name, value in arrays.items()}


class NeighbourTrees:
    """Trees over what the measured neighbours of a candidate tell."""

    def __init__(self, pool: Pool, *, seed: int) -> None:
        rng = np.random.default_rng(seed)
        rows, labels = [], []
        for group in pool.groups():
            for _ in range(_SEARCH_TIMES if pool.is_searched[group[0]] else 2):
                example, count = drawn_example(pool, group, rng)
                asked = example[count:]
                if count >= 4:
                    rows.append(_relations(pool, example[:count], asked))
                    labels.append(pool.log_s[asked] - pool.log_s[asked].mean())
        options = {
            "max_depth": 4, "eta": 0.06, "subsample": 0.7, "colsample_bytree": 0.5, "nthread": 1,
            "min_child_weight": 20, "seed": seed, "tree_method": "hist", "max_bin": 64,
        }  # fmt: skip
        label = np.clip(np.concatenate(labels), -1.5, 1.5)
        self._trees = xgboost.train(
            options, xgboost.DMatrix(np.concatenate(rows), label), num_boost_round=150
        )

    def said(self, pool: Pool, measured: IntArray, asked: IntArray) -> FloatArray:
        """Returns float64 [A], log seconds but for a constant."""
        rows = xgboost.DMatrix(_relations(pool, measured, asked))
        return np.asarray(self._trees.predict(rows), np.float64)


def drawn_example(pool: Pool, rows: IntArray, rng: np.random.Generator) -> tuple[IntArray, int]:
    """Returns programs of a group, those that count as measured first, and the number of these:
    half of the time a beginning of what a search measured and what followed, else at random.
    """
    if pool.is_searched[rows[0]] and rng.random() < 0.5:
        counts = [count for count in (8, 16, 24) if len(rows) - count >= 8]
        count = int(rng.choice(counts)) if counts else 0
        return rows[: count + 32], count
    start = int(rng.integers(0, max(1, len(rows) - _MOST + 1)))
    rows = rng.permutation(rows[start : start + _MOST])
    return rows, int(rng.integers(0, min(_MOST_MEASURED, len(rows) - 4) + 1))


def _relations(pool: Pool, measured: IntArray, asked: IntArray) -> FloatArray:
    """Returns float64 [A, relation]."""
    known = pool.take(measured)
    new = pool.take(asked)
    found = []
    miss = known.log_s - known.said
    for name in ("columns", "embedding"):
        first, second = (getattr(one, name).astype(np.float64) for one in (known, new))
        found += [Misses(first, label).told(second) for label in (known.log_s, miss)]
        deviation = first.std(axis=0)
        is_told = deviation > 1e-6
        scale = deviation[is_told] if np.any(is_told) else np.ones(0)
        gap = second[:, None, is_told] / scale - first[None, :, is_told] / scale
        distance = (gap**2).mean(axis=2) if np.any(is_told) else np.zeros(gap.shape[:2])
        nearest = distance.argmin(axis=1)
        found += [distance.min(axis=1), distance[:, known.log_s.argmin()],
                  distance[:, known.said.argmin()], (known.log_s - known.log_s.mean())[nearest],
                  (miss - miss.mean())[nearest]]  # fmt: skip
    said = new.said
    found += [said - known.said.mean(), said - said.mean(), said - known.said[known.log_s.argmin()]]
    facts = (known.log_s.std(), known.said.std(), said.std(), float(len(known.said)))
    found += [np.full(len(said), one) for one in facts]
    return np.stack(found, axis=1)


def _principal(values: FloatArray, count: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    mean = values.mean(axis=0)
    deviation = np.maximum(values.std(axis=0), 1e-6)
    scaled = np.clip((values - mean) / deviation, -5, 5)
    _, size, axes = np.linalg.svd(scaled, full_matrices=False)
    return mean, deviation, axes[:count].T / (size[:count] / np.sqrt(len(values)))


def _order_loss(score: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Returns the logistic loss of pairs of candidates, plus the error around the set's mean."""
    asked = batch["mask"] & ~batch["measured"]
    log_s = batch["log_s"]
    pair = asked[:, :, None] & asked[:, None, :]
    weight = (log_s[:, :, None] - log_s[:, None, :]).clamp(0, 1) * pair
    margin = score[:, :, None] - score[:, None, :]
    total = weight.sum(dim=(1, 2))
    order = (weight * functional.softplus(-4.0 * margin)).sum(dim=(1, 2)) / total.clamp(min=1e-6)
    count = asked.sum(dim=1, keepdim=True)
    first, second = (
        (one - (one * asked).sum(dim=1, keepdim=True) / count) * asked for one in (score, log_s)
    )
    error = functional.huber_loss(first, second, reduction="none", delta=0.5)
    return order.mean() + ((error * asked).sum(dim=1) / count[:, 0]).mean()
