"""Client of a process that scores states in cdmpp's own environment; standard library only.

A TVM with Ansor needs an older numpy and xgboost than the models require. So another interpreter
serves the model over a pipe.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp import errors
from cdmpp.errors import DataError, UsageError
from cdmpp.files.places import beside_package
from cdmpp.processes.pipe import WorkerPipe

#: Version of the format of requests and responses.
PROTOCOL = 2
#: Environment variable with the interpreter that cdmpp is installed in.
PYTHON_VARIABLE = "CDMPP_PYTHON"

#: Environment variables of a process with Ansor that the model's process must not inherit.
_FOREIGN_VARIABLES = (
    "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TVM_FFI", "TVM_LIBRARY_PATH", "VIRTUAL_ENV",
)  # fmt: skip
_log = logging.getLogger("cdmpp")


def find_python() -> Path:
    """Returns the interpreter that cdmpp is installed in.

    Raises:
        UsageError: the interpreter does not exist.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named or beside_package() / ".venv" / "bin" / "python")
    if not python.is_file():
        raise UsageError(
            f"Cannot start the cost model: got no Python interpreter at {python}; expected the "
            "one that cdmpp is installed in. Run: python -m tvm_helper.cost_model.ansor.run "
            f"SCRIPT (which sets it), or set {PYTHON_VARIABLE}"
        )
    return python


class AnsorClient:
    """Process with a model. It ends with `close`, or with this process.

    Args:
        options: command-line options of `tvm_helper.cost_model.ansor.server`.
        python: the interpreter to start; None = `find_python()`.

    Raises:
        CdmppError: an error raised in the process at start, such as a DeviceError.
        UsageError: the process does not start, or it has another protocol version.
    """

    def __init__(self, options: Sequence[str], *, python: Path | None = None) -> None:
        self._python = python or find_python()
        self._pipe = WorkerPipe(
            [str(self._python), "-m", "tvm_helper.cost_model.ansor.server", *options],
            environment=_own_variables(os.environ),
        )
        try:
            self._pipe.start()
            hello = self._read()
            if hello.get("protocol") != PROTOCOL:
                raise UsageError(
                    f"The cdmpp of {self._python} speaks protocol {hello.get('protocol')}; "
                    f"expected {PROTOCOL}. Install the same version in both environments"
                )
        except OSError as error:
            self.close()
            raise UsageError(
                f"Cannot start the cost model with {self._python}: {error.strerror}; expected a "
                "Python interpreter that cdmpp is installed in"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """Process id; None after `close`."""
        return self._pipe.pid

    def ask(self, kind: str, **values: Any) -> dict[str, Any]:
        """Returns the response to a request (see `tvm_helper.cost_model.ansor.server`).

        Raises:
            CdmppError: an error raised in the process.
            DataError: the process died or was closed.
        """
        if self._pipe.pid is None:
            raise DataError("The cost model was closed; make another one")
        self._pipe.send({"op": kind, **values})
        return self._read()

    def close(self) -> None:
        """Ends the process. Calling it again does nothing."""
        self._pipe.stop()

    def _read(self) -> dict[str, Any]:
        """Returns the next response; re-raises the error that it holds."""
        while (answer := self._pipe.receive(None)) is not None:
            for level, text in answer.pop("log", ()):
                _log.log(logging.getLevelName(level), "%s", text)
            if "raised" in answer:
                name, text = answer["raised"]
                raise getattr(errors, name, DataError)(text)
            if answer.get("event") == "failed":
                raise DataError(f"The cost model failed: {answer['error']}")
            if answer.get("event") != "begin":
                return answer
        raise DataError(
            f"The process of the cost model ended ({self._pipe.last_words()}). It runs with "
            f"{self._python}; expected an interpreter that cdmpp is installed in. Its tuned "
            "weights are lost unless they were saved"
        )


def _own_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables without those of the process with Ansor."""
    return {name: value for name, value in variables.items() if name not in _FOREIGN_VARIABLES}
