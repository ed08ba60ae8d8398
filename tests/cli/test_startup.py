"""`import cdmpp` and `cdmpp --help` load nothing heavy; scripts are fronts of commands."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from cdmpp.cli.commands import COMMANDS, LAB_COMMANDS, MAINTAINERS_COMMANDS
from cdmpp.cli.main import main
from tests.paths import ROOT

REPOSITORY = ROOT
HEAVY = ("torch", "tvm", "pyarrow", "pandas", "sklearn", "xgboost", "matplotlib", "numpy", "rich")


def loaded_after(*statements: str) -> list[set[str]]:
    """Returns the heavy packages that one process has loaded after each of some statements."""
    program = "import sys\n" + "".join(
        f"try:\n    {statement}\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])\n"
        for statement in statements
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    return [set(line.split()[1:]) for line in lines]


def test_nothing_heavy_is_loaded():
    found = loaded_after(
        "import cdmpp",
        "from cdmpp.cli.main import main; main(['--version'])",
        "main(['--help'])",
        "main(['device', '--help'])",
    )
    assert found == [set()] * 4


def test_the_list_of_public_records_needs_no_network() -> None:
    program = (
        "import sys\nfrom cdmpp.cli.main import main\nmain(['dataset', 'fetch', '--list'])\n"
        "assert not {'pooch', 'requests', 'torch', 'tvm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def test_help_of_a_training_needs_no_torch():
    statements = [f"main(['{command}', '--help'])" for command in ("train", "finetune")]
    found = loaded_after("from cdmpp.cli.main import main", *statements)
    assert ["torch" in loaded for loaded in found] == [False] * 3


@pytest.mark.parametrize(
    ("start", "is_loaded"),
    [("", True), ("from cdmpp.cli.main import main; sys.argv[1:] = []; main(); ", False)],
)
def test_only_commands_leave_scikit_learn_out_of_xgboost(start, is_loaded):
    (loaded,) = loaded_after(
        f"{start}from cdmpp.files.boosted_trees import tree_rows; tree_rows([[1.0]])"
    )
    assert ("sklearn" in loaded, "xgboost" in loaded) == (is_loaded, True)


def test_help_names_every_command_and_imports_none():
    program = (
        "import sys\nfrom cdmpp.cli.main import main\ntry:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "print('LOADED', *[name for name in sys.modules if name.startswith('cdmpp.cli.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        cwd=REPOSITORY, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    text, loaded = done.stdout.split("LOADED")
    assert set(loaded.split()) == {f"cdmpp.cli.{name}" for name in ("main", "commands", "guide")}
    users, _, maintainers = text.partition("for maintainers of cdmpp:")
    for command in COMMANDS:
        assert f"\n    {command.name} " in users
    for command in MAINTAINERS_COMMANDS:
        assert f"\n    {command.name} " in maintainers
    assert "train-code" in {one.name for one in MAINTAINERS_COMMANDS}
    assert max(map(len, text.splitlines())) <= 80


def paths(commands, before=()):
    for command in commands:
        yield (*before, command.name)
        yield from paths(command.parts, (*before, command.name))


@pytest.mark.parametrize("words", list(paths((*COMMANDS, *MAINTAINERS_COMMANDS))), ids=" ".join)
def test_every_command_of_the_table_explains_itself(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    assert f"usage: cdmpp {' '.join(words)} " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", "extract", "evaluate", "predict", "benchmark", "golden"])
def test_scripts_are_fronts(name, monkeypatch, capfd):
    script = REPOSITORY / "scripts" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert not ended.value.code
    command = "dataset extract" if name == "extract" else name
    program = "python -m lab" if name in LAB_COMMANDS else "cdmpp"
    assert f"usage: {program} {command}" in capfd.readouterr().out
    assert len(script.read_text().splitlines()) <= 10


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_commands_of_the_laboratory_run_from_any_folder_of_a_checkout(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from cdmpp.cli.main import main; sys.exit(main())",
         "-q", name, "--help"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"usage: python -m lab {name}" in done.stdout


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_without_a_laboratory_its_commands_end_in_a_sentence(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cdmpp.cli.shared.lab.beside_package", lambda: tmp_path)
    assert main([name, "--help"]) == 2
    text = capsys.readouterr().err
    assert f"`python -m lab {name} --help`" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "name"),
    [("operator evaluate", "operators"), ("kernels evaluate", "gpu-kernels"),
     ("embedding report", "embedding")],
)  # fmt: skip
def test_pages_of_analytic_models_are_written_by_the_laboratory(
    command, name, tmp_path, monkeypatch, capsys
):
    words = ["analytic", *command.split(), "--data", "no data", "--out", str(tmp_path / "out")]
    assert main(words) == 3
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("cdmpp.cli.shared.lab.beside_package", lambda: tmp_path)
    assert main(words) == 2
    text = capsys.readouterr().err
    assert f"`python -m lab run {name} " in text
    assert text.count("\n") == 1
