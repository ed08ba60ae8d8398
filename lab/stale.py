"""Which pages are not of today's code, why, and the command that makes each again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cdmpp.pretrained import PRETRAINED
from lab import registry
from lab.pages import kept
from lab.paths import RESULTS, ROOT
from lab.stamp import SCHEMAS, model_digest


def known(folder: Path = RESULTS) -> dict[str, str]:
    """Returns the pages that are stale and may be for now, and why."""
    return yaml.safe_load((folder / "stale.yaml").read_text("utf-8")) or {}


def reasons(folder: Path = RESULTS) -> dict[str, str]:
    """Returns why each stale page is stale."""
    found = kept(folder)
    pages = (page for one in registry.EXPERIMENTS for page in one.written)
    why = {page: why_stale(found.get(page, {}).get("stamp")) for page in pages}
    return {page: reason for page, reason in why.items() if reason}


def why_stale(stamp: Mapping[str, Any] | None) -> str:
    """Returns why the numbers of a stamp are not of today's code; empty when they are."""
    if stamp is None:
        return "never stamped"
    parts = (stamp, *stamp.get("parts", ()))
    return "; ".join(dict.fromkeys(reason for one in parts for reason in _differences(one)))


def _differences(stamp: Mapping[str, Any] | None) -> Iterator[str]:
    if stamp is None:
        yield "a part was never stamped"
        return
    for name, version in stamp["schema"].items():
        if version != SCHEMAS.get(name):
            yield f"{name} columns {version}, now {SCHEMAS.get(name)}"
    for model, digest in stamp["models"].items():
        if model.partition(":")[0] == PRETRAINED and digest != model_digest(model):
            yield f"another {model}"


def show(wanted: Sequence[str]) -> int:
    """Prints the stale pages; returns 0."""
    found = reasons()
    for one in registry.EXPERIMENTS:
        for page in one.written:
            if page in found and (not wanted or page in wanted):
                print(f"{page}: {found[page]}; {one.cpu_time}\n    {one.command()}")
    count = sum(len(one.written) for one in registry.EXPERIMENTS)
    print(f"{len(found)} of {count} pages are stale")
    return 0


def rerun(wanted: Sequence[str]) -> int:
    """Makes the stale pages again; returns 1 where one still is stale."""
    before = reasons()
    left = 0
    for one in registry.EXPERIMENTS:
        pages = [page for page in one.written if page in before]
        if not pages or (wanted and not set(wanted) & set(pages)):
            continue
        print(f"{', '.join(pages)}: {one.command()} ({one.cpu_time})", flush=True)
        done = subprocess.run([sys.executable, *one.command().split()[1:]], cwd=ROOT, check=False)
        for page, why in ((page, reasons().get(page, "")) for page in pages):
            left += bool(why)
            state = f"still stale ({why})" if why else "of today's code"
            print(f"{page}: {state}; exit code {done.returncode}", flush=True)
    return int(left > 0)
