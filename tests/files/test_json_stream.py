"""Large JSON files in pieces: what comes back, first keys, and one sentence for each damage."""

from __future__ import annotations

import gzip
import json
import random
import re
import tracemalloc
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cdmpp.errors import DataError
from cdmpp.files.json_stream import array_batches, top_level_keys


def read(path: Path, key: str = "list") -> tuple[list[Any], dict[str, Any]]:
    others: dict[str, Any] = {}
    return list(chain.from_iterable(array_batches(path, key, on_value=others.__setitem__))), others


def write(folder: Path, value: Any) -> Path:
    path = folder / "v.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("indent", [None, 1])
def test_elements_across_every_chunk_border(tmp_path, monkeypatch, chunk, indent):
    """Elements, texts, numbers and letters of several bytes are cut everywhere."""
    monkeypatch.setattr("cdmpp.files.json_stream._CHUNK_BYTES", chunk)
    rng = random.Random(0)
    values = [
        {"name": rng.choice(['a"}, {', "b\\", "ü{", "], ", 'ä\\n"']) * rng.randint(1, 4),
         "ts": rng.random(), "args": {"l": [{"x": 1}, {"y": [2, {}]}], "n": i}}
        for i in range(80)
    ]  # fmt: skip
    value = {"before": {"deep": [1, 2]}, "list": values, "after": 123456}
    path = write(tmp_path, json.dumps(value, indent=indent, ensure_ascii=False))
    assert read(path) == (values, {"before": {"deep": [1, 2]}, "after": 123456})


def test_a_packed_file_a_bare_list_and_nan(tmp_path):
    path = write(tmp_path, '[{"a": NaN}, {"a": 1}, 5, [2], {"a": 1e400}]')
    packed = tmp_path / "packed"  # known by its content
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for each in (path, packed):
        found, _ = read(each)
        assert str(found[0]["a"]) == "nan"
        assert found[1:] == [{"a": 1}, 5, [2], {"a": float("inf")}]


@pytest.mark.parametrize("text", ["[", "[ \n", "{", '{"a'])
def test_a_file_that_ends_before_its_first_element_is_truncated(tmp_path, text):
    with pytest.raises(DataError, match="the file is truncated after 0 complete elements"):
        top_level_keys(write(tmp_path, text))


def test_first_keys(tmp_path):
    assert top_level_keys(write(tmp_path, {"a": 1, "b": [1], "c": {}}), most=2) == ["a", "b"]
    assert top_level_keys(write(tmp_path, [1])) == ["[]"]
    large = {"a": 1, "list": [{"x": "y" * 1000}] * 2000, "never": 1}
    assert top_level_keys(write(tmp_path, large)) == ["a", "list"]


def test_a_large_value_beside_the_list(tmp_path):
    value = {"big": list(range(400_000)), "list": [{"a": 1}]}
    assert read(write(tmp_path, value)) == (value["list"], {"big": value["big"]})


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_file_cut_off_is_one_sentence(tmp_path, kept):
    content = json.dumps({"list": [{"n": n, "t": "x" * n} for n in range(100)]}).encode()
    for data in (content, gzip.compress(content)):
        path = tmp_path / "cut.json"
        path.write_bytes(data[: int(kept * len(data))])
        with pytest.raises(DataError, match=r"truncated") as caught:
            read(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('{"other": 1}', "no 'list' in it .it has other."),
        ('{"list": 5}', "list is not a list"),
        ('{"list" [', "expected a name and a colon"),
        ('{"list": [{"a": 1}, {"b": nope}, {}]}', "not JSON after 1 element: .* near '"),
        (
            '[{"name": "torch\\cuda"}]',
            "is not escaped; torch writes such names with with_stack=True",
        ),
        ('[{"name": "L("my", 1)", "a": 1}]', "is not escaped; torch writes such names"),
        ('[{"name": "a", "b": nope}, {}]', "not JSON after 0 elements: .*write the file again"),
        (
            '{"list": [{"a": 1}]} {"list": []}',
            "text after the JSON value .*{.* is ignored; expected one",
        ),
        ('[{"a": 1}, {"a"', "truncated"),
        ('[{"ph" "X", "name": "a"}, {"ph": "M"}]', "not JSON after 0 elements"),
        ("[" * 100_000, "nest too deep"),
        ("hello", "begins with 'h'"),
    ],
)
def test_one_clear_error(tmp_path, text, words):
    with pytest.raises(DataError, match=words) as caught:
        read(write(tmp_path, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk", [3, 1 << 18])
@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('[{"a": 1}, {"a": 2},\n', "is truncated: 2 events are complete$"),
        ('[{"a": 1}, {"a": 2}', "is truncated: 2 events are complete$"),
        (
            '[{"a": 1}, {"a": 2}, {"b": "}, {"',
            "2 events are complete and one is truncated$",
        ),
        ('[{"a": 1}, {"a": 2}]\n{"a": 3}', "text after the JSON value .*{.* is ignored"),
        ('{"list": [{"a": 1}, {"a": 2}]} x', "text after the JSON value .*x.* is ignored"),
    ],
)
def test_what_is_left_out_is_said(tmp_path, monkeypatch, text, note, chunk):
    monkeypatch.setattr("cdmpp.files.json_stream._CHUNK_BYTES", chunk)
    notes: list[str] = []
    found = array_batches(write(tmp_path, text), "list", on_note=notes.append)
    assert list(chain.from_iterable(found)) == [{"a": 1}, {"a": 2}]
    assert len(notes) == 1
    assert re.search(note, notes[0])


def test_a_line_break_within_a_text(tmp_path):
    assert read(write(tmp_path, '[{"name": "a\n(1): b"}]'))[0] == [{"name": "a\n(1): b"}]


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(b'{"list": [\xff\xfe]}')
    with pytest.raises(DataError, match="not JSON"):
        read(path)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "large.json"
    element = json.dumps({"name": "x" * 400, "args": {"stack": "y" * 1600}})
    with path.open("w") as stream:
        stream.write('{"list": [' + ", ".join([element] * 12_000) + "]}")
    assert path.stat().st_size > 24e6
    tracemalloc.start()
    count = sum(len(batch) for batch in array_batches(path, "list"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 12_000
    assert peak < 8e6
