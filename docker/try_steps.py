"""Runs a Dockerfile's steps without a daemon: each stage in a clean virtual environment and folder.

`python docker/try_steps.py docker/Dockerfile [--then COMMAND...]`: what git tracks is the build
context, `pip` and `python` are those of the environment, ARG and ENV are variables (those of this
process win). Steps of the system's package manager are named and left out: they need root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yields (instruction, what follows) of a Dockerfile, continued lines joined."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in re.sub(r"\\\n\s*", "", plain).splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def run_steps(dockerfile: Path, folder: Path, then: list[str]) -> None:
    """Carries out the steps that can be, then a command."""
    context = folder / "context"
    context.mkdir()
    files = subprocess.run(
        ["git", "archive", "HEAD"], cwd=_ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x"], cwd=context, input=files, check=True)
    stages: dict[str, Path] = {}
    for word, rest in instructions(dockerfile.read_text("utf-8")):
        print(f"{word} {rest}", flush=True)
        if word == "FROM":
            place = stage = folder / f"stage{len(stages)}"
            stages[rest.rpartition(" AS ")[2]] = stage
            subprocess.run([sys.executable, "-m", "venv", stage / "venv"], check=True)
            variables = {**os.environ, "PATH": f"{stage / 'venv' / 'bin'}:{os.environ['PATH']}"}
            variables.pop("PYTHONPATH", None)
        elif word in ("ARG", "ENV"):
            for name, value in re.findall(r"(\w+)=(\S+)", rest):
                variables.setdefault(name, value)
        elif word == "WORKDIR":
            place = stage / rest.lstrip("/")
            place.mkdir(exist_ok=True)
        elif word == "COPY":
            *sources, target = rest.split()
            origin = context
            if sources[0].startswith("--from="):
                origin = stages[sources.pop(0).removeprefix("--from=")]
            for source in sources:
                _copy(origin / source.lstrip("/"), place / target)
        elif word == "RUN" and not rest.startswith("apt-get"):
            subprocess.run(["/bin/sh", "-c", rest], cwd=place, env=variables, check=True)
        else:
            print("  (left out)", flush=True)
    if then:
        subprocess.run(then, cwd=place, env=variables, check=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


def main() -> None:
    """Runs the steps in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dockerfile", type=Path)
    parser.add_argument("--then", nargs=argparse.REMAINDER, default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_steps(args.dockerfile, Path(folder), args.then)


if __name__ == "__main__":
    main()
