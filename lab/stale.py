"""Finds results of earlier models or features, with the command that reruns each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.pretrained import PRETRAINED
from lab import registry
from lab.paths import PAGES, ROOT
from lab.stamp import SCHEMAS, model_digest, stamps


def reasons(pages: Path = PAGES) -> dict[str, str]:
    """Returns name -> reason for each stale result."""
    found = stamps(pages)
    names = (name for one in registry.EXPERIMENTS for name in one.written)
    why = {name: why_stale(found.get(name)) for name in names}
    return {name: reason for name, reason in why.items() if reason}


def why_stale(stamp: Mapping[str, Any] | None) -> str:
    """Returns why the results of a stamp are stale; empty if they are current."""
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


def provenance(name: str, stamp: Mapping[str, Any] | None) -> str:
    """Returns one line with command and CPU time, and with commit, date and machine of the run."""
    (one,) = (one for one in registry.EXPERIMENTS if name in one.written)
    command = f"- `{one.command()}` ({one.cpu_time})"
    if stamp is None:
        return f"{command}: never run."
    on = stamp["machine"]
    changes = " and uncommitted changes" if stamp["is_changed"] else ""
    clause = ", made with an earlier model" if why_stale(stamp) else ""
    return (
        f"{command}: commit {(stamp['commit'] or 'unknown')[:9]}{changes}, {stamp['date']}, "
        f"{on['processor']}, {on['cores']} cores{clause}."
    )


def show(wanted: Sequence[str]) -> int:
    """Prints the stale results; returns 0."""
    found = reasons()
    for one in registry.EXPERIMENTS:
        for name in one.written:
            if name in found and (not wanted or name in wanted):
                print(f"{name}: {found[name]}; {one.cpu_time}\n    {one.command()}")
    count = sum(len(one.written) for one in registry.EXPERIMENTS)
    print(f"{len(found)} of {count} results are stale")
    return 0


def rerun(wanted: Sequence[str]) -> int:
    """Reruns the stale results; returns 1 if one is still stale."""
    before = reasons()
    left = 0
    for one in registry.EXPERIMENTS:
        names = [name for name in one.written if name in before]
        if not names or (wanted and not set(wanted) & set(names)):
            continue
        print(f"{', '.join(names)}: {one.command()} ({one.cpu_time})", flush=True)
        done = subprocess.run([sys.executable, *one.command().split()[1:]], cwd=ROOT, check=False)
        for name, why in ((name, reasons().get(name, "")) for name in names):
            left += bool(why)
            state = f"still stale ({why})" if why else "current"
            print(f"{name}: {state}; exit code {done.returncode}", flush=True)
    return int(left > 0)
