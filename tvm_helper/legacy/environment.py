"""Folder of the side environment with the old TVM, and the variables of its processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.files.places import beside_package, is_checkout

#: Folder of the side environment, in the working directory or in the checkout.
FOLDER_NAME = ".venv-legacy"
#: Environment variable with another folder.
FOLDER_VARIABLE = "CDMPP_LEGACY_ENV"
#: File that marks a complete environment; contains a digest of its recipe.
STAMP = "cdmpp-legacy.json"

_TVM = Path("bitblas") / "3rdparty" / "tvm"
_LIBRARY_FOLDERS = ("nvidia/cuda_runtime/lib", "nvidia/cuda_nvrtc/lib")


@dataclass(frozen=True)
class LegacyEnvironment:
    """A Python environment with the old TVM inside.

    Attributes:
        folder: the environment's folder.
    """

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Folder of the installed wheels."""
        found = sorted((self.folder / "lib").glob("python3.*/site-packages"))
        return found[0] if found else self.folder / "lib" / "site-packages"

    @property
    def tvm_folder(self) -> Path:
        """The old TVM's folder, with `python/` and `build/libtvm.so`."""
        return self.site_packages / _TVM

    @property
    def driver_folder(self) -> Path:
        """Folder of the stub of the CUDA driver library."""
        return self.folder / "cuda-driver"

    @property
    def is_complete(self) -> bool:
        """Whether the environment was built completely."""
        return self.python.exists() and (self.folder / STAMP).is_file()

    def variables(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment variables of a process in the environment.

        Args:
            base: variables to extend; None = those of this process.
        """
        variables = dict(os.environ if base is None else base)
        variables = _isolated(variables)
        variables.pop("TVM_LIBRARY_PATH", None)
        libraries = [self.driver_folder, *(self.site_packages / f for f in _LIBRARY_FOLDERS)]
        variables["PYTHONPATH"] = str(self.tvm_folder / "python")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, libraries))
        variables["TVM_FFI"] = "cython"  # fails if the compiled bindings are missing
        # One thread per process: several processes share the machine.
        variables.setdefault("TVM_NUM_THREADS", "1")
        variables.setdefault("OMP_NUM_THREADS", "1")
        return variables


def _isolated(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns environment variables without those that configure Python or add packages."""
    kept = {name: value for name, value in variables.items() if not name.startswith("PYTHON")}
    kept.pop("VIRTUAL_ENV", None)
    return kept | {"PYTHONNOUSERSITE": "1"}


def default_folder() -> Path:
    """Returns the folder of the environment, existing or to be built."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).resolve()
    here = Path.cwd() / FOLDER_NAME
    if (here / STAMP).is_file() or not is_checkout():
        return here
    return beside_package() / FOLDER_NAME


def find_environment() -> LegacyEnvironment:
    """Returns the side environment.

    Raises:
        UsageError: it has not been built.
    """
    environment = LegacyEnvironment(default_folder())
    if not environment.is_complete:
        raise UsageError(
            f"No side environment with the old TVM (got nothing complete at {environment.folder}; "
            "AutoTVM logs, MetaSchedule databases of older TVMs and Ansor's own replay need it). "
            "Build it: python -m tvm_helper.legacy.setup "
            f"(or name one: {FOLDER_VARIABLE}=DIR)"
        )
    return environment


def run(command: list[str], what: str, environment: LegacyEnvironment | None = None) -> str:
    """Runs a command, in the side environment if given, and returns its output.

    Python variables such as `PYTHONPATH` are hidden: pip would treat those packages as installed.

    Raises:
        UsageError: the command fails; the text has the last lines of its output.
    """
    variables = _isolated(os.environ) if environment is None else environment.variables()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    except OSError as error:
        raise UsageError(f"Cannot {what}: {error}") from None
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise UsageError(
            f"Cannot {what}: {Path(command[0]).name} ended with code {done.returncode}:\n{last}\n"
            "Fix what it names (pip needs a package index, a compiler and space on the disk) "
            "and rerun: python -m tvm_helper.legacy.setup; --force rebuilds everything"
        )
    return done.stdout
