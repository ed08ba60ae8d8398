"""Leaf matrices: which extra columns a model sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.datasets.samples import ProgramArrays
from cdmpp.errors import DataError, UsageError
from cdmpp.models.nets.alike_rows import AlikeRows, through
from cdmpp.models.parts import pooling
from cdmpp.models.parts.normalise import Normalisation
from cdmpp.models.parts.pooling import (
    extra_columns,
    fit_leaves,
    leaf_matrix,
    pooled_features,
    unlike_columns,
)
from cdmpp.programs.added_columns import EXTRA_BLOCKS, LEAF_EXTRA_COUNT
from cdmpp.testing.synthetic import make_samples


@pytest.fixture(scope="module")
def programs() -> ProgramArrays:
    """Programs with the extra columns 0, 1, 2, ... plus a tenth of the leaf's number."""
    made = make_samples(tasks=3, extra=LEAF_EXTRA_COUNT).programs
    leaves = np.arange(len(made.leaf_extra), dtype=np.float32)
    extra = np.arange(LEAF_EXTRA_COUNT, dtype=np.float32) + leaves[:, None] / 1000
    return replace(made, leaf_extra=extra)


def test_columns_of_blocks() -> None:
    alloc, program = EXTRA_BLOCKS["alloc"], EXTRA_BLOCKS["program"]
    columns = extra_columns(["program", "alloc"])
    assert columns.dtype == np.int64
    expected = [*range(alloc.start, alloc.stop), *range(program.start, program.stop)]
    assert columns.tolist() == extra_columns(["alloc", "program", "alloc"]).tolist() == expected
    assert extra_columns([]).tolist() == []
    assert extra_columns(list(EXTRA_BLOCKS)).tolist() == list(range(LEAF_EXTRA_COUNT))


def test_an_unknown_block_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'occupency'; did you mean 'occupancy'\?"):
        extra_columns(["program", "occupency"])
    with pytest.raises(UsageError, match="the blocks are scope, dtype"):
        extra_columns(["zzz"])


def test_leaf_matrix_takes_the_chosen_blocks(programs: ProgramArrays) -> None:
    rows = np.array([4, 0, 2])
    features, extra = programs.leaf_features[rows], programs.leaf_extra[rows]
    assert np.array_equal(leaf_matrix(programs, rows), np.concatenate([features, extra], axis=1))
    assert np.array_equal(leaf_matrix(programs, rows, ()), features)
    chosen = leaf_matrix(programs, rows, ["scope", "dtype"])
    assert np.array_equal(chosen[:, :164], features)
    assert np.array_equal(chosen[:, 164:], extra[:, : EXTRA_BLOCKS["dtype"].stop])


def test_pooled_features_take_the_chosen_blocks(programs: ProgramArrays) -> None:
    rows = np.array([1, 0])
    for blocks in (None, (), ("condition",)):
        pooled = pooled_features(programs, rows, blocks)
        width = leaf_matrix(programs, np.array([0]), blocks).shape[1]
        assert pooled.shape == (2, 2 * width + 1)
        for row, program in zip(pooled, rows, strict=True):
            first, last = programs.leaf_offset[program : program + 2]
            leaves = leaf_matrix(programs, np.arange(first, last), blocks)
            assert row[-1] == last - first
            assert np.allclose(row[:width], leaves.sum(axis=0), rtol=1e-5)
            assert np.array_equal(row[width:-1], leaves.max(axis=0))


def test_totals_are_of_what_columns_stand_for(programs: ProgramArrays) -> None:
    signed = replace(programs, leaf_features=programs.leaf_features - 2.0)
    rows = np.array([2, 0, 1])
    found = pooled_features(signed, rows, totals=True)
    plain = pooled_features(signed, rows)
    assert np.array_equal(found[:, : plain.shape[1]], plain)
    for row, program in zip(found, rows, strict=True):
        leaves = leaf_matrix(signed, np.arange(*signed.leaf_offset[program : program + 2]))
        values = np.sign(leaves) * (np.exp2(np.abs(leaves).astype(np.float64)) - 1.0)
        total = values.sum(axis=0)
        wanted = np.sign(total) * np.log2(np.abs(total) + 1.0)
        assert np.allclose(row[-len(wanted) :], wanted, rtol=1e-6)


@pytest.mark.parametrize("blocks", [None, ("scope", "dtype")])
def test_columns_in_which_leaves_are_alike_are_told_once(
    programs: ProgramArrays, blocks: tuple[str, ...] | None
) -> None:
    features = programs.leaf_features.copy()
    features[:, 3:] = features[0, 3:]
    some = replace(programs, leaf_features=features)
    normalisation = Normalisation.fit(leaf_matrix(programs, np.arange(9), blocks))
    for rows in (np.arange(len(features)), np.array([4, 0, 2])):
        leaves = leaf_matrix(some, rows, blocks)
        found = unlike_columns(some, rows, blocks)
        assert 0 < len(found.columns) < leaves.shape[1]
        assert np.array_equal(found.values, leaves[:, found.columns])
        layer = torch.nn.Linear(leaves.shape[1], 5)
        for scale in (normalisation, replace(normalisation, scale=2 * normalisation.scale)):
            parts = AlikeRows(*map(torch.from_numpy, scale.apply_unlike(found)))
            expected = layer(torch.from_numpy(scale.apply(leaves)))
            assert torch.allclose(through(layer, parts), expected, atol=1e-5)


def test_programs_without_the_columns_are_refused() -> None:
    programs = make_samples(tasks=2).programs
    rows = np.array([0])
    assert leaf_matrix(programs, rows).shape == leaf_matrix(programs, rows, ()).shape == (1, 164)
    with pytest.raises(DataError, match=r"0 extra leaf columns, expected .* dataset extract"):
        leaf_matrix(programs, rows, ["scope"])
    with pytest.raises(DataError, match="0 extra leaf columns"):
        pooled_features(programs, rows, ["scope"])


def test_statistics_in_parts_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = make_samples(tasks=5)
    whole = samples.programs.leaf_features.astype(np.float64)
    monkeypatch.setattr(pooling, "_CHUNK_PROGRAMS", 3)
    found = fit_leaves(samples)
    at_once = Normalisation.fit(samples.programs.leaf_features)
    for name in ("low", "high", "mean", "scale"):
        assert np.array_equal(getattr(found, name), getattr(at_once, name)), name
    assert np.array_equal(found.mean, whole.mean(axis=0).astype(np.float32))
    varies = found.scale > 0
    deviation = whole.std(axis=0)[varies]
    assert np.array_equal(found.scale[varies], (1.0 / deviation).astype(np.float32))
