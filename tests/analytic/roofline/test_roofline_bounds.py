"""Bounds of operators and programs as plain values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.analytic.roofline.bounds import operator_bounds, program_bounds
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.testing.synthetic import make_samples


def test_an_operator_is_at_least_as_slow_as_each_of_its_levels() -> None:
    rows = operator_bounds("linear", {"batch": 1, "m": 512, "n": 512, "k": 512}, ["t4", "v100"])
    assert [row["device"] for row in rows] == ["t4", "v100"]
    for row in rows:
        assert row["seconds"] >= max(row["levels"][name] for name in ("compute", "dram", "l2"))
        assert row["fitted_s"] > 0


def test_a_program_is_found_by_the_start_of_its_id() -> None:
    samples = make_samples(2, 2)
    devices = (get_device("t4"), samples.devices[1])
    samples = replace(samples, devices=devices)
    name = str(samples.programs.program_id[1])
    gpu, cpu = program_bounds(samples, name)
    assert (gpu["program_id"], gpu["device"]) == (name, "t4")
    assert gpu["levels"]["launch"] > 0
    assert cpu["levels"]["launch"] == 0
    assert len(gpu["leaves"]) == samples.programs.leaf_offset[2] - samples.programs.leaf_offset[1]
    with pytest.raises(DataError, match="4 programs"):
        program_bounds(samples, "")
