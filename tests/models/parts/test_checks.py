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
from cdmpp.models.options import GbdtOptions
from cdmpp.models.parts.checks import as_learned, as_read_by, check_schema, warn_of_old_columns
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.saved_model import read_card
from cdmpp.pretrained import model_folder
from cdmpp.programs.added_columns import ACROSS_THREADS_COLUMN
from cdmpp.programs.compact_ast import LEAF_EXTRA_COUNTS
from cdmpp.testing.synthetic import make_samples
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import train_run
from tests.paths import ROOT

OLD, MIDDLE, NEW = ({"leaf": 1, "leaf_extra": version} for version in (3, 4, 5))


@pytest.fixture
def samples() -> Samples:
    plain = make_samples(seed=3)
    leaves = len(plain.programs.leaf_features)
    extra = np.arange(leaves * LEAF_EXTRA_COUNTS[5], dtype=np.float32).reshape(leaves, -1)
    extra[:, ACROSS_THREADS_COLUMN] = 0
    return replace(plain, programs=replace(plain.programs, leaf_extra=extra, feature_schema=NEW))


def test_a_model_of_version_3_reads_the_first_columns(samples: Samples) -> None:
    found = check_schema(OLD, samples)
    assert found.programs.feature_schema == OLD
    assert np.array_equal(found.programs.leaf_extra, samples.programs.leaf_extra[:, :221])
    assert check_schema(NEW, samples) is samples
    with pytest.raises(DataError, match="leaf_extra v5 but got leaf v1, leaf_extra v3"):
        check_schema(NEW, found)


def test_programs_of_gpus_have_no_use_of_cache_sets(samples: Samples) -> None:
    narrow = as_read_by(MIDDLE, samples)
    gpus = replace(narrow, devices=[replace(one, kind="gpu") for one in samples.devices])
    wide = check_schema(NEW, gpus)
    assert wide.programs.feature_schema == NEW
    assert np.array_equal(wide.programs.leaf_extra[:, :237], narrow.programs.leaf_extra)
    assert wide.programs.leaf_extra.shape[1] == 269
    assert not wide.programs.leaf_extra[:, 237:].any()
    for samples_of_cpus in (narrow, replace(gpus, devices=[gpus.devices[0], narrow.devices[1]])):
        with pytest.raises(DataError, match="leaf_extra v5 but got leaf v1, leaf_extra v4"):
            check_schema(NEW, samples_of_cpus)


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
    middle = check_schema(MIDDLE, samples)  # has all leaves, and fewer columns
    assert np.array_equal(middle.program, samples.program)
    assert np.array_equal(middle.programs.leaf_extra, samples.programs.leaf_extra[:, :237])


def test_an_older_dataset_makes_an_older_model_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shipped = ROOT / "data" / "metaschedule-cpu-found"
    found = as_learned(OLD, load_samples(shipped, cache_dir=tmp_path / "cache"))
    options = TrainOptions(model="gbdt", gbdt=GbdtOptions(trees=3, threads=1), baselines=())
    train_run(options, found, tmp_path / "run")
    assert "leaf_extra v3, and so will the model; for those of leaf_extra v5" in caplog.text
    trained = load_trained(tmp_path / "run")
    assert trained.card.leaf_extra_version == 3
    few = found.take(np.arange(5))
    assert (trained.estimate(as_learned(OLD, few)).latency_s > 0).all()


def test_the_newest_columns_are_trained_on_without_a_word(
    samples: Samples, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_old_columns(samples)
    warn_of_old_columns(make_samples())  # without added columns
    assert not caplog.text


def test_a_model_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    shutil.copy(model_folder("pretrained") / "model.json", tmp_path)
    assert read_card(tmp_path).leaf_extra_version == 5
    facts = json.loads((tmp_path / "model.json").read_text())
    facts["feature_schema"] = {"leaf": 1, "leaf_extra": 6}
    (tmp_path / "model.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="expects leaf columns of versions"):
        read_card(tmp_path)
