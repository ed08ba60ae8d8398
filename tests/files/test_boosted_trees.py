"""Boosted trees: where they stop, and what comes back of their files, also of earlier versions."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pytest
import xgboost

from cdmpp.errors import DataError
from cdmpp.files.boosted_trees import (
    ask_trees,
    grow_trees,
    load_booster,
    save_booster,
    tree_rows,
)


@pytest.fixture(scope="module")
def booster():
    columns = np.random.default_rng(0).normal(size=(200, 3))
    matrix = xgboost.DMatrix(columns, label=columns[:, 0])
    return xgboost.train({"max_depth": 3}, matrix, num_boost_round=5)


def test_trees_stop_where_the_watched_part_gains_no_more():
    random = np.random.default_rng(0)
    columns, noise = random.normal(size=(2, 200, 3))
    rows = tree_rows(columns, noise[:, 0], threads=1)
    watched = tree_rows(columns + 1, noise[:, 1], threads=1)
    grown = grow_trees({"seed": 0}, rows, watched, trees=60, patience=3)
    alone = grow_trees({"seed": 0}, rows, trees=60)
    assert grown.num_boosted_rounds() < 50
    assert alone.num_boosted_rounds() == 60
    first = alone[: grown.num_boosted_rounds()]
    assert np.array_equal(grown.predict(rows), first.predict(rows))


def test_trees_say_the_same_of_columns_as_they_are(booster):
    wide = np.random.default_rng(1).normal(size=(50, booster.num_features()))
    wide[::7, 1] = np.nan
    for columns in (wide, wide.astype(np.float32), np.asfortranarray(wide)):
        assert np.array_equal(ask_trees(booster, columns), booster.predict(tree_rows(columns)))
    with pytest.raises(ValueError, match="Number of columns"):
        ask_trees(booster, columns[:, 1:])


def text(booster) -> bytes:
    return bytes(booster.save_raw("json"))


def trees(booster) -> object:
    """Everything that XGBoost writes but the statistics of the training."""
    content = json.loads(text(booster))
    for tree in content["learner"]["gradient_booster"]["model"]["trees"]:
        for name in ("base_weights", "loss_changes", "sum_hessian"):
            del tree[name]
    return content


def test_trees_come_back(booster, tmp_path):
    path = tmp_path / "trees.ubj.xz"
    save_booster(booster, path)
    found = load_booster(path, hint="")
    assert trees(found) == trees(booster)
    columns = np.random.default_rng(2).normal(size=(200, booster.num_features()))
    assert np.array_equal(ask_trees(found, columns), ask_trees(booster, columns))
    assert found.num_boosted_rounds() == booster.num_boosted_rounds()
    assert path.stat().st_size < len(lzma.compress(bytes(booster.save_raw("ubj")), preset=9))


@pytest.mark.parametrize(
    ("suffix", "packed"), [(".json.gz", gzip.compress), (".json", lambda content: content)]
)
def test_what_earlier_versions_wrote(booster, tmp_path, suffix, packed):
    (tmp_path / f"trees-time{suffix}").write_bytes(packed(text(booster)))
    found = load_booster(tmp_path / "trees-time.ubj.xz", hint="")
    assert text(found) == text(booster)


@pytest.mark.parametrize("content", [b"", b"x" * 40])
def test_damaged_files_are_one_sentence(tmp_path, content):
    path = tmp_path / "trees.ubj.xz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read the trees .*; train it again"):
        load_booster(path, hint="train it again")
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read the trees .*; train it again"):
        load_booster(path, hint="train it again")
