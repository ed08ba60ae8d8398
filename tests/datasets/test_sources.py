"""Records of any source become an extracted dataset; what a source does not know is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
from cdmpp.datasets.fetched import FETCHED_FILE
from cdmpp.datasets.sources import extract_any, extracted_folder
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import UsageError
from tests.paths import ROOT

DEVICE = "epyc-avx2-1c"


def database(folder: Path) -> Path:
    folder.mkdir()
    for name in ("workload", "tuning_record"):
        (folder / f"database_{name}.json").write_text("")
    return folder


def log(folder: Path) -> Path:
    folder.mkdir()
    tensor = ["TENSOR", [128, 32], "float32"]
    entity = [["tile_x", "sp", [-1, 4]]]
    line = {
        "input": ["cuda -model=t4", "dense.cuda", [tensor, tensor, None, "float32"], {}],
        "config": {"index": 4, "code_hash": None, "entity": entity},
        "result": [[1e-3], 0, 1.5, 1610301343.7],
        "version": 0.2,
        "tvm_version": "0.8.dev0",
    }
    (folder / "t4.json").write_text(json.dumps(line) + "\n")
    return folder / "t4.json"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (database, {"devices": None}, "give one device"),
        (database, {"devices": ["a", "b"]}, "give one device"),
        (database, {"devices": ["a"], "backend": "ray"}, "on one machine"),
        (database, {"devices": ["a"], "jobs": 0}, "at least 1"),
        (database, {"fallback": "ansor"}, "Tenset's layout"),
        (log, {"per_task": 0}, "--per-task must be at least 1, got 0"),
        (log, {"backend": "ray"}, "on one machine"),
    ],
)
def test_options_of_other_sources_are_refused(
    make: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        extract_any(make(tmp_path / "in"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_share_of_each_task_is_for_logs_only(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="for AutoTVM logs"):
        extract_any(default_dataset_dir(), tmp_path / "out", per_task=3)


def test_one_log_of_many_is_enough_for_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = log(tmp_path / "logs").read_text()
    (tmp_path / "logs" / "v100.json").write_text(text)
    (tmp_path / "logs" / FETCHED_FILE).write_text("{}")

    asked: list[Any] = []
    prepared: list[str] = []
    monkeypatch.setattr("cdmpp.datasets.sources.extract", lambda *words, **_: asked.append(words))
    for devices in (["t4"], None):
        extracted_folder(
            tmp_path / "logs", devices, cache_dir=tmp_path / "cache", featurisers=prepared.append
        )  # type: ignore[arg-type]
    assert prepared == ["autotvm", "autotvm"]
    assert [source.labels for source, _ in asked] == [["t4"], None]
    assert [source.devices() for source, _ in asked] == [["t4"], ["t4", "v100"]]
    assert "-1-devices-" in asked[0][1].name
    assert "-devices-" not in asked[1][1].name


def test_what_needs_a_tvm_is_refused_without_featurisers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="featurised with a TVM"):
        extract_any(log(tmp_path / "logs"), tmp_path / "out")


def test_a_device_of_many_gets_a_folder_of_its_own_and_is_kept(tiny_dataset: Path) -> None:
    cache = tiny_dataset.parent / "cache"
    folder = extracted_folder(tiny_dataset, [DEVICE], cache_dir=cache, jobs=1)
    assert is_extracted_dir(folder)
    assert "-1-devices-" in folder.name
    seen: list[Any] = []
    again = extracted_folder(
        tiny_dataset, [DEVICE], cache_dir=cache, jobs=1, on_progress=seen.append
    )
    assert again == folder
    whole = extracted_folder(tiny_dataset, None, cache_dir=cache, jobs=1)
    assert whole.parent == cache
    # Once all devices are there, one of them needs no folder of its own.
    assert extracted_folder(tiny_dataset, [DEVICE], cache_dir=cache, jobs=1) == whole
    assert extracted_folder(whole, [DEVICE], cache_dir=cache) == whole


def test_a_shipped_extracted_dataset_stays_as_it_is(tmp_path: Path) -> None:
    """Was: training arrays of 180 MB went into the checkout where a suite asked for it."""
    shipped = ROOT / "data" / "metaschedule-a100"
    before = sorted(shipped.iterdir())
    by_name = extracted_folder(None, ["a100"], cache_dir=tmp_path)
    by_path = extracted_folder(shipped, None, cache_dir=tmp_path)
    assert by_name == by_path
    assert by_path.parent == tmp_path
    assert read_manifest(by_path) == read_manifest(shipped)
    load_samples(by_path)
    assert sorted(shipped.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("campaign.json", "{}", "rebuild the campaign's tables: cdmpp measure --out"),
        ("manifest.json", '{"graphs": 2562}', "its manifest.json is not that of an extracted"),
    ],
)
def test_nothing_is_extracted_over_other_work(
    name: str, text: str, message: str, tiny_dataset: Path, tmp_path: Path
) -> None:
    """The tables of a campaign became those of another device."""
    (tmp_path / name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.json")}
    with pytest.raises(UsageError, match=message):
        extract_any(tiny_dataset, tmp_path, jobs=1)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.json")} == before
