"""Parts of a target device, caps and kinds of operators."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.datasets.budget import hold_out, of_tasks, target_parts
from cdmpp.datasets.selection import cap_programs, of_devices
from cdmpp.datasets.splits import workload_of
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import make_samples


@settings(deadline=None, max_examples=40)
@given(tasks=st.integers(2, 30), seed=st.integers(0, 99))
def test_halves_share_no_workload_and_hold_any_budget_up_to_half(tasks, seed):
    samples = of_devices(make_samples(tasks, 2), ["slow"])
    names = np.array(
        [json.dumps([f"t{n}.cuda", [["TENSOR", [n // 2], "f"]]]) + "|cuda" for n in range(tasks)],
        object,
    )
    samples = replace(samples, programs=replace(samples.programs, tasks=names))
    workloads = {workload_of(str(name)) for name in names}
    if len(workloads) < 2:
        with pytest.raises(DataError, match="at least 2"):
            target_parts(samples, seed=seed)
        return
    parts = target_parts(samples, seed=seed)
    sides = [
        {workload_of(str(names[task])) for task in part.task_id}
        for part in (parts.candidates, parts.test)
    ]
    assert all(sides)
    assert not sides[0] & sides[1]
    assert len(parts.candidates) + len(parts.test) == len(samples)
    if tasks >= 4:
        assert len(np.unique(parts.candidates.task_id)) >= tasks // 2
    again = target_parts(samples, seed=seed)
    assert np.array_equal(parts.test.program, again.test.program)


def test_small_budgets_hold_out_programs_and_larger_ones_tasks():
    samples = of_devices(make_samples(10, 10), ["fast"])
    train, validation = hold_out(samples, seed=0)
    assert len(np.unique(validation.task_id)) == 2
    assert not set(train.task_id.tolist()) & set(validation.task_id.tolist())
    one = of_tasks(samples, np.array([3]))
    train, validation = hold_out(one, seed=0)
    assert (len(train), len(validation)) == (8, 2)
    assert not set(train.program.tolist()) & set(validation.program.tolist())


def test_cap_keeps_every_task_and_the_same_programs_on_every_device():
    samples = make_samples(10, 20)
    capped = cap_programs(samples, 50, seed=0)
    for device in (0, 1):
        rows = capped.device == device
        assert rows.sum() == 50
        assert len(np.unique(capped.task_id[rows])) == 10
    programs = [set(capped.program[capped.device == device].tolist()) for device in (0, 1)]
    assert programs[0] == programs[1]
    assert cap_programs(samples, 0, seed=0) is samples
    assert cap_programs(samples, 200, seed=0) is samples
    assert len(cap_programs(samples, 3, seed=0)) == 20  # one program a task is the least
    other = cap_programs(samples, 50, seed=1)
    assert set(other.program.tolist()) != set(capped.program.tolist())


def test_cap_lets_large_tasks_give_way_first():
    samples = of_devices(make_samples(3, 30), ["fast"])
    few = (samples.task_id == 0) & (samples.program % 30 >= 4)
    capped = cap_programs(samples.take(~few), 40, seed=0)
    counts = np.bincount(capped.task_id)
    assert counts.tolist() == [4, 18, 18]


def test_unknown_device_is_said():
    with pytest.raises(DataError, match="no measurement of device 'a100'; devices found: fast"):
        of_devices(make_samples(2, 2), ["a100"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conv2d+add+relu", "conv2d"),
        ("depthwise_conv2d+add", "depthwise_conv2d"),
        ("winograd_conv2d+relu", "winograd_conv2d"),
        ("dense+add", "dense"),
        ("batch_matmul", "batch_matmul"),
        ("adaptive_avg_pool", "pool"),
        ("softmax", "softmax"),
        ("reduce_sum+divide", "reduction"),
        ("add+relu", "elementwise"),
        ("", "unknown"),
    ],
)
def test_kind_is_what_costs_most(name, kind):
    assert operator_kind(name) == kind
