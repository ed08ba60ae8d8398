"""Options of `cdmpp predict --torch MODULE:FACTORY`: batches, inputs, memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from cdmpp.errors import UsageError
from cdmpp.networks.shape_text import parse_numbers, parse_shape

_MEMORY = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def torch_options(
    batch: str, inputs: Sequence[str], memory: str | None, *, is_export: bool
) -> dict[str, Any]:
    """Returns keyword arguments of `Model.network`.

    Raises:
        UsageError: an option cannot be read.
    """
    shapes, dtypes = parse_inputs(inputs)
    return {
        "batches": parse_numbers(batch, "--batch"), "shapes": shapes, "dtypes": dtypes,
        "method": "export" if is_export else "fx",
        "memory_limit_bytes": None if memory is None else parse_memory(memory),
    }  # fmt: skip


def parse_memory(text: str) -> float:
    """Returns bytes: `8GiB` and `8G` are 8 x 1024^3, `8GB` is 8 x 1000^3.

    Raises:
        UsageError: the text has another form, or the size is 0.
    """
    match = _MEMORY.fullmatch(text)
    value = float(match[1]) if match else 0.0
    if not match or value <= 0:
        raise UsageError(f"--memory {text!r}, expected a size such as 8GiB or 800MB")
    is_decimal = text.strip().lower().endswith("b") and not match[3]
    return float(value * (1000 if is_decimal else 1024) ** _POWERS[match[2].lower()])


def parse_inputs(
    texts: Sequence[str],
) -> tuple[list[tuple[int, ...]], list[torch.dtype] | None]:
    """Returns shapes such as `3x224x224`, and their types; None if no text has one (`128:int64`).

    Raises:
        UsageError: a text is not a shape, or its type is not a torch type.
    """
    shapes: list[tuple[int, ...]] = []
    names = []
    for text in texts:
        sides, _, name = text.partition(":")
        shape = parse_shape(sides)
        if shape is None:
            raise UsageError(
                f"input {text!r}, expected a shape without the batch such as 3x224x224, or "
                "128:int64"
            )
        shapes.append(shape)
        names.append(name)
    if not any(names):
        return shapes, None
    dtypes = [getattr(torch, name or "float32", None) for name in names]
    for name, dtype in zip(names, dtypes, strict=True):
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"input type {name!r}, expected a torch type such as int64")
    return shapes, [dtype for dtype in dtypes if dtype is not None]
