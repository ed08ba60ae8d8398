"""Safetensors files with a digest that detects changed bytes.

The digest is an additional entry of the header's metadata, which other safetensors readers ignore.
A file without a digest is read unchecked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import write_bytes
from cdmpp.files.json_text import parse_json

_METADATA, _DIGEST = "__metadata__", "sha256"
#: Alignment of tensors in the format, bytes.
_ALIGNMENT = 8


def write_tensors(path: Path, content: bytes) -> None:
    """Writes the output of `safetensors`' `save` with a digest.

    Raises:
        DataError: the file cannot be written.
    """
    header, tensors = _parts(content)
    digest = _digest(header, tensors)
    header[_METADATA] = {**header.get(_METADATA, {}), _DIGEST: digest}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    write_bytes(path, len(text).to_bytes(8, "little") + text + tensors)


def read_tensors(path: Path) -> tuple[bytes, Mapping[str, str]]:
    """Returns the content of a file, as input of `safetensors`' `load`, and its metadata.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not safetensors, or does not match its digest.
    """
    content = path.read_bytes()
    header, tensors = _parts(content)
    metadata = header.pop(_METADATA, None) or {}
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are not an object")
    expected = metadata.pop(_DIGEST, None)
    if metadata:
        header[_METADATA] = metadata
    if expected is not None and _digest(header, tensors) != expected:
        raise ValueError("its bytes are not those that were written")
    return content, metadata


def _parts(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Returns the header and the bytes of the tensors."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = parse_json(content[8:start])
    if not isinstance(header, dict) or start > len(content):
        raise ValueError("its header is incomplete")
    return header, memoryview(content)[start:]


def _digest(header: Mapping[str, Any], tensors: memoryview) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(tensors)
    return digest.hexdigest()
