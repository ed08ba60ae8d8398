"""Budgets, caps and kinds of operators."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.datasets.budget import hold_out, of_tasks
from cdmpp.datasets.selection import cap_programs, of_devices
from cdmpp.datasets.tenset.operator_kinds import operator_kind
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import make_samples


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
