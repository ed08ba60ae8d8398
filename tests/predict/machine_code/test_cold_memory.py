"""What a kernel takes longer in a network than alone."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.errors import DataError
from cdmpp.predict.machine_code.cold_memory import (
    KernelInNetwork,
    fitted_cold_s_per_byte,
    network_widths,
    read_in_network,
    write_in_network,
)


def test_the_seconds_a_byte_come_back():
    rng = np.random.default_rng(0)
    alone = np.exp(rng.normal(-8.0, 1.5, size=80))
    size = np.exp(rng.normal(14.0, 1.0, size=80))
    in_network = (alone + 2e-11 * size) * np.exp(0.05 * rng.normal(size=80))
    assert fitted_cold_s_per_byte(alone, size, in_network) == pytest.approx(2e-11, rel=0.2)
    assert fitted_cold_s_per_byte(alone, size, 0.9 * alone) == 0.0


def test_short_kernels_do_not_count():
    alone, size = np.array([1e-3, 1e-6]), np.array([1e6, 1e6])
    in_network = np.array([1e-3, 1.0])
    assert fitted_cold_s_per_byte(alone, size, in_network) == 0.0
    with pytest.raises(DataError, match="takes 10 µs; expected larger networks"):
        fitted_cold_s_per_byte(alone[1:], size[1:], in_network[1:])


def test_what_is_left_over_is_wider_for_short_kernels():
    rng = np.random.default_rng(0)
    alone = np.exp(rng.uniform(np.log(1e-6), np.log(1e-1), size=600))
    size = np.full(600, 1e6)
    error = np.where(alone < 1e-5, 0.6, 0.1) * rng.normal(size=600)
    in_network = (alone + np.where(alone < 1e-5, 0.0, 2e-11) * size) * np.exp(error)
    task = (np.arange(600) // 3).astype(np.str_)
    found = network_widths(alone, size, in_network, task, cold_s_per_byte=2e-11)
    short, long = found.half_width(np.log([2e-6, 2e-3]))
    assert short == pytest.approx(1.645 * 0.6, rel=0.25)
    assert long == pytest.approx(1.645 * 0.1, rel=0.25)


def test_the_file_comes_back(tmp_path):
    assert read_in_network(tmp_path) == []
    kernels = [KernelInNetwork('["1"]', 4096.0, 1e-3), KernelInNetwork('["2"]', 64.0, 2e-3)]
    write_in_network(tmp_path, kernels)
    assert read_in_network(tmp_path) == kernels


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 9, "kernels": []}', '{"format": 1, "kernels": [["a", "b", 1]]}']
)
def test_damaged_files_are_refused(text, tmp_path):
    (tmp_path / IN_NETWORK).write_text(text)
    with pytest.raises(DataError, match="in_network"):
        read_in_network(tmp_path)
