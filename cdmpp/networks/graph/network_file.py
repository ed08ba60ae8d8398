"""Files that hold a network: which kind one is, and reading what torch.export.save wrote."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cdmpp.errors import DataError, last_line

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: What can be read, in words.
EXPECTED = "an ONNX file (.onnx) or a program that torch.export.save wrote (.pt2)"
_FORMATS: dict[str, Literal["onnx", "exported"]] = {".onnx": "onnx", ".pt2": "exported"}


def network_format(path: Path) -> Literal["onnx", "exported"]:
    """Returns what a network's file is, from its name.

    Raises:
        DataError: there is no such file, or it is neither.
    """
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; expected {EXPECTED}")
    found = _FORMATS.get(path.suffix.lower())
    if found is None:
        raise DataError(f"{path}: cannot tell what network this is; expected {EXPECTED}")
    return found


def read_exported(path: Path) -> ExportedProgram:
    """Returns the program that torch.export.save wrote.

    Raises:
        DataError: it is none.
    """
    import torch

    log = logging.getLogger("torch.export")  # prints what it then raises
    was_disabled, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    except Exception as error:  # torch raises its own kinds
        raise DataError(
            f"{path} is no exported program ({last_line(error)}); expected what torch.export.save "
            "has written"
        ) from None
    finally:
        log.disabled = was_disabled
