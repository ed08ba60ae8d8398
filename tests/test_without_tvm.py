"""`cdmpp` whole without TVM: from record lines to a trained, judged and reported model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.datasets.tiny import write_tiny_dataset
from tests.paths import ROOT

_SCRIPT = """
    import sys

    sys.modules["tvm"] = sys.modules["tvm_ffi"] = None
    from cdmpp.cli.main import main

    failed = [words for words in {commands} if main(words)]
    loaded = [name for name in sys.modules if name.split(".")[0] in ("tvm", "tvm_ffi")]
    sys.exit(f"{{failed}} {{loaded}}" if failed or loaded != ["tvm", "tvm_ffi"] else 0)
"""


def run(commands: list[list[str]], folder: Path) -> str:
    """Runs commands in one process without TVM and returns what they print."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_SCRIPT).format(commands=commands)],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny dataset in Tenset's layout, `tiny`."""
    folder = tmp_path_factory.mktemp("without")
    write_tiny_dataset(folder / "tiny")
    return folder


def test_datasets(folder: Path) -> None:
    extract = ["dataset", "extract", "--dataset", "tiny", "--jobs", "1", "--json"]
    printed = run(
        [
            [*extract, "--device", "epyc-avx2-1c", "--out", "a"],
            [*extract, "--device", "xeon-avx2-1c", "--out", "b"],
            ["dataset", "merge", "a", "b", "--out", "both", "--json"],
            ["dataset", "stats", "both", "--json"],
            ["dataset", "audit", "both", "--json"],
            ["dataset", "export", "both", "--out", "npz", "--json"],
        ],
        folder,
    )
    first, second, merged, stats, audit, export = map(json.loads, printed.splitlines())
    assert first["featurised"] == second["featurised"] == merged["featurised"] > 0
    assert merged["measurements"] == first["measurements"] + second["measurements"]
    assert set(stats["devices"]) == set(audit["devices"]) == {"epyc-avx2-1c", "xeon-avx2-1c"}
    assert sum(export["samples"].values()) > 0


@pytest.mark.training
def test_training_evaluation_and_report(folder: Path) -> None:
    data = ["--dataset", "tiny", "--jobs", "1", "--device", "xeon-avx2-1c"]
    words = [*data, "--split", "record", "--model", "gbdt", "--set", "gbdt.trees=10"]
    printed = run(
        [
            ["train", *words, "--set", "baselines=[constant]", "--out", "run", "--json"],
            ["evaluate", "--model", "run", *data, "--json"],
        ],
        folder,
    )
    trained, evaluated = map(json.loads, printed.splitlines())
    assert "gbdt" in json.dumps(trained)
    assert evaluated["n"] > 0
    assert (folder / "run" / "report.html").stat().st_size > 1000
