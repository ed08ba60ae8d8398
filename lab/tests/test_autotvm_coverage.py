"""What an extracted dataset of AutoTVM logs covers, and the sample of what it leaves out."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.datasets.autotvm.logs import AutotvmTask, find_logs
from cdmpp.datasets.autotvm.source import AutotvmLogs
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.source import Featurised
from cdmpp.errors import ReplayError, UsageError
from cdmpp.programs.compact_ast import CompactAst
from cdmpp.records import MeasureRecord
from lab.experiments import autotvm as coverage
from lab.experiments.autotvm import RestCheck, check_rest, device_coverage, page
from tvm_helper.legacy.environment import find_environment

_TILES = range(1, 13)


def log_line(tile: int, *, error: int = 0) -> dict[str, Any]:
    tensors = [["TENSOR", [60, 32], "float32"], ["TENSOR", [48, 32], "float32"]]
    knobs = [["tile_y", "sp", [-1, tile]], ["tile_x", "sp", [-1, 4]], ["tile_k", "sp", [-1, 5]]]
    return {
        "input": ["llvm -keys=cpu", "dense_nopack.x86", [*tensors, None, "float32"], {}],
        "config": {"index": tile, "code_hash": None, "entity": knobs},
        "result": [[1e-3], error, 1.5, 1610301343.7],
        "version": 0.2,
        "tvm_version": "0.8.dev0",
    }


def two_logs(folder: Path) -> Path:
    """Two devices with the same programs; one program failed on both."""
    folder.mkdir()
    lines = [json.dumps(log_line(tile, error=int(tile == 12))) for tile in _TILES]
    for device, count in (("one", 12), ("two", 6)):
        (folder / f"{device}.json").write_text("\n".join(lines[-count:]) + "\n")
    return folder


def made_up(task: AutotvmTask, records: list[MeasureRecord]) -> Featurised:
    """Tiles of 7 cannot be instantiated, even ones are refused."""
    results: list[CompactAst | ReplayError] = []
    for record in records:
        tile = record.steps[0][2][-1]
        if tile == 7:
            results.append(ReplayError("AutoTVM, 7 does not divide"))
            continue
        results.append(
            CompactAst(
                leaf_features=np.ones((1, 164), np.float32),
                leaf_extra=np.zeros((1, 0), np.float32),
                leaf_position=np.array([1], np.int32),
                tree=np.array([0, 1, -1, -1], np.int32),
                valid=tile % 2 == 1,
                reject_reason=None if tile % 2 else f"too even ({tile})",
            )
        )
    return Featurised("autotvm", task.operator, 2.0, results)


def test_what_every_device_has_and_why_the_rest_of_it_is_rejected(tmp_path: Path) -> None:
    logs = two_logs(tmp_path / "logs")
    extract(AutotvmLogs(logs, None, made_up), tmp_path / "out", jobs=1)
    found = device_coverage(tmp_path / "out")
    one, two = (found[label].to_json() for label in ("one", "two"))
    assert (one["programs"], one["featurised"], one["valid"]) == (12, 11, 5)
    assert one["rejected"] == {"too even": 6, "replay: AutoTVM, 7 does not divide": 1}
    assert (two["programs"], two["featurised"], two["valid"]) == (6, 5, 2)


def test_what_the_log_says_of_a_program_beside_the_verdict(tmp_path: Path) -> None:
    logs = two_logs(tmp_path / "logs")
    extract(AutotvmLogs(logs, ["one"], made_up), tmp_path / "out", jobs=1)
    found = coverage.verdicts(tmp_path / "out")
    assert found == {
        ("ok", "valid"): 5,
        ("ok", "too even"): 5,
        ("ok", "replay: AutoTVM, 7 does not divide"): 1,
        ("instantiation error", "too even"): 1,
    }
    text = page(device_coverage(tmp_path / "out"), RestCheck(6, 4, 3), found)
    assert "| one | 12 | 11 | 5 |" in text
    assert "- one, 6 without features or rejected: too even" in text
    assert "| instantiation error | too even | 1 |" in text


def test_the_rest_is_what_ran_and_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = two_logs(tmp_path / "logs")
    extract(AutotvmLogs(logs, ["two"], made_up), tmp_path / "out", jobs=1)  # tiles 7 to 12
    asked: list[int] = []

    def remember(_: object, task: AutotvmTask, records: list[MeasureRecord]) -> Featurised:
        asked.extend(record.steps[0][2][-1] for record in records)
        return made_up(task, records)

    monkeypatch.setattr(coverage, "LegacyTvm", contextlib.nullcontext)
    monkeypatch.setattr(coverage, "features_of", remember)
    result = check_rest(find_logs(logs), tmp_path / "out", count=100)
    assert sorted(asked) == [1, 2, 3, 4, 5, 6]
    assert (result.left_out, result.programs, result.valid) == (6, 6, 3)
    assert result.rejected == {("one", "too even"): 3}
    assert not result.failed
    asked.clear()
    assert check_rest(find_logs(logs), tmp_path / "out", count=2).programs == 2
    first = list(asked)
    asked.clear()
    check_rest(find_logs(logs), tmp_path / "out", count=2)
    assert asked == first  # the same draw every time


@pytest.mark.ansor
def test_programs_that_the_old_tvm_lowers(tmp_path: Path) -> None:
    try:
        find_environment()
    except UsageError:
        pytest.skip("no side environment with the old TVM; build it: make legacy-env")
    logs = two_logs(tmp_path / "logs")
    extract(AutotvmLogs(logs, ["two"], made_up), tmp_path / "out", jobs=1)
    assert set(device_coverage(tmp_path / "out")) == {"two"}
    rest = check_rest(find_logs(logs), tmp_path / "out", count=1000).to_json()
    assert (rest["programs"], rest["valid"], rest["failed"], rest["rejected"]) == (6, 6, [], [])
