"""Distils a trained model into one small network, saved with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.models.parts.checks import as_learned
from cdmpp.predict.distilled import DistilledModel, TaughtRows
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.machine_code.known import code_columns, has_code
from cdmpp.predict.machine_code.model import CodeRows
from cdmpp.training.train_code import PARTS, part_of_task


def distil(model_dir: Path, folders: Sequence[Path], *, cache_dir: Path) -> DistilledModel:
    """Returns a network that says what a model says, and saves it with the model.

    It learns from the tasks that the model was trained on, on the model's devices; of the others
    two thirds (by a hash) choose how much it listens to its teacher, and the rest judges. Its
    teacher is what reads machine code where a program's is known, else the model.

    Args:
        cache_dir: where the datasets' arrays go.

    Raises:
        DataError: the datasets have no program of the model's devices in a part.
    """
    trained = load_trained(model_dir, with_code=True)
    names = {spec.name for spec in trained.card.devices}
    rows: dict[str, list[TaughtRows]] = {name: [] for name in PARTS}
    kinds: set[str] = set()
    for folder in folders:
        found = load_samples(folder, cache_dir=cache_dir)
        samples = as_learned(trained.card.feature_schema, found)
        is_known = np.array([spec.name in names for spec in samples.devices], bool)
        samples = samples.take(is_known[samples.device])
        if len(samples) == 0:
            continue
        kinds |= {samples.devices[place].kind for place in np.unique(samples.device)}
        taught = TaughtRows.of(samples, _taught_log_s(trained, samples, read_machine_code(folder)))
        part = np.array([part_of_task(trained, str(task)) for task in samples.programs.tasks])
        for name in PARTS:
            rows[name].append(taught.take(part[samples.task_id] == name))
    if not kinds:
        raise DataError(
            f"the datasets have no program of the model's devices ({', '.join(sorted(names))})"
        )
    train, validation, test = (TaughtRows.joined(rows[name]) for name in PARTS)
    model = DistilledModel.fit(
        (train, validation, test), kinds=sorted(kinds),
        feature_schema=trained.card.feature_schema, taught_by=trained.card.data_hash,
        seed=int(trained.card.split["seed"]),
    )  # fmt: skip
    model.save(model_dir)
    return model


def _taught_log_s(
    trained: TrainedModel, samples: Samples, tables: Sequence[MachineCode]
) -> FloatArray:
    """Returns float64 [N], the logarithm of what the model says, with machine code where known."""
    log_s = np.log(trained.model.predict(samples))
    readers = {reader.kind: reader for reader in trained.readers}
    for table in tables:
        is_known = has_code(samples, table)
        if table.kind not in readers or not is_known.any():
            continue
        known = samples.take(is_known)
        model_s = np.exp(log_s[is_known])
        rows = CodeRows.of(known, code_columns(known, table), model_s, kind=table.kind)
        log_s[is_known] = readers[table.kind].estimate(rows)[0]
    return log_s
