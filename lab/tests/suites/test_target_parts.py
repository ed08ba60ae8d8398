"""Halves of a target device."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.datasets.selection import of_devices
from cdmpp.datasets.splits import workload_of
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import make_samples
from lab.suites.target_parts import target_parts


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
