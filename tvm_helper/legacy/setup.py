"""Builds the side environment with the old TVM (`make legacy-env`).

The wheel of another project contains a complete TVM 0.17 development build, with AutoTVM, Ansor and
TE schedules. It is built for CUDA, so it needs libraries of the CUDA toolkit (from wheels) and of
the driver. A stub of the driver is compiled that returns an error from every call: no GPU is needed
or used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cdmpp.errors import CdmppError, UsageError
from cdmpp.files.atomic import make_folder
from cdmpp.files.journal import folder_lock
from cdmpp.files.json_text import parse_json
from tvm_helper.legacy.environment import (
    FOLDER_VARIABLE,
    STAMP,
    LegacyEnvironment,
    default_folder,
    run,
)
from tvm_helper.legacy.fast_calls import HEADER, REQUIREMENT, compile_bindings

#: Installed without their dependencies (the first one would bring torch and much more).
WHEELS = (
    "bitblas==0.1.0.post1",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-nvrtc-cu12==12.9.86",
)
#: Packages that the old TVM imports.
REQUIREMENTS = (
    "numpy==1.26.4", "decorator", "attrs", "psutil", "cloudpickle", "scipy<1.18", "tornado",
    "ml_dtypes<0.6", "typing_extensions", REQUIREMENT,
)  # fmt: skip
#: AutoTVM imports xgboost; installed without its GPU communication library.
WHEELS_LATE = ("xgboost==2.1.4",)

Say = Callable[[str], None]

#: Download, disk space and time, measured with the versions above.
_SIZE = "460 MB of downloads, 1.2 GB on disk, one to two minutes"
_PYTHON = (3, 11)
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_CHECK = "import tvm, tvm.topi; from tvm import autotvm, auto_scheduler; print(tvm.__version__)"


def main(argv: Sequence[str] | None = None) -> int:
    """Builds the environment unless it exists; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="tvm_helper.legacy.setup", description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--force", action="store_true", help="rebuild everything")
    args = parser.parse_args(argv)
    try:
        print(build(args.folder, force=args.force, say=lambda text: print(text, flush=True)))
    except CdmppError as error:
        print(f"legacy-env: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def ready_environment(*, may_install: bool, say: Say) -> LegacyEnvironment:
    """Returns the side environment; builds it if it is missing.

    Args:
        may_install: whether a missing environment may be built.
        say: called with the size of the build, then with each step.

    Raises:
        UsageError: it is missing and may not be installed; or see `build`.
    """
    environment = LegacyEnvironment(default_folder())
    if environment.is_complete:
        return environment
    if not may_install:
        raise UsageError(
            "AutoTVM logs and Ansor's own replay need a side environment with the old TVM: got "
            f"none at {environment.folder}, and --no-install. Leave --no-install out, or run "
            f"python -m tvm_helper.legacy.setup ({_SIZE}), or use an existing one: "
            f"{FOLDER_VARIABLE}=DIR"
        )
    say(f"these records need a side environment with the old TVM: building it in "
        f"{environment.folder} ({_SIZE})")  # fmt: skip
    build(environment.folder, say=say)
    return environment


def build(folder: Path, *, force: bool = False, say: Say = lambda text: None) -> str:
    """Builds the side environment in `folder` and returns a sentence about it.

    Does nothing if the folder has a complete environment of the same recipe. Continues an
    interrupted build.

    Args:
        say: called with each step when it begins.

    Raises:
        UsageError: a tool is missing, a wheel cannot be installed, the old TVM does not import, or
            another process is building in the folder.
        DataError: the folder is not writable.
    """
    environment = LegacyEnvironment(Path(folder).resolve())
    if not force and _is_built(environment, _recipe()):
        return f"The side environment exists already: {environment.folder}"
    _check_tools()
    make_folder(environment.folder, what="side environment")
    with folder_lock(
        environment.folder, what="the side environment is being built by another process",
        hint="wait until it ends, then rerun the same command",
    ):  # fmt: skip
        return _build(environment, force, say)


def _build(environment: LegacyEnvironment, force: bool, say: Say) -> str:
    if force:
        for path in environment.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != ".lock":
                path.unlink()
    (environment.folder / STAMP).unlink(missing_ok=True)
    if not environment.python.exists():
        say("side environment 1 of 4: a Python environment")
        run([_python(), "-I", "-m", "venv", str(environment.folder)], "make a Python environment")
    pip = [str(environment.python), "-I", "-m", "pip", "install", "--quiet", "--no-input",
           "--disable-pip-version-check"]  # fmt: skip
    say("side environment 2 of 4: downloading and installing the wheels with the old TVM")
    # The late wheel is installed before the requirements to avoid warnings of pip.
    run([*pip, "--no-deps", *WHEELS, *WHEELS_LATE], "install the wheels with the old TVM")
    say("side environment 3 of 4: what the old TVM imports")
    run([*pip, *REQUIREMENTS], "install what the old TVM imports")
    say("side environment 4 of 4: compiling its bindings")
    _make_driver_stand_in(environment)
    compile_bindings(environment)
    version = run([str(environment.python), "-c", _CHECK], "import the old TVM", environment)
    _write_stamp(environment, _recipe(), version.strip().splitlines()[-1])
    return f"TVM {version.strip().splitlines()[-1]} is ready in {environment.folder}"


def _recipe() -> str:
    """Returns a digest of the packages, the Python version and the header of the environment."""
    header = HEADER.read_text(encoding="utf-8")
    text = json.dumps([WHEELS, REQUIREMENTS, WHEELS_LATE, _PYTHON, header])
    return hashlib.sha256(text.encode()).hexdigest()


def _is_built(environment: LegacyEnvironment, recipe: str) -> bool:
    try:
        stamp = parse_json((environment.folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return environment.python.exists() and stamp.get("recipe") == recipe


def _write_stamp(environment: LegacyEnvironment, recipe: str, version: str) -> None:
    path = environment.folder / STAMP
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"recipe": recipe, "tvm": version}) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def _check_tools() -> None:
    missing = [tool for tool in ("gcc", "g++", "nm") if shutil.which(tool) is None]
    if missing:
        raise UsageError(
            f"Cannot build the side environment: got no {' and no '.join(missing)}; expected a C "
            "and a C++ compiler and binutils. Install them (Debian: apt-get install g++ binutils)"
        )


def _python() -> str:
    """Returns an interpreter of the wheels' Python version."""
    wanted = ".".join(map(str, _PYTHON))
    if sys.version_info[:2] == _PYTHON:
        return sys.executable
    found = shutil.which(f"python{wanted}")
    if found is None:
        got = ".".join(map(str, sys.version_info[:2]))
        raise UsageError(
            f"Cannot build the side environment: got Python {got}; expected Python {wanted}. "
            f"Install python{wanted} and rerun: python -m tvm_helper.legacy.setup"
        )
    return found


def _make_driver_stand_in(environment: LegacyEnvironment) -> None:
    """Compiles `libcuda.so.1` with the driver functions that the old TVM links to; all fail."""
    library = environment.tvm_folder / "build" / "libtvm.so"
    if not library.is_file():
        raise UsageError(
            f"Cannot build the side environment: got no {library}; expected it in {WHEELS[0]}. "
            "Rebuild it: python -m tvm_helper.legacy.setup --force"
        )
    symbols = run(["nm", "-D", "--undefined-only", str(library)], "list the driver's functions")
    names = sorted(set(re.findall(r"\bU (cu[A-Z]\w*)", symbols)))
    source = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names)
    folder = environment.driver_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stand_in.c").write_text(source, encoding="utf-8")
    temporary = folder / "libcuda.so.1.tmp"
    run(
        ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(temporary),
         str(folder / "stand_in.c")],
        "compile the stand-in for the CUDA driver",
    )  # fmt: skip
    os.replace(temporary, folder / "libcuda.so.1")


if __name__ == "__main__":
    sys.exit(main())
