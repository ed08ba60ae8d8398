"""The leaderboards: `python -m lab benchmark` with the options of their pages."""

from __future__ import annotations

from pathlib import Path

from lab.__main__ import main
from lab.paths import ROOT

_AUTOTVM = ROOT / "cache" / "autotvm"


def cross_model(jobs: int = 2, autotvm: Path = _AUTOTVM) -> None:
    """Runs the suite's missing cells and writes the page; skips AutoTVM's logs if not extracted."""
    _run("cross-model", jobs, autotvm)


def cross_device(jobs: int = 2) -> None:
    """Runs the suite's missing cells and writes the page."""
    _run("cross-device", jobs)


def cross_device_autotvm(jobs: int = 2, autotvm: Path = _AUTOTVM) -> None:
    """Runs the suite's missing cells and writes the page."""
    _run("cross-device-autotvm", jobs, autotvm)


def by_task(jobs: int = 1) -> None:
    """Trains three seeds and writes the page."""
    _run("by-task", jobs)


def _run(suite: str, jobs: int, autotvm: Path | None = None) -> None:
    data = autotvm is not None and (autotvm / "manifest.json").is_file()
    words = ["benchmark", "--suite", suite, "--jobs", str(jobs)]
    if main([*words, "--data", f"autotvm={autotvm}"] if data else words):
        raise SystemExit(1)
