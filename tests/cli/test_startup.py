"""`import cdmpp` and `cdmpp --help` stay light; scripts are fronts of commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.paths import ROOT

REPOSITORY = ROOT
HEAVY = ("torch", "tvm", "pyarrow", "pandas", "sklearn", "xgboost", "matplotlib", "numpy", "rich")


def loaded_after(statement: str) -> set[str]:
    program = (
        f"import sys\ntry:\n    {statement}\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    return set(done.stdout.split("LOADED")[1].split())


@pytest.mark.parametrize(
    "statement",
    [
        "import cdmpp",
        "from cdmpp.cli.main import main; main(['--help'])",
        "from cdmpp.cli.main import main; main(['train', '--help'])",
        "from cdmpp.cli.main import main; main(['measure', '--help'])",
        "from cdmpp.cli.main import main; main(['doctor', '--help'])",
        "from cdmpp.cli.main import main; main(['networks', 'measure', '--help'])",
        "from cdmpp.cli.main import main; main(['networks', 'train', '--help'])",
        "from cdmpp.cli.main import main; main(['--version'])",
    ],
)
def test_nothing_heavy_is_loaded(statement):
    assert loaded_after(statement) == set()


@pytest.mark.parametrize("name", ["train", "extract", "evaluate", "predict", "benchmark", "golden"])
def test_scripts_are_fronts(name):
    done = subprocess.run(
        [sys.executable, f"scripts/{name}.py", "--help"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY)},
        check=False,
    )
    command = "dataset extract" if name == "extract" else name
    assert done.returncode == 0, done.stderr
    assert f"cdmpp {command}" in done.stdout
    assert len((REPOSITORY / "scripts" / f"{name}.py").read_text().splitlines()) <= 10
