"""Every number of one row of a comparison, worked out by hand."""

from __future__ import annotations

import math

import pytest

from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.comparison.prices import prices_of
from cdmpp.comparison.run import Question, compare
from cdmpp.comparison.tables import rows, titles
from cdmpp.comparison.transformer import Pass
from cdmpp.devices.registry import get_device
from tests.comparison.llama import BLOCK, MODEL, Millisecond


def no_onnx(path, name, devices):
    raise AssertionError


def test_every_number_of_a_row() -> None:
    h100, one = get_device("h100"), Pass("decode", 4096, batch=8, degree=2)
    (cell,) = compare(
        Question([h100], transformers=[MODEL], passes=[one], prices=prices_of()),
        onnx_cells=no_onnx, kernels=Millisecond,
    )  # fmt: skip
    # Kernels with a model: 4 products and the attention of 32 blocks, the logits; 64 sums over
    # devices and one gathering of logits. A millisecond each.
    products, attention, collectives = 4 * 32 + 1, 32, 64 + 1
    assert cell.parts["products"] == pytest.approx(products * 1e-3)
    assert cell.parts["attention"] == pytest.approx(attention * 1e-3)
    assert cell.parts["collectives"] == pytest.approx(collectives * 1e-3)
    # Kernels that move bytes: tokens x elements x 2 bytes, as an operator of 8 bytes an element.
    token = 8 * 2
    times = KernelTimes(h100)
    moved = [
        (65, 4 * token * 4096),  # norms of 32 blocks and the last one
        (32, 2 * token * (16 + 2 * 4) * 128),  # rotation and cache of half the heads
        (32, 3 * token * 14336 / 2),  # gate times up
        (1, 2 * token * 4096),  # embedding
    ]
    ends = [
        (count, times.interval_s(KernelCall("relu", {"elements": size / 8})))
        for count, size in moved
    ]
    moves_s, moves_low_s, moves_high_s = (
        sum(count * end[place] for count, end in ends) for place in range(3)
    )
    latency_s = (products + attention + collectives) * 1e-3 + moves_s
    assert cell.latency_s == pytest.approx(latency_s)
    counts = (products, attention, collectives)
    down = math.sqrt(sum((n * 1e-4) ** 2 for n in counts) + (moves_s - moves_low_s) ** 2)
    up = math.sqrt(sum((n * 2e-4) ** 2 for n in counts) + (moves_high_s - moves_s) ** 2)
    assert (cell.low_s, cell.high_s) == pytest.approx((latency_s - down, latency_s + up))
    # Memory of one of the two devices.
    weights = 2 * (32 * BLOCK + 2 * 128256 * 4096) / 2 + 2 * 65 * 4096
    cache = 8 * 4096 * 32 * 2 * 4 * 128 * 2
    activations = 2 * 8 * (4096 + 3 * 7168) + 4 * 8 * 128256
    assert cell.memory_bytes == weights + cache + activations
    assert cell.memory_limit_bytes == 80 * 2**30
    assert cell.fits is True
    # Eight sequences make a token each; two devices are paid and powered meanwhile.
    assert cell.throughput_per_s == pytest.approx(8 / latency_s)
    assert cell.cost_per_million == pytest.approx(2 * 2.29 * latency_s / 3600 / 8 * 1e6)
    assert cell.energy_bound_j == pytest.approx(2 * 700 * latency_s / 8)
    shown = dict(zip(titles([cell]), rows([cell], "latency")[0], strict=True))
    assert (shown["device"], shown["rank"]) == ("h100 *", "1")
    assert shown["latency [interval]"].startswith(f"{1e3 * latency_s:.0f} ms")
    assert shown["memory"] == "9.48 of 80 GiB"
    assert shown["answered by"] == "serving kernels"
    assert float(shown["tokens/s"]) == pytest.approx(8 / latency_s, rel=0.01)
