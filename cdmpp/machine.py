"""Where a number is from: commit, versions and machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

from cdmpp import __version__
from cdmpp.files.places import package_folder


def versions() -> dict[str, str]:
    """Returns the versions of what took part in a run."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"cdmpp": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "xgboost-cpu", "scikit-learn", "apache-tvm"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Returns the commit of the checkout that this package is in, if it is in one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=package_folder("cdmpp"),
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def machine() -> dict[str, str]:
    """Returns system, processor and cores of this machine."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else "unknown"
