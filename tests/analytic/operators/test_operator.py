"""Operators: work, roofline, and what the hardware says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdmpp.analytic.operators.device import (
    Hardware,
    hardware,
    similarity_weights,
)
from cdmpp.analytic.operators.operators import OPERATOR_KINDS, make_operators
from cdmpp.analytic.roofline.operators import operator_bound
from cdmpp.devices.registry import get_device
from cdmpp.errors import DeviceError, UsageError

GPU = Hardware(
    core_count=10, clock_hz=1e9, peak_flop_per_s=1e12, dram_bytes_per_s=1e11,
    l2_bytes=1e6, l2_bytes_per_s=4e11,
)  # fmt: skip


def test_work_of_products() -> None:
    both = make_operators(
        ["bmm", "linear"],
        {"batch": [4, 4], "m": [8, 8], "n": [16, 16], "k": [32, 32]},
    )
    assert both.flop.tolist() == [2 * 4 * 8 * 16 * 32] * 2
    left, out = 4 * 8 * 32, 4 * 8 * 16
    assert both.bytes.tolist() == [
        4 * (left + 4 * 32 * 16 + out),
        4 * (left + 32 * 16 + 16 + out),
    ]


def test_bytes_of_vector_operators() -> None:
    found = make_operators(["add", "addu", "softmax"], {"rows": [3] * 3, "cols": [5] * 3})
    assert found.bytes.tolist() == [4 * 3 * 15, 4 * 2 * 15, 4 * 2 * 15]


@pytest.mark.parametrize(
    ("kind", "shape", "text"),
    [
        ("conv", {"rows": [1], "cols": [1]}, "unknown operator 'conv'"),
        ("bmm", {"m": [1], "n": [1]}, "expected m, n, k"),
        ("add", {"rows": [1], "cols": [1], "k": [1]}, "expected rows, cols"),
        ("add", {"rows": [0], "cols": [1]}, "at least 1"),
    ],
)
def test_wrong_shapes_are_refused(kind: str, shape: dict[str, list[float]], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make_operators([kind], shape)


def test_other_types_are_refused() -> None:
    with pytest.raises(UsageError, match="float16"):
        make_operators(["add"], {"rows": [1], "cols": [1]}, dtype="float16")


def test_a_cpu_has_no_operator_model() -> None:
    with pytest.raises(DeviceError, match="it is a cpu"):
        hardware(get_device("epyc-avx2-1c"))


def test_roofline_of_an_addition_is_dram() -> None:
    bound = operator_bound(make_operators(["add"], {"rows": [1000], "cols": [1000]}), 0, GPU)
    assert bound.dram_s == pytest.approx(12e6 / 1e11)
    assert bound.seconds == bound.dram_s
    assert bound.sentence() == "100 % of the time is DRAM traffic"


def test_roofline_names_what_binds() -> None:
    size = {"m": [4096], "n": [4096], "k": [4096]}
    product = operator_bound(make_operators(["linear"], size), 0, GPU)
    assert "arithmetic" in product.sentence()
    tiny = make_operators(["add"], {"rows": [1], "cols": [1]})
    assert "launch" in operator_bound(tiny, 0, GPU, launch_s=1e-5).sentence()


def test_roofline_counts_the_tiles_that_read_l2() -> None:
    one = operator_bound(make_operators(["bmm"], {"m": [256], "n": [128], "k": [64]}), 0, GPU)
    fetched = 4 * (2 * (128 + 128) * 64 + 256 * 128)
    assert one.l2_s == pytest.approx(fetched / 4e11)


@given(
    rates=st.lists(st.floats(0.1, 10), min_size=1, max_size=6),
    octaves=st.sampled_from([None, 0.5, 4.0]),
)
def test_weights_sum_to_one_and_fall_with_distance(
    rates: list[float], octaves: float | None
) -> None:
    others = [Hardware(10, 1e9, 1e12 * rate, 1e11, 1e6, 4e11) for rate in rates]
    weights = similarity_weights(GPU, others, octaves=octaves)
    assert weights.sum() == pytest.approx(1)
    if octaves is not None and not any(rate == 1 for rate in rates):
        order = np.argsort([abs(np.log2(rate)) for rate in rates])
        assert np.all(np.diff(weights[order]) <= 1e-12)


def test_the_same_chip_speaks_alone() -> None:
    other = Hardware(20, 1e9, 2e12, 1e11, 1e6, 4e11)
    assert similarity_weights(GPU, [other, GPU], octaves=None).tolist() == [0, 1]


def test_every_kind_has_work() -> None:
    for kind in OPERATOR_KINDS:
        names = ("m", "n", "k") if kind in ("bmm", "linear") else ("rows", "cols")
        one = make_operators([kind], {name: [7] for name in names})
        assert one.flop[0] > 0
        assert one.bytes[0] > 0
