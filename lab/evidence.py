"""Which pages of results are of today's code, and what makes the others: `make evidence`.

python -m lab.evidence                 # which pages are stale, why, the command, its CPU time
python -m lab.evidence run [PAGE ...]  # makes them one after the other; goes on where it stopped
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cdmpp.files.atomic import write_text
from cdmpp.pretrained import PRETRAINED
from cdmpp.report.stamp import SCHEMAS, model_digest
from tests.paths import ROOT

RESULTS = ROOT / "docs" / "results"
#: Pages known to be stale -> why they still are; the only such list.
STALE = RESULTS / "stale.yaml"
LOGS = ROOT / "runs" / "evidence"
_NAME = re.compile(r"\[([\w-]+)\]\([\w-]+\.md\)")


@dataclass(frozen=True)
class Made:
    """A line of the table of results.

    Attributes:
        pages: names of the pages.
        commands: what makes them, in this order; none = the pages say how.
        cpu_time: about how much that takes.
    """

    pages: tuple[str, ...]
    commands: tuple[str, ...]
    cpu_time: str


def made(table: str | None = None) -> list[Made]:
    """Returns the lines of a table of results; None = the one in docs/results/README.md."""
    text = (RESULTS / "README.md").read_text("utf-8") if table is None else table
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and (names := _NAME.findall(cells[0])):
            found.append(Made(tuple(names), tuple(re.findall(r"`([^`]+)`", cells[2])), cells[3]))
    return found


def why_stale(page: Path) -> str:
    """Returns why a page's numbers are not of today's code; empty when they are.

    Args:
        page: NAME.json of the page.
    """
    value = json.loads(page.read_text("utf-8")) if page.is_file() else {}
    if "stamp" not in value:
        return "never stamped"
    stamps = [value["stamp"], *value["stamp"].get("parts", [])]
    found = [reason for one in stamps for reason in _differences(one)]
    return "; ".join(dict.fromkeys(found))


def _differences(stamp: dict[str, Any] | None) -> list[str]:
    if stamp is None:
        return ["a part was never stamped"]
    found = [
        f"{name} columns {version}, now {SCHEMAS.get(name)}"
        for name, version in stamp["schema"].items()
        if version != SCHEMAS.get(name)
    ]
    return found + [
        f"another {model}"
        for model, digest in stamp["models"].items()
        if model.partition(":")[0] == PRETRAINED and digest != model_digest(model)
    ]


def known() -> dict[str, str]:
    """Returns the pages known to be stale, and why they are."""
    return yaml.safe_load(STALE.read_text("utf-8")) or {}


def show() -> None:
    """Prints every stale page."""
    names = [(name, one) for one in made() for name in one.pages]
    stale = [(name, one, why_stale(RESULTS / f"{name}.json")) for name, one in names]
    for name, one, reason in stale:
        if reason:
            command = "\n    ".join(one.commands) or "by hand, as the page says"
            print(f"{name}: {reason}; {one.cpu_time}\n    {command}")
    count = sum(bool(reason) for _, _, reason in stale)
    print(f"{count} of {len(names)} pages are stale; {STALE.relative_to(ROOT)} says more of each")


def run(wanted: list[str]) -> int:
    """Makes the stale pages; returns 1 when one still is stale.

    Args:
        wanted: their names; none = all that have a command.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    remaining = 0
    for one in made():
        stale = [name for name in one.pages if why_stale(RESULTS / f"{name}.json")]
        if not stale or not one.commands or (wanted and not set(wanted) & set(one.pages)):
            continue
        print(f"{', '.join(stale)}: {' && '.join(one.commands)} ({one.cpu_time})", flush=True)
        log = LOGS / f"{stale[0]}.log"
        with log.open("w") as stream:
            done = subprocess.run(
                ["bash", "-euc", "\n".join(one.commands)], cwd=ROOT, stdout=stream,
                stderr=subprocess.STDOUT, env={**os.environ, "PATH": path}, check=False,
            )  # fmt: skip
        for name in stale:
            reason = why_stale(RESULTS / f"{name}.json")
            remaining += bool(reason)
            if not reason:
                _forget(name)
            said = f"still stale ({reason})" if reason else "of today's code"
            print(f"{name}: {said}; exit code {done.returncode}, {log.relative_to(ROOT)}")
    return int(remaining > 0)


def _forget(name: str) -> None:
    lines = STALE.read_text("utf-8").splitlines(keepends=True)
    write_text(STALE, "".join(line for line in lines if not line.startswith(f"{name}:")))


def main(arguments: list[str] | None = None) -> int:
    """Shows, or makes; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", nargs="?", choices=("show", "run"), default="show")
    parser.add_argument("pages", nargs="*")
    args = parser.parse_args(arguments)
    if args.step == "run":
        return run(args.pages)
    show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
