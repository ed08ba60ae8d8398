"""`cdmpp` whole without TVM: from record lines to a trained, judged and reported model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.datasets.tiny import write_tiny_dataset
from tests.paths import ROOT

pytestmark = [pytest.mark.training, pytest.mark.exhaustive]

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
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with a tiny dataset in Tenset's layout, and what the commands printed there."""
    folder = tmp_path_factory.mktemp("without")
    write_tiny_dataset(folder / "tiny")
    extract = ["dataset", "extract", "--dataset", "tiny", "--jobs", "1", "--json"]
    data = ["--dataset", "tiny", "--jobs", "1", "--device", "xeon-avx2-1c"]
    words = [*data, "--split", "record", "--model", "gbdt", "--set", "gbdt.trees=10"]
    text = run(
        [
            [*extract, "--device", "epyc-avx2-1c", "--out", "a"],
            [*extract, "--device", "xeon-avx2-1c", "--out", "b"],
            ["dataset", "merge", "a", "b", "--out", "both", "--json"],
            ["dataset", "stats", "both", "--json"],
            ["dataset", "audit", "both", "--json"],
            ["dataset", "export", "both", "--out", "npz", "--json"],
            ["train", *words, "--set", "baselines=[constant]", "--out", "run", "--json"],
            ["evaluate", "--model", "run", *data, "--json"],
        ],
        folder,
    )
    return folder, [json.loads(line) for line in text.splitlines()]


def test_datasets(printed: tuple[Path, list[dict[str, Any]]]) -> None:
    first, second, merged, stats, audit, export, *_ = printed[1]
    assert first["featurised"] == second["featurised"] == merged["featurised"] > 0
    assert merged["measurements"] == first["measurements"] + second["measurements"]
    assert set(stats["devices"]) == set(audit["devices"]) == {"epyc-avx2-1c", "xeon-avx2-1c"}
    assert sum(export["samples"].values()) > 0


def test_training_evaluation_and_report(printed: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, (*_, trained, evaluated) = printed
    assert "gbdt" in json.dumps(trained)
    assert evaluated["n"] > 0
    assert (folder / "run" / "report.html").stat().st_size > 1000
