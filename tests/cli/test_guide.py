"""What to type: every question has a command, every help examples, every shell a completion."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cdmpp.cli.commands import filled
from cdmpp.cli.guide import EXAMPLES, QUESTIONS, examples_text
from cdmpp.cli.main import build_parser, main
from tests.paths import ROOT

SHELLS = ("bash", "zsh", "fish")


def commands() -> dict[str, bool]:
    """Returns the words of every command, and whether it is a group that has no options."""
    return {
        parser.prog.partition(" ")[2]: parser.get_default("run") is None
        for parser in filled(build_parser())[1:]
    }


def test_cdmpp_alone_says_which_command_answers_which_question(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "How long does my program take?" in text
    assert "cdmpp predict FILE.py" in text
    assert max(map(len, text.splitlines())) <= 80
    known = commands()
    for _question, command in QUESTIONS:
        words = command.split(" -")[0].split()
        assert words[0] in known
        assert not known.get(" ".join(words), False), f"{command}: which part of it?"


def test_every_command_has_examples() -> None:
    leaves = {words for words, is_group in commands().items() if not is_group}
    assert leaves == set(EXAMPLES)


@pytest.mark.parametrize("words", EXAMPLES)
def test_examples_are_understood(words: str) -> None:
    for example in EXAMPLES[words]:
        typed = shlex.split(example.partition(" > ")[0])
        args = build_parser().parse_args([*words.split(), *typed])
        assert callable(args.run)
        named = [word for word in typed if word.startswith("configs/")]
        assert all((ROOT / name).is_file() for name in named)


def test_a_group_shows_an_example_of_each_part_and_lines_are_short() -> None:
    text = examples_text("analytic")
    assert text.count("\n  cdmpp analytic") == 4
    for words in commands():
        lines = examples_text(words).splitlines()
        assert len(lines) > 1
        assert max(map(len, lines)) <= 80


def test_the_help_ends_with_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert capsys.readouterr().out.endswith("cdmpp doctor --live --seconds 30\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_told_commands_and_options(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("finetune", "embedding", "cost-model", "device-spec"):
        assert word in script
    program = shutil.which(shell)
    if program:
        (tmp_path / "script").write_text(script, "utf-8")
        subprocess.run([program, "-n", str(tmp_path / "script")], check=True)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cdmpp tra", {"train"}),
        ("cdmpp dataset tr", {"transfer"}),
        ("cdmpp analytic conv p", {"predict", "pick"}),
        ("cdmpp search --cost", {"--cost-model"}),
        ("cdmpp search --cost-model ", {"cdmpp", "xgb", "random"}),
    ],
)
def test_bash_completes(typed: str, offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    words = typed.split(" ")
    quoted = " ".join(map(shlex.quote, words))
    asked = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}\n"
        "_shtab_cdmpp\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(["bash"], input=asked, capture_output=True, text=True, check=True)
    assert {word.strip() for word in done.stdout.split()} == offered
