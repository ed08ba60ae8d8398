"""Extraction holds no more in memory when the data grow tenfold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.extraction.memory_probe import AXES, make_dataset, measure


@pytest.mark.slow
@pytest.mark.parametrize(
    "axis", [pytest.param("devices", marks=pytest.mark.exhaustive), "one-file"]
)
def test_peak_memory_does_not_follow_the_data(axis: str) -> None:
    sizes = {"axis": axis, "files": 60, "device": "xeon-avx512-2c"}
    small = measure(scale=1, **sizes)  # type: ignore[arg-type]
    large = measure(scale=10, **sizes)  # type: ignore[arg-type]
    assert large["records"] == 10 * small["records"]
    assert large["peak_bytes"] <= 1.2 * small["peak_bytes"]


@pytest.mark.parametrize("axis", AXES)
def test_the_data_grow_as_they_should(axis: str, tmp_path: Path) -> None:
    lines = [
        make_dataset(
            tmp_path / f"x{scale}", axis=axis, scale=scale, files=2, device="xeon-avx512-2c"
        )
        for scale in (1, 3)
    ]
    assert lines[1] == 3 * lines[0]
    written = list((tmp_path / "x3" / "measure_records").rglob("*.json"))
    assert len(written) == {"devices": 6, "one-file": 1}[axis]
    texts = [line for path in written for line in path.read_text().splitlines()]
    assert len(texts) == lines[1]
    assert (len(set(texts)) == lines[0]) == (axis == "devices")
