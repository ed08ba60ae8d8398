"""Runs a Python script in the side environment with Ansor.

`python -m tvm_helper.cost_model.ansor.run SCRIPT`.

The script can import `tvm_helper` and `cdmpp`, but nothing else of this environment. The
interpreter of this command serves the models.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cdmpp.errors import CdmppError, UsageError
from cdmpp.files.places import beside_package
from tvm_helper.cost_model.ansor.client import PYTHON_VARIABLE
from tvm_helper.legacy.environment import LegacyEnvironment, find_environment

_PACKAGES = ("cdmpp", "tvm_helper")
_USAGE = (
    "usage: python -m tvm_helper.cost_model.ansor.run SCRIPT [ARGUMENTS...]   "
    "(or -m MODULE, or -c CODE)"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Replaces this process by the script's; returns an exit code only if that fails."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{_USAGE}\n\n{__doc__}")
        return 0 if arguments else UsageError.exit_code
    try:
        environment = find_environment()
        command = [str(environment.python), *_checked(arguments)]
        variables = ansor_variables(environment)
    except CdmppError as error:
        print(f"ansor_run: error: {error}", file=sys.stderr)
        return error.exit_code
    sys.stdout.flush()
    os.execve(command[0], command, variables)


def ansor_variables(environment: LegacyEnvironment) -> dict[str, str]:
    """Returns the environment variables of a process that uses `tvm_helper.cost_model.ansor.model`.

    Raises:
        UsageError: the side environment's folder is not writable.
    """
    variables = environment.variables()
    folder = _package_folder(environment)
    variables["PYTHONPATH"] = os.pathsep.join([variables["PYTHONPATH"], str(folder)])
    variables[PYTHON_VARIABLE] = sys.executable
    return variables


def _package_folder(environment: LegacyEnvironment) -> Path:
    """Returns a folder with links to `_PACKAGES`; their own folder may hold a newer numpy too."""
    folder = environment.folder / "cdmpp-packages"
    here = beside_package()
    try:
        folder.mkdir(exist_ok=True)
        for name in _PACKAGES:
            link = folder / name
            if link.is_symlink() and link.resolve() == here / name:
                continue
            temporary = folder / f".{name}.{os.getpid()}"
            temporary.symlink_to(here / name, target_is_directory=True)
            os.replace(temporary, link)
    except OSError as error:
        raise UsageError(
            f"Cannot use the side environment {environment.folder}: {error.strerror} "
            f"({error.filename}); expected a writable folder. Build it in another folder: "
            "CDMPP_LEGACY_ENV=DIR python -m tvm_helper.legacy.setup"
        ) from None
    return folder


def _checked(arguments: list[str]) -> list[str]:
    """Returns the interpreter's arguments.

    Raises:
        UsageError: the script does not exist.
    """
    first = arguments[0]
    if not first.startswith("-") and not Path(first).is_file():
        raise UsageError(
            f"cannot run {first}: got no such file; expected a Python script; {_USAGE}"
        )
    return arguments


if __name__ == "__main__":
    sys.exit(main())
