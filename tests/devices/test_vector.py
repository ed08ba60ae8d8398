"""The device vector of devices that a model has not seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cdmpp.devices.registry import get_device
from cdmpp.devices.vector import as_nearest_known, device_vector


def test_a_device_tells_only_what_the_nearest_known_one_tells():
    known = [get_device("epyc-avx512-1c"), get_device("xeon-avx512-1c"), get_device("a100")]
    own = replace(
        known[0], name="own", mem_bandwidth_bytes_per_s=2e10, mem_bytes=2**34, clock_hz=3e9
    )
    told = as_nearest_known(own, known)
    assert told == replace(own, mem_bytes=None, clock_hz=None)
    own = replace(own, mem_bandwidth_bytes_per_s=known[0].mem_bandwidth_bytes_per_s)
    told = as_nearest_known(own, known)
    assert np.array_equal(device_vector(told), device_vector(known[0]))
    # The nearest of the other kind says nothing, and without one of the kind nothing changes.
    assert as_nearest_known(own, known[2:]) == own
    # What the nearest one has stays.
    assert as_nearest_known(known[1], known[1:]).l3_bytes == known[1].l3_bytes
