"""Asks a process of the product's own environment for scores; standard library only.

The numpy and xgboost of a TVM that has Ansor are older than those that the models require. So the
model is served by another interpreter, over a pipe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp import errors
from cdmpp.errors import CdmppError, DataError, UsageError
from cdmpp.files.places import beside_package

#: Number of the form of requests and answers.
PROTOCOL = 1
#: Environment variable with the interpreter that the product is installed in.
PYTHON_VARIABLE = "CDMPP_PYTHON"

#: What a process with Ansor has in its environment and one without must not have.
_FOREIGN_VARIABLES = (
    "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TVM_FFI", "TVM_LIBRARY_PATH", "VIRTUAL_ENV",
)  # fmt: skip
_log = logging.getLogger("cdmpp")


def find_python() -> Path:
    """Returns the interpreter that the product is installed in.

    Raises:
        UsageError: it is not known, or not there.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named or beside_package() / ".venv" / "bin" / "python")
    if not python.is_file():
        raise UsageError(
            f"Cannot start the cost model: got no Python interpreter at {python}; expected the one "
            f"that cdmpp is installed in. Run: python -m tvm_helper.cost_model.ansor.run SCRIPT "
            f"(it knows), or set {PYTHON_VARIABLE}"
        )
    return python


class AnsorClient:
    """A process with a model. It ends with `close`, or with this process.

    Args:
        options: command-line options of `tvm_helper.cost_model.ansor.server`.
        python: the interpreter to start; None = `find_python()`.

    Raises:
        CdmppError: what the process says when it cannot be used as asked, such as a DeviceError.
        UsageError: the process does not start.
    """

    def __init__(self, options: Sequence[str], *, python: Path | None = None) -> None:
        self._python = python or find_python()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, closed with the process
        try:
            self._process = subprocess.Popen(
                [str(self._python), "-m", "tvm_helper.cost_model.ansor.server", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                env=_own_variables(os.environ),
            )
        except OSError as error:
            self._errors.close()
            raise UsageError(
                f"Cannot start the cost model with {self._python}: {error.strerror}; expected a "
                "Python interpreter that cdmpp is installed in"
            ) from None
        try:
            hello = self._read()
            if hello.get("protocol") != PROTOCOL:
                raise UsageError(
                    f"The cdmpp of {self._python} speaks protocol {hello.get('protocol')}; "
                    f"expected {PROTOCOL}. Install the same version in both environments"
                )
        except BaseException:
            self.close()
            raise

    def ask(self, kind: str, **values: Any) -> dict[str, Any]:
        """Returns the answer to a request (see `tvm_helper.cost_model.ansor.server`).

        Raises:
            CdmppError: the process says so.
            DataError: the process died.
        """
        stream = self._process.stdin
        if stream is None or stream.closed:
            raise DataError("The cost model was closed; make another one")
        try:
            stream.write(json.dumps({"kind": kind, **values}) + "\n")
            stream.flush()
        except OSError:
            raise self._died() from None
        return self._read()

    def close(self) -> None:
        """Ends the process. Calling it again does nothing."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None and not stream.closed:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._errors.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        for level, text in answer.pop("log", ()):
            _log.log(logging.getLevelName(level), "%s", text)
        if "error" in answer:
            name, text = answer["error"]
            found = getattr(errors, name, DataError)
            raise found(text)
        return answer

    def _died(self) -> CdmppError:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        last = " | ".join(line.strip() for line in lines[-2:])[-400:]
        return DataError(
            f"The process with the cost model ended (code {self._process.returncode}): "
            f"{last or 'it said nothing'}. It runs with {self._python}; expected an interpreter "
            "that cdmpp is installed in. What it had learned is lost unless it was saved"
        )


def _own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables for a process of the product's own environment."""
    return {name: value for name, value in variables.items() if name not in _FOREIGN_VARIABLES}
