"""Distils a trained model into a small network that is saved with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.datasets.extraction.merge import merged_folder
from cdmpp.datasets.samples import Samples
from cdmpp.models.parts.checks import as_learned, check_schema
from cdmpp.predict.distilled import DistilledModel
from cdmpp.predict.estimates import TrainedModel, load_trained
from cdmpp.predict.machine_code.known import code_columns, has_code
from cdmpp.predict.machine_code.model import CodeRows
from cdmpp.training.train_code import PARTS, part_of_task


def distil(model_dir: Path, folders: Sequence[Path], *, cache_dir: Path) -> DistilledModel:
    """Distils a model into a small network, saves it with the model and returns it.

    It is trained on the model's training tasks and devices. Two thirds of the other tasks (chosen
    by a hash) select the weight of the teacher; the rest is the test part. The teacher is the
    machine-code model for programs with known machine code, else the model.

    Args:
        cache_dir: folder for the datasets' cached arrays.

    Raises:
        DataError: the training or validation part has no program of the model's devices, or the
            datasets have other leaf columns.
    """
    trained = load_trained(model_dir, with_code=True)
    names = {spec.name for spec in trained.card.devices}
    merged = load_samples(merged_folder(folders, cache_dir), cache_dir=cache_dir)
    samples = as_learned(trained.card.feature_schema, merged)
    is_known = np.array([spec.name in names for spec in samples.devices], bool)
    samples = samples.take(is_known[samples.device])
    tables = [table for folder in folders for table in read_machine_code(folder)]
    taught_s = _taught_s(trained, replace(samples, programs=merged.programs), tables)
    learned = trained.learned_tasks
    part = np.array([part_of_task(learned, str(task)) for task in samples.programs.tasks])
    train, validation, test = (part[samples.task_id] == name for name in PARTS)
    model = DistilledModel.fit(
        (samples.take(train), samples.take(validation), samples.take(test)),
        (taught_s[train], taught_s[validation], taught_s[test]),
        taught_by=trained.card.data_hash, seed=int(trained.card.split["seed"]),
    )  # fmt: skip
    model.save(model_dir)
    return model


def _taught_s(trained: TrainedModel, samples: Samples, tables: Sequence[MachineCode]) -> FloatArray:
    """Returns float64 [N], seconds predicted by the model, with machine code if known."""
    seconds = trained.predict(samples)
    readers = {reader.kind: reader for reader in trained.readers}
    for table in tables:
        is_known = has_code(samples, table)
        if table.kind not in readers or not is_known.any():
            continue
        reader = readers[table.kind]
        known = check_schema(reader.feature_schema, samples.take(is_known))
        code = code_columns(known, table)
        told = trained.card.as_told(known)
        rows = CodeRows.of(told, code, seconds[is_known], kind=table.kind)
        seconds[is_known] = np.exp(reader.estimate(rows)[0])
    return seconds
