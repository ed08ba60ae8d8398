"""Files of boosted trees: what comes back, also from earlier versions, and what is refused."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import xgboost

from cdmpp.errors import DataError
from cdmpp.files.boosted_trees import load_booster, save_booster


@pytest.fixture(scope="module")
def booster():
    columns = np.random.default_rng(0).normal(size=(200, 3))
    matrix = xgboost.DMatrix(columns, label=columns[:, 0])
    return xgboost.train({"max_depth": 3}, matrix, num_boost_round=5)


def text(booster) -> bytes:
    return bytes(booster.save_raw("json"))


def test_trees_come_back(booster, tmp_path):
    path = tmp_path / "trees.ubj.xz"
    save_booster(booster, path)
    assert text(load_booster(path, hint="")) == text(booster)


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
