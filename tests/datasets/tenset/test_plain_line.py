"""The fast reader of plain lines agrees with the full one, and native extraction with Python."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.extraction import extract as extract_module
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.tenset import record_file
from cdmpp.datasets.tenset.folder import MeasureRecord, ReadReport, find_device_files, read_records
from cdmpp.datasets.tenset.plain_line import parse_plain_record
from cdmpp.datasets.tenset.record_line import parse_record
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.programs.ansor.dag import parse_dag
from cdmpp.programs.featurise import featurise_records
from cdmpp.records import TensetTask, canonical_json, program_id, program_id_of_text
from tests.datasets.tenset.test_records import record_text, record_value
from tests.fuzz.mutate import mutate_line
from tests.programs.reference.featurise import featurise_record


@pytest.fixture(scope="module")
def lines(shipped: Path) -> list[str]:
    """Real record lines of two devices."""
    files = [
        path
        for device in ("epyc-avx2-1c", "xeon-avx512-2c")
        for path in find_device_files(shipped, device)[:40]
    ]
    return [line for p in files for line in gzip.decompress(p.read_bytes()).decode().splitlines()]


def test_real_lines_are_plain_and_read_alike(lines: list[str]) -> None:
    plain = 0
    for number, line in enumerate(lines, start=1):
        found = parse_plain_record(line.encode(), device="here", line=number)
        expected = parse_record(line, device="here", line=number)
        if found is None:
            assert expected.error_code, line
            continue
        plain += 1
        assert repr(found) == repr(expected)
        assert found.schedule == expected.schedule == canonical_json(list(expected.steps))
    assert plain > 0.95 * len(lines)


@pytest.mark.parametrize(
    "changes",
    [
        {"costs": [1e10], "error": 2},
        {"costs": [0.0]},
        {"costs": [1e-3, -1e-3]},
        {"costs": [1]},
        {"error": True},
        {"version": "v9"},
        {"task": ['["a"]', "cuda"]},
        {"task": ['["a"]', "llvm", [8] * 7, "", 2, []]},
        {"task": ['["a"]', "cuda", [2**63] * 8, "", 2, []]},
        {"task": ['["a"]', "llvm", [8.0] * 8, "", 2, []]},
        {"task": ['["\u00e9"]', "llvm", [8] * 8, "", 2, []]},
        {"task": ['["a"]', " ", [8] * 8, "", 2, []]},
        {"steps": [["SP", 1.5]]},
        {"steps": [["SP", 2**70]]},
        {"steps": [["SP", True]]},
        {"steps": [["SP", None]]},
        {"steps": [["SP", {"a": 1}]]},
        {"steps": [["SP", [[1]]]]},
        {"steps": [["SP", 'a"b']]},
        {"steps": [["SP", "a\\b"]]},
        {"steps": [["SP", "\x7f"]]},
        {"steps": [["SP", "\u00e9"]]},
        {"steps": [[]]},
        {"steps": [[1, "SP"]]},
        {"steps": {}},
    ],
)
def test_what_is_unusual_is_left_to_the_full_reader(changes: dict[str, Any]) -> None:
    assert parse_plain_record(record_text().encode(), device="x") is not None
    assert parse_plain_record(record_text(**changes).encode(), device="x") is None


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"# comment", b"\xff", b"[]", b"{}", b"[" * 100_000, record_text().encode()[:-2],
        json.dumps({**record_value(), "w": 1}).encode(),
        json.dumps({**record_value(), "i": "ab"}).encode(),
        record_text().replace("0.001", "NaN").encode(),
        record_text().replace("0.001", "1e999").encode(),
    ],
)  # fmt: skip
def test_what_is_no_plain_record(raw: bytes) -> None:
    assert parse_plain_record(raw, device="x") is None


def test_mutated_files_give_the_same_records_counters_and_reasons(
    lines: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    path = tmp_path / "case.json"
    cases = [mutate_line(rng, rng.choice(lines)).replace(b"\n", b" ") for _ in range(1500)]
    path.write_bytes(b"\n".join([*cases, *(line.encode() for line in lines[:200])]))
    fast, slow = ReadReport(), ReadReport()
    records = list(read_records(path, fast, device="x"))
    monkeypatch.setattr(record_file, "_plain_parser", lambda: None)
    assert repr(records) == repr(list(read_records(path, slow, device="x")))
    assert fast == slow
    assert fast.records > 300
    assert len(fast.skipped) > 8


def test_ids_of_texts_are_the_ids_of_steps(lines: list[str]) -> None:
    for line in lines[:50]:
        record = parse_record(line)
        expected = program_id("tenset", record.workload_key, list(record.steps), "llvm")
        text = record.schedule
        assert program_id_of_text("tenset", record.workload_key, text, "llvm") == expected


def test_steps_text_does_not_count_in_comparisons(lines: list[str]) -> None:
    plain = parse_plain_record(lines[0].encode(), device="x")
    assert isinstance(plain, MeasureRecord)
    assert plain.steps_text is not None
    assert plain == parse_record(lines[0], device="x")


def test_native_and_python_extract_the_same_bytes(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = sorted((tiny_dataset / "measure_records").iterdir())[0]
    rng = random.Random(4)
    for path in device.iterdir():
        good = path.read_text().splitlines()
        broken = [mutate_line(rng, line).replace(b"\n", b" ") for line in good * 4]
        path.write_bytes(b"\n".join([*broken, *(line.encode() for line in good)]))

    def by_reference(task: TensetTask, records: Sequence[MeasureRecord]) -> list[Any]:
        dag = parse_dag(task.dag_json)
        return [featurise_record(dag, record) for record in records]

    def files(out: Path, featurise: Any) -> dict[str, bytes]:
        extract(TensetRecords(tiny_dataset, None, featurise), out, jobs=1)
        return {path.name: path.read_bytes() for path in out.iterdir()}

    monkeypatch.setattr(extract_module, "code_hash", lambda *_: "the same")
    native = files(tmp_path / "native", featurise_records)
    monkeypatch.setattr(record_file, "_plain_parser", lambda: None)
    python = files(tmp_path / "python", by_reference)
    assert native.keys() == python.keys()
    assert native == python
    note = json.loads(native["shard-00000.json"])
    assert note["featurised"] > 10
    assert note["rejected"]
    assert note["read"]["skipped"]
