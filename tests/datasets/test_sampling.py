"""Choosing tasks to measure: deterministic, distinct, and blind to every latency."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.sampling import choose_tasks, untouched_tasks, workload_count
from cdmpp.errors import UsageError
from cdmpp.testing.synthetic import make_samples

METHODS = ("kmeans", "random", "k-center")
SAMPLES = make_samples(14, 6)


def clustered_samples() -> Samples:
    """Twelve tasks: 0-5 are nearly equal, 6-9 nearly equal and elsewhere, 10 and 11 far apart."""
    samples = make_samples(12, 6, seed=5, most_leaves=1)
    programs = samples.programs
    centre = np.repeat([0.0, 40.0, -60.0, 90.0], [6, 4, 1, 1])
    leaves = np.zeros_like(programs.leaf_features)
    noise = np.random.default_rng(0).normal(0, 0.1, (len(programs.program_id), 8))
    leaves[:, :8] = centre[programs.task_id][:, None] + noise
    return replace(samples, programs=replace(programs, leaf_features=leaves))


@settings(max_examples=25, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    count=st.integers(1, 14),
    seed=st.integers(0, 2**31),
    order=st.randoms(use_true_random=False),
)
def test_choice_is_distinct_deterministic_and_blind(method, count, seed, order):
    chosen = choose_tasks(SAMPLES, count, method=method, seed=seed)
    assert chosen.dtype == np.int64
    assert len(chosen) == count == len(set(chosen.tolist()))
    assert set(chosen.tolist()) <= set(SAMPLES.task_id.tolist())
    rows = list(range(len(SAMPLES)))
    order.shuffle(rows)
    blind = replace(
        SAMPLES,
        latency_s=np.full(len(SAMPLES), np.nan),
        latency_std_s=np.full(len(SAMPLES), np.nan),
    ).take(np.array(rows, np.int64))
    assert np.array_equal(choose_tasks(blind, count, method=method, seed=seed), chosen)


@pytest.mark.parametrize("method", METHODS)
def test_only_tasks_of_the_samples_are_chosen(method):
    some = SAMPLES.take(SAMPLES.task_id % 3 == 1)
    chosen = choose_tasks(some, 3, method=method, seed=0)
    assert set(chosen.tolist()) <= {1, 4, 7, 10, 13}


def test_kmeans_takes_one_task_of_every_cluster_largest_first():
    chosen = choose_tasks(clustered_samples(), 4, method="kmeans", seed=1).tolist()
    assert chosen[0] in range(6)
    assert chosen[1] in range(6, 10)
    assert set(chosen[2:]) == {10, 11}


def test_k_center_covers_what_is_far_apart():
    chosen = choose_tasks(clustered_samples(), 4, method="k-center", seed=1).tolist()
    assert {10, 11} < set(chosen)
    assert len(set(chosen) & set(range(6))) == 1
    assert len(set(chosen) & set(range(6, 10))) == 1


def test_random_differs_by_seed_and_reaches_every_task():
    drawn = [choose_tasks(SAMPLES, 3, method="random", seed=seed) for seed in range(60)]
    assert set(np.concatenate(drawn).tolist()) == set(range(14))


@pytest.mark.parametrize("method", METHODS)
def test_equal_programs_are_no_trouble(method):
    programs = replace(
        SAMPLES.programs, leaf_features=np.zeros_like(SAMPLES.programs.leaf_features)
    )
    same = replace(SAMPLES, programs=programs)
    assert len(set(choose_tasks(same, 9, method=method, seed=0).tolist())) == 9


def autotvm_samples() -> Samples:
    """Eight tasks of four workloads, two templates each."""
    samples = make_samples(8, 4)
    tensor = [["TENSOR", [1, 64], "float32"], ["TENSOR", [64, 64], "float32"]]
    text = str(tensor).replace("'", '"')
    names = [
        f'["dense_{kind}.cuda",{text.replace("64", str(64 * (n + 1)))}]|cuda'.replace(" ", "")
        for n in range(4)
        for kind in ("small_batch", "large_batch")
    ]
    return replace(samples, programs=replace(samples.programs, tasks=np.array(names, object)))


@pytest.mark.parametrize("method", METHODS)
def test_templates_of_one_workload_are_chosen_last(method):
    samples = autotvm_samples()
    assert workload_count(samples) == 4
    chosen = choose_tasks(samples, 4, method=method, seed=0)
    assert sorted((chosen // 2).tolist()) == [0, 1, 2, 3]
    assert len(set(choose_tasks(samples, 7, method=method, seed=0).tolist())) == 7


def test_untouched_tasks_share_no_workload_with_the_chosen():
    samples = autotvm_samples()
    assert untouched_tasks(samples, np.array([2], np.int64)).tolist() == [0, 1, 4, 5, 6, 7]
    assert untouched_tasks(samples, np.arange(8)).tolist() == []


def test_large_tasks_are_thinned_out():
    large = make_samples(3, 90)
    assert len(choose_tasks(large, 2, method="kmeans", seed=0)) == 2


@pytest.mark.parametrize("count", [0, -1, 15])
def test_impossible_count_is_refused(count):
    with pytest.raises(UsageError, match=f"cannot choose {count} of 14 tasks"):
        choose_tasks(SAMPLES, count, seed=0)


def test_unknown_method_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'kmeans'"):
        choose_tasks(SAMPLES, 2, method="kmean", seed=0)


@pytest.mark.parametrize("method", METHODS)
def test_equal_programs_are_chosen_too(method):
    programs = SAMPLES.programs
    equal = {
        "leaf_features": np.ones_like(programs.leaf_features),
        "leaf_extra": np.ones_like(programs.leaf_extra),
        "leaf_offset": np.arange(len(programs.leaf_offset)),
    }
    samples = replace(SAMPLES, programs=replace(programs, **equal))
    assert len(set(choose_tasks(samples, 3, method=method, seed=0).tolist())) == 3
