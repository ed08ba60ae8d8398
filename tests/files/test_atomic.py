"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import (
    read_json,
    replaced_folder,
    write_column_parts,
    write_columns,
    write_text,
)
from cdmpp.files.run_folder import check_run_folder


def test_a_folder_is_replaced_whole_or_stays(tmp_path):
    folder = tmp_path / "model"
    for text in ("first", "second"):
        with replaced_folder(folder, what="model") as new:
            assert list(new.iterdir()) == []
            (new / text).write_text(text)
        assert [path.name for path in folder.iterdir()] == [text]
    with pytest.raises(FileNotFoundError), replaced_folder(folder, what="model") as new:
        (new / "missing" / "third").write_text("third")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "second"]


def test_the_old_folder_is_back_where_the_new_one_cannot_be_put(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "first").write_text("first")
    replace, seen = os.replace, []

    def failing(source, target):
        if Path(source).name.endswith(".tmp"):
            seen.extend(path.name for path in tmp_path.rglob("first"))
            raise OSError("disk gone")
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with (
        pytest.raises(DataError, match=r"disk gone.*it is unchanged"),
        replaced_folder(folder, what="model") as new,
    ):
        (new / "second").write_text("second")
    assert seen == ["first"], "a copy of the old while the new is put in place"
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "first"]


def test_columns_in_parts_are_one_table(tmp_path):
    path = tmp_path / "table.parquet"
    numbers = np.array([1.5, np.nan, 2.5])
    write_column_parts(path, ({"number": numbers[start : start + 2]} for start in (0, 2)))
    assert parquet.read_table(path)["number"].to_pylist() == [1.5, None, 2.5]


def test_columns_come_back_and_what_is_no_number_is_null(tmp_path):
    path = tmp_path / "table.parquet"
    names = np.array(["a", "b"], object)
    write_columns(path, {"name": names, "number": np.array([1.5, np.nan])})
    assert parquet.read_table(path).to_pylist() == [
        {"name": "a", "number": 1.5},
        {"name": "b", "number": None},
    ]


@pytest.mark.parametrize(("value", "got"), [({"format": 2}, "2"), ({}, "None"), ([], "list")])
def test_another_format_is_one_sentence(tmp_path, value, got):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=rf"has format {got}, expected 1 \(model\); train again"):
        read_json(path, what="model", hint="train again", format=1)
    assert read_json(path, what="model", hint="train again") == value


def test_a_long_format_is_cut(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"format": "x" * 9000}))
    with pytest.raises(DataError) as caught:
        read_json(path, what="model", hint="train again", format=1)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_the_name_of_a_folder_is_no_place_for_a_file(tmp_path, monkeypatch, name):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(DataError, match="it is a folder"):
        write_text(Path(name), "text")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner"]


def test_a_config_that_is_not_text_is_of_another_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="has a run with other options"):
        check_run_folder(tmp_path, "seed: 0\n")
