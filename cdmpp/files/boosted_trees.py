"""Files of boosted trees: the library's own UBJSON, packed."""

from __future__ import annotations

import gzip
import lzma
import zlib
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.atomic import write_bytes

_MOST_BYTES = 256_000_000
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


def save_booster(booster: Any, path: Path) -> None:
    """Writes the trees of XGBoost.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, lzma.compress(bytes(booster.save_raw("ubj")), preset=9))


def load_booster(path: Path, *, hint: str) -> Any:
    """Returns what `save_booster` wrote, or the JSON that earlier versions wrote.

    Args:
        hint: what to do when the file is missing or damaged.

    Raises:
        DataError: it is.
    """
    import xgboost

    name = path.name.partition(".")[0]
    earlier = [path.with_name(f"{name}{suffix}") for suffix in (".json.gz", ".json")]
    path = next((one for one in (path, *earlier) if one.exists()), path)
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, Path.open)
    try:
        with opener(path, "rb") as stream:
            content = stream.read(_MOST_BYTES)
        if not content.startswith(b"{"):  # the library ends the process over an empty text
            raise ValueError("it holds no object")
        return xgboost.Booster(model_file=bytearray(content))
    except (*_DAMAGED, xgboost.core.XGBoostError) as error:
        reason = (str(error).strip().splitlines() or ["empty"])[0]
        raise DataError(f"cannot read the trees {path} ({reason}); {hint}") from error
