"""Errors of the analytic kernels: the range of 90 % of NeuSight's instances.

Per kernel or operator: `seen` pools GPUs whose operators of that kind the packaged model was fitted
on. `unseen` is the widest range of the chips, each predicted by a model fitted without it; chips
with few instances are pooled.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.intervals import LogErrors
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes, error_group, kernel_names
from cdmpp.analytic.operators.errors import judged_as
from cdmpp.analytic.operators.intervals import (
    CardEntry,
    JudgedOperators,
    Which,
    chips_of,
    packaged_operators,
)
from cdmpp.analytic.operators.model import OperatorModel, fit_family, known_hardware
from cdmpp.analytic.operators.operators import Operators
from cdmpp.analytic.operators.tables import OperatorTable, read_instances
from cdmpp.analytic.operators.training import FitOptions, read_training_tables
from cdmpp.analytic.roofline.operators import operator_bound
from cdmpp.devices.registry import get_device
from lab.paths import SHARED_DATA

#: Entry of the card, group and chip -> log(measured / predicted) of its instances.
Errors = dict[tuple[CardEntry, str, str], list[float]]
Card = dict[CardEntry, dict[str, dict[Which, LogErrors]]]


def experiment(neusight: Path = SHARED_DATA / "neusight") -> None:
    """Prints the values of `log_errors` (kernels as timed by a replay), `queued_log_errors`
    (operators behind others) and `roofline_log_errors` (rooflines with the fitted launch) for
    `cdmpp/pretrained/operators/card.json`.

    Args:
        neusight: folder with the tables of `train/` and `test/`, on which the packaged model was
            fitted, and with `peers/op_instances.csv.gz`, which no model was fitted on.
    """
    found = card(
        instance_errors(packaged_operators().model, neusight, is_seen=True),
        unseen_errors(models_without(neusight), neusight),
    )
    print(json.dumps({
        entry: {
            group: {which: [round(one.low, 3), round(one.high, 3)] for which, one in own.items()}
            for group, own in groups.items()
        }
        for entry, groups in found.items()
    }, indent=1))  # fmt: skip


def models_without(folder: Path) -> Iterator[tuple[tuple[str, ...], OperatorModel]]:
    """Yields (labels of a chip, model fitted on the tables of all other chips)."""
    tables, packaged = read_training_tables(folder / "train", folder / "test"), packaged_operators()
    options, known = FitOptions(), packaged.model.known
    for chip in chips_of(tables["matmul"], known):
        fits = {
            family: tuple(
                fit_family(_without(table, chip), family, known, seed=seed,
                           most_rows=options.most_rows)
                for seed in options.seeds
            )
            for family, table in tables.items()
        }  # fmt: skip
        yield chip, OperatorModel(fits, packaged.model.octaves, known, {})


def _without(table: OperatorTable, chip: Sequence[str]) -> OperatorTable:
    return table[~np.isin(table.device, chip)]


def unseen_errors(
    models: Iterable[tuple[tuple[str, ...], OperatorModel]], folder: Path
) -> dict[tuple[str, ...], Errors]:
    """Returns labels of a chip -> errors on it of the model fitted without the chip."""
    return {
        chip: instance_errors(model, folder, devices=chip, is_seen=False) for chip, model in models
    }


def instance_errors(
    model: OperatorModel, folder: Path, *, devices: Sequence[str] = (), is_seen: bool
) -> Errors:
    """Returns a model's errors on the instances.

    Args:
        devices: labels; empty for all.
        is_seen: whether to use only kinds of operators that were measured on their GPU.
    """
    found: Errors = {}
    judged = JudgedOperators(model, {})
    for rows in read_instances(folder / "peers" / "op_instances.csv.gz").values():
        table = rows.table
        if devices:
            table = table[np.isin(table.device, devices)]
        labels = [str(label) for label in table.device]
        known = known_hardware(sorted(set(labels)))
        launch_s = {label: model.launch_s(label, one) for label, one in known.items()}
        times = {label: KernelTimes(get_device(label), judged) for label in known}
        one = table.operators
        queued_s = model.predict(one, table.device, known, context="queued")
        for place, (kind, label) in enumerate(zip(map(str, one.kind), labels, strict=True)):
            if is_seen and not model.is_fitted(kind, label):
                continue
            call = kernel_call(one, place)
            bound = operator_bound(one, place, known[label], launch_s=launch_s[label])
            said: tuple[tuple[CardEntry, str, float], ...] = (
                ("log_errors", error_group(call.kernel) or "", times[label].latency_s(call)),
                ("queued_log_errors", judged_as(kind), float(queued_s[place])),
                ("roofline_log_errors", judged_as(kind), bound.seconds),
            )
            for entry, group, seconds in said:
                error = float(np.log(table.latency_s[place] / seconds))
                found.setdefault((entry, group, label), []).append(error)
    return found


def card(seen: Errors, unseen: Mapping[tuple[str, ...], Errors]) -> Card:
    """Returns the errors in the layout of the card."""
    found: Card = {}
    for entry, group in sorted({key[:2] for key in seen}):
        chips = [_of_group(errors, entry, group) for errors in unseen.values()]
        # A chip with few instances has no range of its own and only counts in the pool.
        parts = [LogErrors.of(own) for own in (*chips, np.concatenate(chips))]
        known, others = LogErrors.of(_of_group(seen, entry, group)), LogErrors.widest(parts)
        assert known is not None
        assert others is not None
        found.setdefault(entry, {})[group] = {"seen": known, "unseen": others}
    return found


def _of_group(errors: Errors, entry: CardEntry, group: str) -> NDArray[np.float64]:
    return np.array(
        [one for key, own in errors.items() if key[:2] == (entry, group) for one in own]
    )


def kernel_call(operators: Operators, place: int) -> KernelCall:
    """Returns the kernel of the operator at `place`."""
    kind = str(operators.kind[place])
    name = {"linear": "gemm", "bmm": "gemm", "ln": "layer-norm"}.get(kind, kind)
    name = name.removesuffix("u") if name not in kernel_names() else name
    sizes = {key: float(getattr(operators, key)[place]) for key in ("rows", "cols")}
    if name == "gemm":
        sizes = {key: float(getattr(operators, key)[place]) for key in ("batch", "m", "n", "k")}
    elif name not in ("softmax", "layer-norm"):
        sizes = {"elements": sizes["rows"] * sizes["cols"]}
    return KernelCall(name, sizes)
