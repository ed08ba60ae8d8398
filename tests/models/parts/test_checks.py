"""Leaf features of other versions than a model's."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.models.parts.checks import as_learned, as_read_by, check_current, check_schema
from cdmpp.predict.saved_model import read_card
from cdmpp.pretrained import model_folder
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNTS
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import train_run
from tests.paths import ROOT

OLD, NEW = {"leaf": 1, "leaf_extra": 3}, {"leaf": 1, "leaf_extra": 4}


@pytest.fixture
def samples() -> Samples:
    plain = make_samples(seed=3)
    leaves = len(plain.programs.leaf_features)
    extra = np.arange(leaves * LEAF_EXTRA_COUNTS[4], dtype=np.float32).reshape(leaves, -1)
    extra[:, ACROSS_THREADS_COLUMN] = 0
    return replace(plain, programs=replace(plain.programs, leaf_extra=extra, feature_schema=NEW))


def test_a_model_of_version_3_reads_the_first_columns(samples: Samples) -> None:
    found = check_schema(OLD, samples)
    assert found.programs.feature_schema == OLD
    assert np.array_equal(found.programs.leaf_extra, samples.programs.leaf_extra[:, :221])
    assert check_schema(NEW, samples) is samples
    with pytest.raises(DataError, match="leaf_extra v4 but got leaf v1, leaf_extra v3"):
        check_schema(NEW, found)


def test_programs_of_other_leaves_are_left_out_or_refused(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    row = int(samples.program[2])
    samples.programs.leaf_extra[samples.programs.leaf_offset[row], ACROSS_THREADS_COLUMN] = 1
    found = as_read_by(OLD, samples)
    assert row not in found.program
    assert sorted(found.program) == sorted(p for p in samples.program if p != row)
    assert len(as_learned(OLD, samples)) == len(found)
    assert f"{len(samples) - len(found)} of {len(samples)} samples are left out" in caplog.text
    with pytest.raises(DataError, match="reduce across threads"):
        check_schema(OLD, samples)


def test_an_older_dataset_is_read_and_not_trained_on(tmp_path: Path) -> None:
    shipped = ROOT / "data" / "metaschedule-cpu-found"
    found = load_samples(shipped, cache_dir=tmp_path / "cache")
    assert found.programs.feature_schema == OLD
    with pytest.raises(DataError, match="training needs leaf_extra v4; extract its records again"):
        train_run(TrainOptions(), found, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_newest_columns_are_trained_on(samples: Samples) -> None:
    check_current(samples)
    check_current(make_samples())  # without added columns


def test_a_model_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    shutil.copy(model_folder("pretrained") / "model.json", tmp_path)
    assert read_card(tmp_path).leaf_extra_version == 3
    facts = json.loads((tmp_path / "model.json").read_text())
    facts["feature_schema"] = {"leaf": 1, "leaf_extra": 5}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="expects leaf columns of versions"):
        read_card(tmp_path)
