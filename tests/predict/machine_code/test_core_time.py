"""Instruction time of a compiled program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.devices.registry import get_device
from cdmpp.predict.machine_code.core_time import NOMINAL_HZ, cycles_per_s


@pytest.mark.parametrize(
    ("label", "clock_ghz"),
    [
        ("epyc-avx512-1c", 3.694),  # does 512 bits in two halves
        ("epyc-avx2-2c", 3.694),
        ("epyc-9654", 2.4),
        ("zen5-avx512-1c", 4.371),
        ("icelake-avx512-1c", 3.192),  # faster than the nominal 2.8 GHz
    ],
)
def test_the_clock_of_a_core_is_its_peak_over_what_a_cycle_does(
    label: str, clock_ghz: float
) -> None:
    spec = get_device(label)
    assert cycles_per_s(spec) == pytest.approx(1e9 * clock_ghz, rel=1e-3)


def test_a_device_without_a_peak_has_its_nominal_clock() -> None:
    spec = replace(get_device("epyc-9654"), peak_fp32_flop_per_s=None)
    assert cycles_per_s(spec) == spec.clock_hz
    assert cycles_per_s(replace(spec, clock_hz=None)) == NOMINAL_HZ
