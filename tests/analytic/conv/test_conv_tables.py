"""Workbooks, conventions, splits, judging."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, find_variant
from cdmpp.analytic.conv.seer.evaluate import is_wrong_pick, pick_errors, time_errors
from cdmpp.analytic.conv.seer.folder import read_folder
from cdmpp.analytic.conv.seer.splits import family_split, octave_split, original_split
from cdmpp.analytic.conv.seer.table import ConvTable, PickTable, pick_table
from cdmpp.analytic.conv.seer.workbook import (
    read_pick_workbook,
    read_workbook,
    write_workbook,
)
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.errors import DataError, UsageError
from tests.analytic.conv.conv_synthetic import grid, kernel_table, layer_truth, times_alone
from tests.analytic.conv.written import write_pick_workbook

WINOGRAD = find_variant("algo6_148")


def winograd_table() -> ConvTable:
    return kernel_table(WINOGRAD, grid(kernels=(3,), strides=(1,), padding=1))


def assert_equal_tables(first: ConvTable, second: ConvTable) -> None:
    assert np.array_equal(first.algorithm, second.algorithm)
    for name in SHAPE_NAMES:
        assert np.array_equal(getattr(first.shapes, name), getattr(second.shapes, name))
    for name in ("time_ms", "fp32_instructions", "dram_reads", "resident", "blocks", "dram_level"):
        # A sheet of xlsx keeps 16 digits, not all 17.
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), rtol=1e-15)


@pytest.mark.parametrize("form", ["xlsx", "csv"])
@pytest.mark.parametrize("convention", ["cudnn", "readme"])
def test_a_workbook_comes_back(tmp_path: Path, form: str, convention: str) -> None:
    if form == "xlsx":
        pytest.importorskip("openpyxl", reason="openpyxl (extra `analytic`) is absent")
    table = winograd_table()
    sheets = {"train": table[np.arange(0, 60)], "test": table[np.arange(60, 80)]}
    path = tmp_path / (f"algo6_148.{form}" if form == "xlsx" else "algo6_148")
    files = write_workbook(path, sheets, algo_convention=convention)
    assert len(files) == (1 if form == "xlsx" else 2)
    found = read_workbook(path)
    assert sorted(found) == ["test", "train"]
    for name, sheet in sheets.items():
        assert_equal_tables(found[name], sheet)
    other = "readme" if convention == "cudnn" else "cudnn"
    with pytest.raises(DataError, match=f"got --algo-convention {other}"):
        read_workbook(path, algo_convention=other)


def test_the_written_numbers_follow_the_convention(tmp_path: Path) -> None:
    file = write_workbook(tmp_path / "w", {"train": winograd_table()}, algo_convention="readme")[0]
    rows = list(csv.reader(file.read_text().splitlines()))
    assert rows[0][8] == "algo_readme"
    assert {row[8] for row in rows[1:]} == {"4"}
    assert len(rows[0]) == 18


def plain_file(tmp_path: Path, number: int, kernels: list[int]) -> Path:
    """Writes a sheet without names, as the original's."""
    path = tmp_path / "x.train.csv"
    lines = [
        [128, 16, 20, 32, 20, k, 1, k // 2, number, 2.0, 1e6, 1e5, 1e4, 60, 600, 10, 9, 3]
        for k in kernels
    ]
    path.write_text("\n".join(",".join(map(str, line)) for line in lines) + "\n")
    return tmp_path / "x"


def test_a_file_without_names_needs_its_convention(tmp_path: Path) -> None:
    path = plain_file(tmp_path, 4, [3] * 10)
    with pytest.raises(UsageError, match="--algo-convention cudnn"):
        read_workbook(path)
    found = read_workbook(path, algo_convention="readme")["train"]
    assert set(found.algorithm.tolist()) == {int(ConvAlgorithm.WINOGRAD)}
    # Nothing is lost, the first row neither.
    assert len(found) == 10


@pytest.mark.parametrize(
    ("number", "kernels", "convention", "message"),
    [
        (6, [3] * 9 + [7], "cudnn", "WINOGRAD for a 7x7 filter"),
        (5, [3, 5, 9], "readme", "WINOGRAD_NONFUSED for a 9x9 filter"),
        (4, [3] * 10, "cudnn", "all 10 rows of FFT are 3x3"),
    ],
)
def test_rows_that_contradict_the_convention(
    tmp_path: Path, number: int, kernels: list[int], convention: str, message: str
) -> None:
    path = plain_file(tmp_path, number, kernels)
    with pytest.raises(DataError, match=message):
        read_workbook(path, algo_convention=convention)
    assert len(read_workbook(path, algo_convention=convention, is_checked=False)["train"])


def test_malformed_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no workbook found"):
        read_workbook(tmp_path / "none")
    (tmp_path / "a.train.csv").write_text("1,2,3\n")
    with pytest.raises(DataError, match="expected at least one row of 18"):
        read_workbook(tmp_path / "a", algo_convention="cudnn")
    text = plain_file(tmp_path, 0, [3]).with_name("x.train.csv").read_text()
    (tmp_path / "b.train.csv").write_text(text.replace(",10,9,3", ",11,9,3"))
    with pytest.raises(DataError, match="has 11 waves; expected 10"):
        read_workbook(tmp_path / "b", algo_convention="cudnn")
    (tmp_path / "c.train.csv").write_text(text.replace("2.0", "fast"))
    with pytest.raises(DataError, match="expected numbers"):
        read_workbook(tmp_path / "c", algo_convention="cudnn")
    (tmp_path / "e.train.csv").write_text(text.replace(",0,2.0", ",,2.0"))
    with pytest.raises(DataError, match="row 1: algorithm is nan; expected a whole number"):
        read_workbook(tmp_path / "e", algo_convention="cudnn")
    (tmp_path / "f.train.csv").write_text(text.removeprefix("128") + text)
    with pytest.raises(DataError, match="row 1: batch is nan"):
        read_workbook(tmp_path / "f", algo_convention="cudnn")
    (tmp_path / "d.xlsx").write_bytes(b"no archive")
    pytest.importorskip("openpyxl", reason="openpyxl (extra `analytic`) is absent")
    with pytest.raises(DataError, match="cannot read the workbook"):
        read_workbook(tmp_path / "d.xlsx")


@pytest.mark.parametrize("convention", ["cudnn", "readme"])
def test_a_pick_workbook_comes_back(tmp_path: Path, convention: str) -> None:
    shapes = grid(kernels=(3, 5), strides=(1,), padding=1)[np.arange(40)]
    table = PickTable(shapes, layer_truth(shapes), np.arange(40) % 3 - 1)
    write_pick_workbook(tmp_path / "p", {"all": table}, algo_convention=convention)
    found = read_pick_workbook(tmp_path / "p")["all"]
    assert np.array_equal(found.time_ms, table.time_ms)
    assert np.array_equal(found.best, table.best)
    assert np.array_equal(found.cudnn_pick, table.cudnn_pick)
    [file] = tmp_path.glob("p.*.csv")
    titles, first, *rest = file.read_text().splitlines()
    cells = first.split(",")
    file.write_text("\n".join([titles, ",".join([*cells[:16], "", *cells[17:]]), *rest]))
    with pytest.raises(DataError, match="row 1: best algorithm is nan"):
        read_pick_workbook(tmp_path / "p")


def test_a_folder_is_divided(tmp_path: Path) -> None:
    table = winograd_table()
    write_workbook(tmp_path / "algo6_148", {"train": table, "test": table[np.arange(5)]})
    folder = read_folder(tmp_path)
    assert len(folder.test["algo6_148"]) == 5
    anew = read_folder(tmp_path, split="family", seed=3)
    assert len(anew.train["algo6_148"]) + len(anew.test["algo6_148"]) == len(table) + 5
    with pytest.raises(DataError, match="no workbook found"):
        read_folder(tmp_path / "empty")


def test_sheets_may_have_their_published_names(tmp_path: Path) -> None:
    """Was refused."""
    table = winograd_table()
    sheets = {"Training-set": table, "Test-set-I": table[np.arange(5)]}
    write_workbook(tmp_path / "algo6_148", sheets)
    assert len(read_folder(tmp_path).test["algo6_148"]) == 5
    write_workbook(tmp_path / "algo6_148", {"train": table})
    with pytest.raises(DataError, match="two sheets are 'train'"):
        read_folder(tmp_path)


def test_a_sheet_or_workbook_that_says_nothing_is_named(tmp_path: Path) -> None:
    """Was left out without a word."""
    table = winograd_table()
    part = table[np.arange(5)]
    write_workbook(tmp_path / "algo6_148", {"train": table, "test": part, "more": part})
    with pytest.raises(DataError, match="sheets more are neither train nor test"):
        read_folder(tmp_path)
    assert len(read_folder(tmp_path, split="family").train["algo6_148"])
    for name in ("GEMM-P.xlsx", "GEMM-P.train.csv"):
        (tmp_path / name).write_text("")
        with pytest.raises(DataError, match=rf"kernel variant of {name}.*one of .*algo0_32x32"):
            read_folder(tmp_path, split="family")
        (tmp_path / name).unlink()


def test_the_original_split() -> None:
    time_ms = np.concatenate([np.linspace(1.5, 900.0, 40), [0.5, 1.0, 1000.0, 2000.0]])
    order = np.random.default_rng(0).permutation(len(time_ms))
    shuffled = time_ms[order]
    train, test = original_split(shuffled)
    assert not (train & test).any()
    assert not (train | test)[(shuffled <= 1.0) | (shuffled >= 1000.0)].any()
    assert train.sum() == 28
    assert test.sum() == 12
    assert np.flatnonzero(np.isin(time_ms[:40], shuffled[test])).tolist() == [
        i for i in range(40) if i % 10 >= 7
    ]


@settings(deadline=None)
@given(st.integers(0, 10_000))
def test_held_out_values_are_unseen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shapes = ConvShapes.of(8, *rng.integers(3, 60, (3, 400)), 3, 1, 1)
    train, test = family_split(shapes, seed=seed)
    assert (train ^ test).all()
    assert 0.15 < test.mean() < 0.45
    is_unseen = np.zeros(len(shapes), bool)
    for name in ("in_channels", "out_channels", "in_width"):
        values = getattr(shapes, name)
        is_unseen |= ~np.isin(values, values[train])
    assert is_unseen[test].all()


def test_octaves_are_unseen() -> None:
    rng = np.random.default_rng(0)
    shapes = ConvShapes.of(8, *rng.integers(3, 300, (3, 900)), 3, 1, 1)
    train, test = octave_split(shapes, seed=1)
    names = ("in_channels", "out_channels", "in_width")
    keys = [
        tuple(int(np.log2(getattr(shapes, name)[row])) for name in names)
        for row in range(len(shapes))
    ]
    assert not {keys[row] for row in np.flatnonzero(train)} & {
        keys[row] for row in np.flatnonzero(test)
    }
    with pytest.raises(DataError, match="single family"):
        family_split(ConvShapes.of(8, 3, [9, 9], 4, 3), seed=0)


def test_the_pick_rule() -> None:
    times = np.tile([1.00, 1.09, 1.11], (3, 1))
    assert is_wrong_pick(times, np.array([0, 1, 2])).tolist() == [False, False, True]


def test_pick_errors() -> None:
    shapes = ConvShapes.of(8, 3, [9, 10, 11, 12], 4, 3)
    times = np.full((4, 8), np.inf)
    times[:, :3] = [1.0, 1.09, 2.0]
    found = pick_errors(PickTable(shapes, times, np.zeros(4, np.int64)), np.array([0, 1, 2, 7]))
    assert found["n"] == 4
    assert found["error_rate"] == 0.5
    assert found["exact_rate"] == 0.25
    assert found["mean_regret"] == pytest.approx((0 + 0.09 + 1.0) / 3)


def test_time_errors() -> None:
    found = time_errors(np.array([1.0, 2.0, 4.0]), np.array([1.1, 1.0, 4.0]))
    assert found.rmspe == pytest.approx(np.sqrt((0.01 + 0.25) / 3))
    assert found.rmse_ms == pytest.approx(np.sqrt((0.01 + 1.0) / 3))
    assert found.mape == pytest.approx(0.2)
    assert found.median_ape == pytest.approx(0.1)
    assert found.within_20pct == pytest.approx(2 / 3)
    assert time_errors(np.zeros(0), np.zeros(0)).rmspe is None


def test_the_fastest_of_repeated_measurements_counts() -> None:
    shapes = ConvShapes.of(8, 3, [9, 10, 9], 4, 3)
    first = times_alone(shapes, 0, np.array([2.0, 3.0, 1.5]))
    second = times_alone(shapes[np.array([1])], 4, np.array([1.0]))
    found = pick_table([first, second])
    assert found.best.tolist() == [0, 4]
    assert found.best_ms.tolist() == [1.5, 1.0]
