"""What makes a shard is known by its source, and by nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdmpp.datasets.extraction import code_hash as module
from cdmpp.datasets.extraction.code_hash import code_hash, import_closure
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError
from cdmpp.programs.featurise import featurise_records
from tests.paths import ROOT


@pytest.fixture
def copy(tmp_path, monkeypatch) -> Path:
    """A copy of the packages whose sources a test may change."""
    for name in ("cdmpp", "tvm_helper"):
        shutil.copytree(
            ROOT / name, tmp_path / name,
            ignore=shutil.ignore_patterns("pretrained", "cache", "__pycache__"),
        )  # fmt: skip
    monkeypatch.setattr(module, "beside_package", lambda: tmp_path)
    monkeypatch.setattr(
        module.inspect,
        "getsourcefile",
        lambda maker: str(tmp_path / f"{maker.__module__.replace('.', '/')}.py"),
    )
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "cdmpp/programs/featurise.py",
        "cdmpp/programs/ansor/dag.py",
        "cdmpp/programs/native/src/leaf.hpp",
        "cdmpp/programs/native/binding.py",
        "cdmpp/datasets/tenset/record_line.py",
        "cdmpp/datasets/extraction/schema.py",
    ],
)
def test_a_change_of_what_featurises_counts(copy, path):
    before = code_hash(featurise_records, TensetRecords)
    with (copy / path).open("a") as stream:
        stream.write("\n")
    assert code_hash(featurise_records, TensetRecords) != before


@pytest.mark.parametrize(
    "path",
    [
        "tvm_helper/search/expected_gain.py",
        "tvm_helper/measure/campaign.py",
        "cdmpp/training/run.py",
        "cdmpp/datasets/splits.py",
        "cdmpp/cli/main.py",
    ],
)
def test_a_comment_elsewhere_does_not(copy, path):
    before = code_hash(featurise_records, TensetRecords)
    with (copy / path).open("a") as stream:
        stream.write("# a comment\n")
    assert code_hash(featurise_records, TensetRecords) == before


def test_a_missing_file_is_an_error(copy):
    (copy / "cdmpp" / "programs" / "ansor" / "dag.py").unlink()
    with pytest.raises(DataError, match=r"source of cdmpp\.programs\.ansor.* is missing"):
        code_hash(featurise_records, TensetRecords)


def test_a_module_run_as_a_process_counts():
    closure = import_closure(
        {"tvm_helper.legacy.client": ROOT / "tvm_helper" / "legacy" / "client.py"}
    )
    assert "tvm_helper.legacy.server" in closure
