"""What reads machine code, adapted to a device of which a few tasks are measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.extraction.machine_code import MachineCode
from cdmpp.datasets.samples import Samples
from cdmpp.predict.machine_code.known import code_columns
from cdmpp.predict.machine_code.model import (
    NEW_DEVICE_SHARES,
    CodeCalibration,
    CodeModel,
    CodeRows,
)
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.finetune.adapted_code import adapted_code

pytestmark = pytest.mark.training

_CYCLES = MACHINE_CODE_NAMES.index("cycles")
_KNOWN, _TARGET = "known", '{"kind": "llvm"}'
_TOO_LONG = 2.0


class Told(CodeModel):
    """Trees that predict the time but for one factor; a perceptron that errs by up to e."""

    def parts_log_s(self, rows: CodeRows) -> Any:
        told = rows.columns[:, _code_place(rows) + _CYCLES].astype(np.float64)
        return told + np.log(_TOO_LONG), told + np.sin(1e3 * told)


def _code_place(rows: CodeRows) -> int:
    """Returns the column at which the machine code begins: it is the only row of sevens."""
    return int(np.flatnonzero((rows.columns == 7.0).all(axis=0))[0]) - 1 - _CYCLES


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Programs of 24 tasks on one device."""
    both = make_samples(24, 8)
    return both.take(both.device == 0)


@pytest.fixture(scope="module")
def table(samples: Samples) -> MachineCode:
    """Code whose cycles are the time, to within a tenth."""
    rng = np.random.default_rng(0)
    columns = {}
    for name, latency_s in zip(_names(samples), samples.latency_s, strict=True):
        row = np.full(len(MACHINE_CODE_NAMES), 1.0, np.float32)
        row[_CYCLES] = np.log(latency_s) + 0.1 * rng.normal()
        row[_CYCLES + 1] = 7.0
        columns[name] = row
    return MachineCode({_label(samples): _TARGET}, columns)


def reader() -> Told:
    nothing: Any = None
    known = CodeCalibration(0.2, 0.7, 0.3)
    return Told({_KNOWN: _TARGET}, {"leaf": 1}, nothing, nothing, known, None)


def _names(samples: Samples) -> list[str]:
    return [str(name) for name in samples.programs.program_id[samples.program]]


def _label(samples: Samples) -> str:
    return samples.devices[int(samples.device[0])].name


def _learn(samples: Samples) -> tuple[Samples, Samples]:
    tasks = np.unique(samples.task_id)
    is_learned = np.isin(samples.task_id, tasks[:12])
    return samples.take(is_learned), samples.take(~is_learned)


def _model_s(samples: Samples) -> Any:
    """What a model says that errs by half."""
    return samples.latency_s * np.exp(0.5 * np.random.default_rng(1).normal(size=len(samples)))


def test_shares_factor_and_intervals_are_those_of_the_measured_programs(
    samples: Samples, table: MachineCode
) -> None:
    learn, test = _learn(samples)
    before = reader()
    found = adapted_code(before, [table], learn, _model_s(learn))
    assert found is not None
    label = _label(samples)
    own = found.of_device[label]
    trees, perceptron = (12.0 * np.array([1.0, 0.0]) + 10.0 * np.array(NEW_DEVICE_SHARES)) / 22.0
    assert own.trees == pytest.approx(trees, abs=0.1)
    assert own.perceptron == pytest.approx(perceptron, abs=0.1)
    assert found.targets == {_KNOWN: _TARGET, label: _TARGET}
    rows = CodeRows.of(test, code_columns(test, table), _model_s(test))
    log_s, half_width = found.estimate(rows)
    error = np.abs(log_s - rows.log_s)
    assert error.mean() < 0.25 < np.abs(rows.model_log_s - rows.log_s).mean()
    assert np.mean(error <= half_width) == pytest.approx(0.9, abs=0.1)
    # What it said of other devices stays, and the reader that was given too.
    assert before.of_device == {}
    assert before.targets == {_KNOWN: _TARGET}
    elsewhere = replace(rows, device=np.full(len(rows), _KNOWN))
    assert np.array_equal(found.estimate(elsewhere)[0], before.estimate(elsewhere)[0])


def test_trees_learn_what_a_device_does_otherwise(samples: Samples, table: MachineCode) -> None:
    rng = np.random.default_rng(2)
    columns = {name: row.copy() for name, row in table.columns.items()}
    is_slow = rng.random(len(samples)) < 0.5
    for name, slow in zip(_names(samples), is_slow, strict=True):
        columns[name][_CYCLES + 2] = 5.0 * slow
    slowed = replace(samples, latency_s=samples.latency_s * np.where(is_slow, 4.0, 1.0))
    learn, test = (slowed.take(np.isin(slowed.task_id, part))
                   for part in np.split(np.unique(slowed.task_id), [16]))  # fmt: skip
    found = adapted_code(reader(), [replace(table, columns=columns)], learn, _model_s(learn))
    assert found is not None
    label = _label(samples)
    code = code_columns(test, replace(table, columns=columns))
    rows = CodeRows.of(test, code, _model_s(test))
    log_s, half_width = found.estimate(rows)
    error = np.abs(log_s - rows.log_s)
    plain = reader().adapted(label, _TARGET, found.of_device[label])
    assert error.mean() < 0.8 * np.abs(plain.estimate(rows)[0] - rows.log_s).mean()
    assert np.mean(error <= half_width) == pytest.approx(0.9, abs=0.1)


def test_a_device_that_it_has_not_learned_from_has_shares_of_its_own(
    samples: Samples, table: MachineCode
) -> None:
    rows = CodeRows.of(samples, code_columns(samples, table), _model_s(samples))
    trees, perceptron = reader().parts_log_s(rows)
    of_trees, of_perceptron = NEW_DEVICE_SHARES
    log_s, half_width = reader().estimate(rows)
    rest = (1.0 - of_trees - of_perceptron) * rows.model_log_s
    assert log_s == pytest.approx(of_trees * trees + of_perceptron * perceptron + rest)
    assert half_width.tolist() == [0.3] * len(rows)


def test_too_little_is_known(samples: Samples, table: MachineCode) -> None:
    learn, _ = _learn(samples)
    few = learn.take(np.isin(learn.task_id, np.unique(learn.task_id)[:8]))
    assert adapted_code(reader(), [table], few, _model_s(few)) is None
    assert adapted_code(reader(), [], learn, _model_s(learn)) is None
    other = replace(table, targets={"another": _TARGET})
    assert adapted_code(reader(), [other], learn, _model_s(learn)) is None
    unread = replace(table, columns={})
    assert adapted_code(reader(), [unread], learn, _model_s(learn)) is None
