"""The fronts under the original's names call commands that exist, with the words given."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from cdmpp.cli.main import build_parser
from tests.paths import ROOT

FRONTS = {
    "exp/cross_model.sh": ("train", "none --device v100"),
    "exp/cross_device.sh": ("finetune", "--from RUN --device k80 --budget 10tasks"),
    "dataset/gen_raw_feature_all.sh": ("dataset extract", "--dataset DIR --out OUT"),
    "dataset/make_dataset.sh": ("dataset extract", "--dataset DIR --out OUT"),
}


def test_every_front_is_tested() -> None:
    scripts = ROOT / "scripts"
    assert {path.relative_to(scripts).as_posix() for path in scripts.rglob("*.sh")} == set(FRONTS)


@pytest.mark.parametrize("front", FRONTS)
def test_a_front_calls_its_command(front: str, tmp_path: Path) -> None:
    command, given = FRONTS[front]
    script = ROOT / "scripts" / front
    subprocess.run(["bash", "-n", script], check=True)
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, *shlex.split(given)], env={"PATH": path}, cwd=tmp_path, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    called, *words = done.stdout.splitlines()
    names = ", ".join(f'"{word}"' for word in command.split())
    assert f"run_command({names})" in Path(called).read_text("utf-8")
    assert words == [word for word in shlex.split(given) if word != "none"]
    build_parser().parse_args([*command.split(), *words])
