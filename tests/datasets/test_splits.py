"""Splits: disjoint, complete, without shared tasks, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdmpp.datasets.samples import Samples
from cdmpp.datasets.splits import Split, SplitKind, network_family, split
from cdmpp.errors import DataError, UsageError

MakeSamples = Callable[..., Samples]
NAMES = [f"net{n},[(1,{size})]" for n in range(6) for size in (64, 128)]
NETWORKS = st.lists(
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 9)), max_size=4),
    min_size=1,
    max_size=60,
)
COMMON = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def part_of_sample(result: Split, count: int) -> np.ndarray:
    """The part (0, 1, 2) of every sample; fails unless every sample is in exactly one."""
    part = np.full(count, -1)
    for number, indices in enumerate((result.train, result.validation, result.test)):
        assert indices.dtype == np.int64
        assert np.all(np.diff(indices) > 0)
        assert np.all(part[indices] == -1)
        part[indices] = number
    assert np.all(part >= 0)
    return part


@COMMON
@given(
    networks=NETWORKS,
    seed=st.integers(0, 1000),
    kind=st.sampled_from(["task", "network", "record"]),
)
def test_parts_are_disjoint_and_complete(
    make_samples: MakeSamples, networks: list[list[tuple[str, int]]], seed: int, kind: SplitKind
) -> None:
    samples = make_samples(networks)
    try:
        result = split(samples, kind, seed=seed)
    except DataError:
        return  # too few tasks or networks for three parts: said, not hidden
    part = part_of_sample(result, len(samples))
    again = split(samples, kind, seed=seed)
    assert np.array_equal(part, part_of_sample(again, len(samples)))
    assert result.leaks == (kind == "record")
    tasks_of = [set(samples.task_id[part == number].tolist()) for number in range(3)]
    if kind != "record":
        assert not tasks_of[0] & tasks_of[1]
        assert not tasks_of[0] & tasks_of[2]
        assert not tasks_of[1] & tasks_of[2]


@COMMON
@given(tasks=st.integers(20, 60), seed=st.integers(0, 1000))
@pytest.mark.parametrize("kind", ["task", "record"])
def test_adding_a_device_moves_nothing(
    make_samples: MakeSamples, kind: SplitKind, tasks: int, seed: int
) -> None:
    networks: list[list[tuple[str, int]]] = [[] for _ in range(tasks)]
    few, many = (
        make_samples(networks, devices=("b",)),
        make_samples(networks, devices=("a", "b", "c")),
    )
    fractions = (0.5, 0.0, 0.5)
    part_few = part_of_sample(split(few, kind, seed=seed, fractions=fractions), len(few))
    part_many = part_of_sample(split(many, kind, seed=seed, fractions=fractions), len(many))
    assert np.array_equal(np.tile(part_few, 3), part_many)


def test_the_same_workload_on_another_target_goes_to_the_same_part(
    make_samples: MakeSamples,
) -> None:
    samples = make_samples([[] for _ in range(200)], programs_per_task=1, devices=("a",))
    tasks = samples.programs.tasks
    for n in range(0, 200, 2):
        tasks[n + 1] = str(tasks[n]).replace("|llvm", "|cuda")
    part = part_of_sample(split(samples, "task", seed=0), len(samples))
    assert np.array_equal(part[0::2], part[1::2])
    assert len(set(part.tolist())) == 3


def test_fractions_hold_on_average_and_seeds_differ(make_samples: MakeSamples) -> None:
    samples = make_samples([[] for _ in range(2000)], programs_per_task=1, devices=("a",))
    first, second = (split(samples, "task", seed=seed) for seed in (0, 1))
    for part, fraction in ((first.train, 0.7), (first.validation, 0.1), (first.test, 0.2)):
        assert len(part) / 2000 == pytest.approx(fraction, abs=0.04)
    assert not np.array_equal(first.test, second.test)


@pytest.mark.parametrize("seed", range(20))
def test_few_workloads_of_unequal_size_give_parts_that_can_judge(
    make_samples: MakeSamples, seed: int
) -> None:
    """Was: of 13 workloads of an A100 the test part was one of five samples."""
    sizes = [5, 60, 85, 93, 107, 111, 215, 319, 763, 1013, 1019, 1665, 3748]
    one_each = make_samples([[] for _ in sizes])
    samples = one_each.take(np.repeat(np.arange(len(sizes)), sizes))
    found = split(samples, "task", seed=seed)
    part_of_sample(found, len(samples))
    for rows, share in zip(
        (found.train, found.validation, found.test), (0.7, 0.1, 0.2), strict=True
    ):
        assert len(rows) / len(samples) >= share / 3


@COMMON
@given(tasks=st.integers(3, 6), seed=st.integers(0, 1000))
def test_every_part_gets_a_workload_where_there_are_three(
    make_samples: MakeSamples, tasks: int, seed: int
) -> None:
    samples = make_samples([[] for _ in range(tasks)])
    part = part_of_sample(split(samples, "task", seed=seed), len(samples))
    assert set(part.tolist()) == {0, 1, 2}
    halves = split(samples, "task", seed=seed, fractions=(0.5, 0.0, 0.5))
    assert set(part_of_sample(halves, len(samples)).tolist()) == {0, 2}


@COMMON
@given(networks=NETWORKS, seed=st.integers(0, 1000))
def test_held_out_networks_share_no_task_with_training(
    make_samples: MakeSamples, networks: list[list[tuple[str, int]]], seed: int
) -> None:
    samples = make_samples(networks)
    try:
        result = split(samples, "network", seed=seed)
    except DataError:
        return
    assert result.test_networks
    assert not set(result.test_networks) & set(result.validation_networks)

    def families(indices: np.ndarray) -> set[str]:
        tasks = set(samples.task_id[indices].tolist())
        return {network_family(name) for task in tasks for name, _ in networks[task]}

    assert families(result.test) <= set(result.test_networks)
    assert not families(result.validation) - set(result.test_networks + result.validation_networks)
    for task in set(samples.task_id[result.validation].tolist()):
        assert {network_family(n) for n, _ in networks[task]} & set(result.validation_networks)


def test_networks_can_be_named(make_samples: MakeSamples) -> None:
    networks = [[(name, 1)] for name in NAMES] + [[(NAMES[0], 1), (NAMES[11], 1)], []]
    samples = make_samples(networks)
    for name in ("net0", NAMES[0], NAMES[1]):
        result = split(samples, "network", seed=3, test_networks=[name])
        assert result.test_networks == ("net0",)
        # Both sizes of net0, not the task it shares with net5 unless that is no training network.
        tasks = set(samples.task_id[result.test].tolist())
        assert tasks == {0, 1}
    assert "net0 held out" in result.description
    with pytest.raises(UsageError, match="did you mean 'net0'"):
        split(samples, "network", seed=3, test_networks=["nett0"])


def test_descriptions_name_the_leak(make_samples: MakeSamples) -> None:
    samples = make_samples([[] for _ in range(50)])
    assert "within-task" in split(samples, "record", seed=0).description
    assert "no task is in two parts" in split(samples, "task", seed=0).description


def test_what_cannot_be_split_is_said(make_samples: MakeSamples) -> None:
    samples = make_samples([[("net0,[(1,)]", 1)]] * 30)
    with pytest.raises(DataError, match="at least 3 networks"):
        split(samples, "network", seed=0)
    with pytest.raises(DataError, match="at least 3 workloads, found 1; measure more tasks"):
        split(make_samples([[]]), "task", seed=0)
    assert len(split(make_samples([[], []]), "task", seed=0, fractions=(1, 0, 1)).test)
    with pytest.raises(UsageError, match="unknown split"):
        split(samples, "device", seed=0)  # type: ignore[arg-type]
    wrong: list[Any] = [(0.0, 0.0, 0.0), (1.0, -0.1, 0.1), (float("inf"), 0.1, 0.1)]
    for fractions in [*wrong, 5, "abc", ("1", 0, 1)]:
        with pytest.raises(UsageError, match="fractions"):
            split(samples, "task", seed=0, fractions=fractions)
    with pytest.raises(UsageError, match="split by network"):
        split(samples, "task", seed=0, test_networks=["net0"])


def test_every_task_of_the_test_networks_is_tested_whoever_else_has_it(
    make_samples: MakeSamples,
) -> None:
    tested, other, variant = "net0,[(1, 64)]", "net1,[(1,64)]", "net0,[(8,64)]"
    networks = [[(tested, 2)], [(tested, 1), (other, 3)], [(variant, 1)]]
    networks += [[(other, 1)] for _ in range(40)]
    samples = make_samples(networks)
    named = ["net0,[(1,64)]", "net9,[(1,64)]"]  # written without the space; one is not there
    result = split(samples, "test-tasks", seed=0, fractions=(0.8, 0.2, 0.0), test_networks=named)
    part = part_of_sample(result, len(samples))
    assert set(samples.task_id[part == 2].tolist()) == {0, 1}
    assert result.test_networks == ("net0,[(1,64)]",)
    assert "every task of net0,[(1,64)] is tested" in result.description
    assert set(samples.task_id[part == 1].tolist())
    again = split(samples, "test-tasks", seed=1, fractions=(0.8, 0.2, 0.0), test_networks=named)
    assert np.array_equal(again.test, result.test)
    assert not np.array_equal(again.validation, result.validation)
    with pytest.raises(DataError, match=r"no task of the test networks net7.*networks found: net0"):
        split(samples, "test-tasks", seed=0, test_networks=["net7"])
    with pytest.raises(UsageError, match=r"fractions are \(0, 0, 1\)"):
        split(samples, "test-tasks", seed=0, fractions=(0, 0, 1), test_networks=named)
