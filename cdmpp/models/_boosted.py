"""Files of boosted trees: the library's own JSON, packed."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from cdmpp.datasets.atomic import write_atomic
from cdmpp.errors import DataError

_MOST_BYTES = 256_000_000


def save_booster(booster: Any, path: Path) -> None:
    """Writes the trees of XGBoost.

    Raises:
        DataError: the file cannot be written.
    """
    content = gzip.compress(bytes(booster.save_raw("json")), 9, mtime=0)
    write_atomic(path, lambda file: _write(file, content))


def load_booster(path: Path, *, hint: str) -> Any:
    """Returns what `save_booster` wrote.

    Args:
        hint: what to do when the file is missing or damaged.

    Raises:
        DataError: it is.
    """
    import xgboost

    try:
        with gzip.open(path) as stream:
            content = stream.read(_MOST_BYTES)
        if not content.startswith(b"{"):  # the library ends the process over an empty text
            raise ValueError("it holds no JSON object")
        return xgboost.Booster(model_file=bytearray(content))
    except (OSError, EOFError, ValueError, zlib.error, xgboost.core.XGBoostError) as error:
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise DataError(f"cannot read the trees {path} ({reason}); {hint}") from error


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
