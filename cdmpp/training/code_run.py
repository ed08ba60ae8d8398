"""Trains a model of machine code beside a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.machine_code import FILE_NAME, MachineCode, read_machine_code
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.training.code_model import CodeModel, CodeRows
from cdmpp.training.estimates import TrainedModel, load_trained
from cdmpp.training.run_folder import task_digest

_PARTS = ("training", "validation", "test")


def train_code(model_dir: Path, folders: Sequence[Path], *, cache_dir: Path) -> CodeModel:
    """Returns a model of the machine code of extracted datasets, and saves it with the model.

    They learn from the tasks that the model was trained on; of the others two thirds (by a hash)
    calibrate and the rest judges.

    Args:
        cache_dir: where the datasets' arrays go.

    Raises:
        UsageError: no dataset is given.
        DataError: a dataset has no machine code, the programs are of several targets or devices, or
            all of their tasks are training tasks of the model.
    """
    if not folders:
        raise UsageError("no dataset given; expected --data DIR with machine code")
    trained = load_trained(model_dir)
    parts: dict[str, list[CodeRows]] = {name: [] for name in _PARTS}
    targets: set[str] = set()
    devices: set[str] = set()
    schema: dict[str, int] = {}
    for folder in folders:
        code = read_machine_code(folder)
        if code is None:
            raise DataError(
                f"{folder}: has no {FILE_NAME}; write it with: cdmpp measure --machine-code --out "
                f"{folder}"
            )
        samples = _compiled(load_samples(folder, cache_dir=cache_dir), code)
        targets.add(code.target)
        devices |= {samples.devices[place].name for place in np.unique(samples.device)}
        schema = dict(samples.programs.feature_schema)
        part_of_task = np.array([_part(trained, str(task)) for task in samples.programs.tasks])
        for name, rows in parts.items():
            rows.append(_rows(trained, samples.take(part_of_task[samples.task_id] == name), code))
    for what, found in (("targets", targets), ("devices", devices)):
        if len(found) != 1:
            text = ", ".join(sorted(found))
            raise DataError(f"programs of {len(found)} {what} ({text}); expected those of one")
    train, validation, test = (CodeRows.joined(parts[name]) for name in _PARTS)
    code_model = CodeModel.fit(
        (train, validation, test), device=devices.pop(), target=targets.pop(),
        feature_schema=schema, seed=int(trained.card.split["seed"]),
    )  # fmt: skip
    code_model.save(model_dir)
    return code_model


def _compiled(samples: Samples, code: MachineCode) -> Samples:
    names = samples.programs.program_id[samples.program]
    return samples.take(np.array([str(name) in code.columns for name in names], bool))


def _part(trained: TrainedModel, task: str) -> str:
    digest = task_digest(task)
    if digest in trained.card.training_tasks:
        return "training"
    return "test" if int(digest, 16) % 3 == 0 else "validation"


def _rows(trained: TrainedModel, samples: Samples, code: MachineCode) -> CodeRows:
    names = [str(name) for name in samples.programs.program_id[samples.program]]
    width = len(next(iter(code.columns.values()), ()))
    columns = np.array([code.columns[name] for name in names], np.float32)
    return CodeRows.of(samples, columns.reshape(len(names), width), trained.model.predict(samples))
