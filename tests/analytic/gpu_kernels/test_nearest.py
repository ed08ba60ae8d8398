"""Measured calls that correct the trees: of a version, a sibling, other sizes; and their file."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.nearest import NearRows
from cdmpp.devices.registry import get_device

TOKENS = 2 ** np.arange(10)


def _columns(release, tokens=TOKENS, dtype="bfloat16"):
    count = len(tokens)
    return {
        "tokens": np.asarray(tokens), "hidden": np.full(count, 4096),
        "dtype": np.full(count, dtype), "release": np.full(count, float(release)),
    }  # fmt: skip


def _rows(*parts):
    """Returns rows of (device, release, effort); all by vllm."""
    columns = [_columns(release) for _, release, _ in parts]
    count = len(TOKENS)
    return NearRows.of(
        {name: np.concatenate([one[name] for one in columns]) for name in columns[0]},
        np.full(count * len(parts), "vllm"),
        np.repeat([device for device, _, _ in parts], count),
        np.concatenate([np.broadcast_to(effort, count) for _, _, effort in parts]),
    )


def _correction(
    rows, device, release, *, trees=0.1, dtype="bfloat16", software="vllm", family="moe"
):
    columns = _columns(release, dtype=dtype)
    return rows.correction(
        family,
        columns,
        np.full(len(TOKENS), software),
        get_device(device),
        lambda there, _: np.full(len(there["tokens"]), trees),
    )


def test_a_measured_call_has_nearly_its_own_time():
    effort = np.linspace(0.2, 0.8, len(TOKENS))
    found = _correction(_rows(("b200", 500, effort)), "b200", 500)
    assert 0.1 + found == pytest.approx(effort, abs=0.02)


def test_the_version_before_counts_more_than_a_later_one():
    rows = _rows(("b200", 500, 0.5), ("b200", 502, 0.9))
    assert _correction(rows, "b200", 501)[3] < _correction(rows, "b200", 502)[3]
    before = _correction(_rows(("b200", 500, 0.5)), "b200", 501)
    assert np.all((before > 0.3) & (before < 0.4))  # of 0.5 - 0.1, as another version counts less


@pytest.mark.parametrize(
    ("release", "effort", "known", "copies", "share"),
    [
        (502, 0.9, (500, 501), 5, 0.5),
        (502, -0.7, (500, 501), 5, 1.0),  # faster than the trees say
        (499, 0.9, (500, 501), 5, 1.0),  # before all measured versions
        (501, 0.9, (500, 501), 5, 1.0),  # measured
        (502, 0.9, (501, 501), 5, 1.0),  # one version alone
        (502, 0.9, (500, 501), 3, 1.0),  # too few measurements for the trees
    ],
)
def test_an_unmeasured_version_speeds_up_what_was_slow(release, effort, known, copies, share):
    parts = [(device, one, effort) for one in known for device in ("b200", *["h100"] * copies)]
    found = _correction(_rows(*parts), "b200", release, trees=0.0)
    whole = _correction(_rows(("b200", 501, effort)), "b200", release, trees=0.0)
    assert found / whole == pytest.approx(share, rel=0.15)


def test_a_sibling_answers_for_a_device_and_another_chip_does_not():
    rows = _rows(("b200", 500, 0.5))
    assert _correction(rows, "b300", 500) == pytest.approx(0.4, abs=0.05)
    assert np.all(_correction(rows, "h100", 500) == 0.0)


def test_a_sibling_with_other_links_says_nothing_of_what_goes_over_them():
    rows = _rows(("h100", 500, 0.5))
    assert np.all(_correction(rows, "h800", 500) > 0.3)
    assert np.all(_correction(rows, "h800", 500, family="exchange") == 0.0)
    assert np.all(_correction(rows, "h200", 500, family="exchange") > 0.3)


@pytest.mark.parametrize("other", [{"dtype": "fp8"}, {"software": "sglang"}])
def test_other_types_and_software_say_nothing(other):
    assert np.all(_correction(_rows(("b200", 500, 0.5)), "b200", 500, **other) == 0.0)


def test_a_far_size_counts_less():
    rows = _rows(("b200", 500, 0.5))
    columns = _columns(500, tokens=np.array([512, 4096, 2**20]))
    near, far, farthest = rows.correction(
        "moe",
        columns,
        np.full(3, "vllm"),
        get_device("b200"),
        lambda there, _: 0.0 * there["tokens"],
    )
    assert near > far > farthest > 0.0


def test_rows_come_back_from_their_file(tmp_path):
    rows = _rows(("b200", 10299.2, np.linspace(-3.0, 3.0, len(TOKENS))), ("h100", 500, 0.25))
    rows.save(tmp_path / "moe.near.parquet")
    again = NearRows.load(tmp_path / "moe.near.parquet")
    again.save(tmp_path / "again.near.parquet")
    files = [(tmp_path / f"{name}.near.parquet").read_bytes() for name in ("moe", "again")]
    assert files[0] == files[1]
    for device, release in (("b200", 10299.2), ("b200", 10299.3), ("h100", 500)):
        found = [_correction(one, device, release) for one in (rows, again)]
        assert found[0] == pytest.approx(found[1], abs=0.005)
