"""Compatible releases of apache-tvm and apache-tvm-ffi: installs and runs each pair.

A pair is installed without dependencies into its own folder, which precedes the environment's
packages. It works if every command succeeds with the same predictions as the required pair.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cdmpp.text import markdown_table
from lab.paths import ROOT
from tvm_helper.compat import ANY_VERSION, REQUIRED_VERSIONS

_PREDICT = "predict --program examples/kernel.py --device epyc-avx512-1c --json"
_COMMANDS = {
    "program": _PREDICT,
    "machine code": f"{_PREDICT} --machine-code",
    "search": "search --task dense:m=16,n=16,k=16 --trials 2 --threads 1 --device this-cpu --force "
    "--out {work}/search --json",
}
_TIMEOUT_S = 900


def experiment(
    tvm: tuple[str, ...] = ("0.27.0.post1", "0.27.0", "0.26.0"),
    ffi: tuple[str, ...] = ("0.1.14.post1", "0.1.15.post2", "0.1.13.post3"),
) -> None:
    """Tries every pair and prints a table."""
    required = tuple(REQUIRED_VERSIONS.values())
    pairs = [required, *((a, b) for a in tvm for b in ffi if (a, b) != required)]
    rows: list[list[str]] = []
    expected: dict[str, str] = {}
    for pair in pairs:
        with tempfile.TemporaryDirectory() as work:
            found = _tried(pair, Path(work))
        expected = expected or found
        rows.append([*pair, *(_verdict(found[name], expected[name]) for name in _COMMANDS)])
        print(*rows[-1], sep=" | ", flush=True)
    print(markdown_table(["apache-tvm", "apache-tvm-ffi", *_COMMANDS], rows))


def _tried(pair: tuple[str, ...], work: Path) -> dict[str, str]:
    """Returns the output of each command, or `failed: ` with the end of its error."""
    packages = [f"{name}=={version}" for name, version in zip(REQUIRED_VERSIONS, pair, strict=True)]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", f"{work}/pair"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
    if done.returncode:
        return dict.fromkeys(_COMMANDS, f"failed: {done.stderr.strip()[-200:]}")
    path = os.pathsep.join((f"{work}/pair", str(ROOT)))
    places = {"PYTHONPATH": path, "XDG_CACHE_HOME": f"{work}/cache"}
    found = {}
    for name, command in _COMMANDS.items():
        words = [sys.executable, "-m", "cdmpp", *command.format(work=work).split()]
        try:
            ran = subprocess.run(
                words, cwd=ROOT, env={**os.environ, **places, ANY_VERSION: "1"}, check=False,
                capture_output=True, text=True, timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            found[name] = "failed: out of time"
            continue
        last = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        found[name] = f"failed: {last[-120:]}" if ran.returncode else ran.stdout
    return found


def _verdict(found: str, expected: str) -> str:
    if found.startswith("failed: "):
        return found
    got, wanted = (json.loads(text) for text in (found, expected))
    if isinstance(got, dict) or [r["latency_s"] for r in got] == [r["latency_s"] for r in wanted]:
        return "works"
    return "predicts otherwise"
