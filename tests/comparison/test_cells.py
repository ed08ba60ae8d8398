"""Ranking, fronts, texts and what-if."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdmpp.comparison.cell import CompareCell, front, no_fit, ranked, ranks
from cdmpp.comparison.page import comparison_page
from cdmpp.comparison.prices import Price
from cdmpp.comparison.run import asked_devices
from cdmpp.comparison.tables import groups, json_rows, notes, number, rows
from cdmpp.comparison.what_if import parse_scales, scaled
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import fits_into
from cdmpp.errors import UsageError
from cdmpp.report.page import page_html


def cell(
    device: str, latency_s: float | None, per_hour: float | None = None, **more
) -> CompareCell:
    price = None if per_hour is None else Price(per_hour, "P", "R", "2026-01-01", "S")
    low_s, high_s = (None, None) if latency_s is None else (0.8 * latency_s, 1.3 * latency_s)
    return CompareCell(
        "net", 1, device, 1, "inference", 1, latency_s, low_s, high_s, "serving kernels",
        price=price, **more,
    )  # fmt: skip


CELLS = [
    cell("slow-cheap", 4.0, 1.0), cell("fast-dear", 1.0, 40.0), cell("beaten", 5.0, 9.0),
    cell("middle", 2.0, 5.0), cell("no-price", 0.5), cell("unknown", None, 0.1),
]  # fmt: skip


def test_the_front_has_what_nothing_beats_in_both() -> None:
    names = [one.device for one in front(CELLS, "cost", "latency")]
    assert names == ["slow-cheap", "middle", "fast-dear"]
    assert front([cell("a", None, 1.0)], "cost", "latency") == []


def test_of_equal_cells_one_is_on_the_front() -> None:
    twins = [cell("a", 1.0, 1.0), cell("b", 1.0, 1.0), cell("c", 1.0, 2.0)]
    assert [one.device for one in front(twins, "cost", "latency")] == ["a"]


@pytest.mark.parametrize(
    ("objective", "first"),
    [("latency", "no-price"), ("throughput", "no-price"), ("cost", "slow-cheap")],
)
def test_the_best_comes_first_and_the_unknown_last(objective, first) -> None:
    order = [one.device for one in ranked(CELLS, objective)]
    assert order[0] == first
    assert order[-1] in ("unknown", "no-price")


def test_json_says_what_is_on_the_front() -> None:
    found = {row["device"]: row["is_on_front"] for row in json_rows(CELLS, "latency")}
    assert [name for name, best in found.items() if best] == [
        "slow-cheap", "fast-dear", "middle", "no-price",
    ]  # fmt: skip
    assert (found["beaten"], found["unknown"]) == (False, False)
    slow = cell("slow", 3.0)
    assert json_rows([*CELLS, slow], "latency")[-1]["is_on_front"] is None  # who knows its price?


@pytest.mark.parametrize("objective", ["latency", "throughput", "cost"])
def test_devices_whose_intervals_overlap_are_ties(objective) -> None:
    cells = [cell("a", 1.0, 1.0), cell("b", 1.5, 1.0), cell("c", 1.9, 1.0), cell("d", None, 1.0)]
    assert ranks(cells, objective) == [1, 1, 2, None]  # a up to 1.3, b from 1.2, c from 1.52
    found = json_rows(cells, objective)
    assert [(one["rank"], one["is_tied"]) for one in found] == [
        (1, True), (1, True), (2, False), (None, False),
    ]  # fmt: skip
    assert [row[1] for row in rows(cells, objective)] == ["1=", "1=", "2"]
    said = notes(cells, objective)
    assert said[0] == f"a and b are tied: their intervals of {objective} overlap"


def test_a_cell_without_an_interval_is_a_tie_of_its_equal_alone() -> None:
    bare = [replace(cell(name, s), low_s=None, high_s=None) for name, s in (("a", 1.0), ("b", 1.1))]
    assert ranks(bare, "latency") == [1, 2]
    assert ranks([bare[0], bare[0]], "latency") == [1, 1]


def test_notes_stand_beside_the_rows_that_they_speak_of() -> None:
    cells = [
        cell("a", 3.0, 1.0, reasons=("never measured on a", "too small")),
        cell("b", 1.0, 1.0, reasons=("never measured on b",)), cell("c", 9.0), cell("d", 0.1),
    ]  # fmt: skip
    assert [row[0] for row in rows(cells, "latency")] == ["d * [1]", "b * [2]", "a [2][3]", "c [4]"]
    weighs = "the Pareto front is of cost and latency"
    assert notes(cells, "latency") == [
        f"[1] price unknown, on the front by latency only: {weighs}",
        "[2] never measured on it", "[3] too small",
        f"[4] price unknown, its place is unknown: {weighs}",
    ]  # fmt: skip


def test_unknown_is_never_a_number() -> None:
    assert rows([cell("unknown", None)], "latency") == []
    (row,) = rows([cell("no-price", 1.0)], "latency")
    assert row[3:8] == ["unknown", "unknown", "1.00", "unknown", "unknown"]
    values = cell("unknown", None).to_json()
    names = ("latency_s", "throughput_per_s", "cost_usd_per_million", "energy_bound_j")
    assert [values[name] for name in names] == [None] * 4


def test_memory_that_is_nearly_full_is_not_sure() -> None:
    assert [fits_into(need, 100.0) for need in (90.0, 95.0, 100.5)] == [True, None, False]
    assert fits_into(1.0, None) is None
    full = cell("b60", None, memory_bytes=48 * 2.0**30, memory_limit_bytes=24 * 2.0**30)
    assert no_fit(full) == "does not fit: it needs 48 GiB, b60 has 24 GiB"
    huge = replace(full, memory_bytes=12345 * 2.0**30)
    assert no_fit(huge) == "does not fit: it needs 12,345 GiB, b60 has 24 GiB"
    assert "48 GiB on each of 2" in no_fit(replace(full, degree=2))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "unknown"), (1234567.0, "1,230,000"), (999.4, "999"), (999.7, "1,000"),
     (0.04561, "0.0456"), (12.0, "12.0"), (3e-6, "3.00e-06")],
)  # fmt: skip
def test_numbers(value, text) -> None:
    assert number(value) == text


def test_a_reason_is_said_once_for_all_its_devices() -> None:
    found = notes(
        [cell(name, None, reasons=(f"{name} has no rate",)) for name in ("a1", "b2")], "latency"
    )
    assert found == ["a1, b2: it has no rate"]


def test_mixed_methods_are_said() -> None:
    cells = [cell("a", 1.0, 1.0), replace(cell("b", 9.0, 1.0), method="operator rooflines")]
    (said,) = notes(cells, "latency")
    assert said.startswith("operator rooflines and serving kernels are compared")


def test_what_if_scales_a_copy_beside_the_real_device() -> None:
    devices, hypothetical = asked_devices(
        ["h100"], [], parse_scales("bandwidth=2,peak=1.5"), takes_all=False
    )
    real, changed = devices
    assert real == get_device("h100")
    assert hypothetical == {changed.name} == {"h100 (bandwidth x2, peak x1.5)"}
    assert changed.mem_bandwidth_bytes_per_s == 2 * 3350e9
    assert changed.peak_bf16_flop_per_s == pytest.approx(1.5 * 989.4e12)
    assert changed.mem_bytes == real.mem_bytes
    assert changed.l2_bandwidth_bytes_per_s is None  # unknown stays unknown
    assert "scaled" in changed.sources["mem_bandwidth_bytes_per_s"]
    assert scaled(real, {"memory": 2.0}).mem_bytes == 160 * 2**30


@pytest.mark.parametrize(
    "text", ["bandwith=2", "peak", "peak=0", "peak=fast", "peak=1e-9", "peak=2,peak=3"]
)
def test_scales_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--scale"):
        parse_scales(text)


def test_no_device_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no device given: add some"):
        asked_devices([], [], {}, takes_all=False)


def test_the_page_stands_alone_and_says_what_is_made_up() -> None:
    cells = [*CELLS, cell("h100 (peak x2)", 0.9, is_hypothetical=True)]
    text = page_html(comparison_page(cells, "cost", "cdmpp compare ..."))
    assert "<svg" in text
    assert "Pareto" in text
    assert "Hypothetical: h100 (peak x2)" in text
    assert "<script>" in text
    assert "http-equiv" not in text
    for link in ('src="', 'href="http'):
        assert link not in text
    assert [name for name, _ in groups(cells)] == ["net, batch 1"]
