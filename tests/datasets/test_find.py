"""Measurements are found by the name of a device: the shipped folders, then the fetched ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp.datasets import find
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.fetched import (
    FETCHED_FILE,
    Fetched,
    SourceKind,
    fetched_folder,
    write_fetched,
)
from cdmpp.datasets.find import (
    find_records,
    labels_at,
    next_step,
    record_folder,
    record_folders,
    registered_label,
    shipped_folders,
)
from cdmpp.datasets.sources import extract_any, extracted_folder
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import DataError, DeviceError, UsageError
from tests.datasets.tiny import write_tiny_dataset
from tests.paths import ROOT

CPU = "epyc-avx2-1c"


def fetched(cache: Path, name: str, labels: list[str], *, kind: SourceKind = "tenset") -> Path:
    """A folder as `cdmpp dataset fetch` leaves it."""
    folder = write_tiny_dataset(fetched_folder(cache, name))
    write_fetched(folder, Fetched(name, kind, tuple(labels), "", "", "", None, (), (), ""))
    return folder


def test_the_shipped_folders_have_a_cpu_and_a_gpu_of_each_kind() -> None:
    found = {folder.path.name: folder.devices for folder in shipped_folders()}
    assert list(found)[:2] == ["tenset-cpu", "ansor-gpu"]
    assert len(found["tenset-cpu"]) == 8
    assert found["ansor-gpu"] == ("k80", "mi50", "v100")


def test_the_shipped_gpu_records_are_small_and_have_a_licence() -> None:
    folder = ROOT / "data" / "ansor-gpu"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 3e6
    assert "Microsoft Corporation" in (folder / "LICENSE").read_text()


def test_records_are_found_in_every_folder_that_has_them(tmp_path: Path) -> None:
    own = fetched(tmp_path, "more", [CPU, "t4"])
    fetched(tmp_path, "others", ["graviton2"], kind="other")
    found = find_records([CPU, "t4", "v100"], tmp_path)
    assert [(one.path.name, one.devices) for one in found] == [
        ("tenset-cpu", (CPU,)), ("ansor-gpu", ("v100",)), ("more", (CPU, "t4")),
    ]  # fmt: skip
    assert found[-1].path == own


def test_what_was_not_fetched_to_its_end_is_not_there(tmp_path: Path) -> None:
    folder = fetched(tmp_path, "half", ["t4"])
    assert len(record_folders(tmp_path)) == len(shipped_folders()) + 1
    (folder / FETCHED_FILE).unlink()
    assert record_folders(tmp_path) == shipped_folders()
    with pytest.raises(DataError, match="no measurements of device 't4' found; devices found"):
        find_records(["t4"], tmp_path)


def test_a_damaged_note_says_what_to_fetch_again(tmp_path: Path) -> None:
    (fetched(tmp_path, "tlcbench", ["t4"]) / FETCHED_FILE).write_text("{")
    with pytest.raises(DataError, match="cdmpp dataset fetch tlcbench"):
        record_folders(tmp_path)


def test_what_brings_measurements_of_a_device() -> None:
    assert next_step("t4").startswith(
        "cdmpp dataset fetch t4 downloads measurements of t4: TLCBench"
    )
    assert "cdmpp measure --device h100 " in next_step("h100")


def test_a_label_that_nobody_knows_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"did you mean 'v100'.*give --dataset DIR"):
        find_records(["v10O"], tmp_path)


def test_other_names_of_a_device_become_its_label() -> None:
    assert [registered_label(name) for name in ("V100", "NVIDIA V100", "v100", "my-box")] == [
        "v100", "v100", "v100", "my-box",
    ]  # fmt: skip


def test_a_device_is_called_as_the_shipped_measurements_call_it() -> None:
    """Their `a100` is an alias of the registry's `a100-40gb`: neither found the other's records."""
    labels = {registered_label(name) for name in ("a100", "A100-PCIE-40GB", "a100-40gb")}
    assert labels == {"a100"}
    assert registered_label("a100-80gb") == "a100-80gb"


def test_a_dataset_s_own_labels_are_found_in_other_letter_case(tmp_path: Path) -> None:
    for name in ("My_Box", "epyc-avx2-1c", "a100"):
        (tmp_path / "measure_records" / name).mkdir(parents=True)
        (tmp_path / "measure_records" / name / "a.json").touch()
    asked = ["my-box", "EPYC-AVX2-1C", "NVIDIA A100-PCIE-40GB", "a100", "V100", "your-box"]
    assert labels_at(tmp_path, asked) == ["My_Box", "epyc-avx2-1c", "a100", "V100", "your-box"]
    assert labels_at(None, ["V100", "my-box"]) == ["v100", "my-box"]


def test_one_folder_is_wanted_where_a_command_reads_one(tmp_path: Path) -> None:
    assert record_folder([], tmp_path) == default_dataset_dir()
    assert record_folder(["v100", "k80"], tmp_path).name == "ansor-gpu"
    with pytest.raises(UsageError, match=r"several folders: .*tenset-cpu.*ansor-gpu"):
        record_folder([CPU, "v100"], tmp_path)


def test_devices_of_several_folders_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path / "data" / "tables"
    extract_any(write_tiny_dataset(tmp_path / "tiny"), tables, ["xeon-avx2-1c"], jobs=1)
    one, other = write_tiny_dataset(tmp_path / "data" / "records"), tables
    monkeypatch.setattr(find, "shipped_places", lambda path: [tmp_path / path])
    monkeypatch.setattr(find, "SHIPPED", ("records", "tables"))
    cache = tmp_path / "cache"
    assert [folder.path for folder in shipped_folders()] == [one, other]
    assert extracted_folder(None, [CPU], cache_dir=cache, jobs=1).name.startswith("records-1-dev")
    merged = extracted_folder(None, [CPU, "xeon-avx2-1c"], cache_dir=cache, jobs=1)
    assert merged.parent == cache
    assert merged.name.startswith("merged-")
    samples = load_samples(merged, [CPU, "xeon-avx2-1c"])
    assert [spec.name for spec in samples.devices] == [CPU, "xeon-avx2-1c"]
    assert extracted_folder(None, [CPU, "xeon-avx2-1c"], cache_dir=cache, jobs=1) == merged
