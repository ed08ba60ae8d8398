"""Writes files of measured layers and of algorithm picks, as a user brings them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cdmpp.analytic.conv.algorithms import (
    ALGORITHM_COUNT,
    AlgoConvention,
    ConvAlgorithm,
    from_cudnn,
    to_cudnn,
)
from cdmpp.analytic.conv.layers.table import LAYER_COLUMNS, LayerTable
from cdmpp.analytic.conv.seer.table import PickTable
from cdmpp.analytic.conv.seer.workbook import _cell, _write_sheets
from cdmpp.analytic.conv.shapes import SHAPE_NAMES
from cdmpp.files.atomic import write_bytes
from cdmpp.text import csv_text


def write_layers(path: Path, table: LayerTable) -> None:
    """Writes layers as CSV with the columns of `LAYER_COLUMNS`, gzipped where the name says so.

    Raises:
        DataError: the file cannot be written.
    """
    rows = (
        [
            table.devices[table.device[row]].name,
            *(int(getattr(table.shapes, name)[row]) for name in LAYER_COLUMNS[1:8]),
            "" if number < 0 else ConvAlgorithm(number).name.lower(),
            float(table.time_ms[row]),
        ]
        for row, number in enumerate(table.algorithm)
    )
    content = csv_text(LAYER_COLUMNS, rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, mtime=0)
    write_bytes(path, content)


def write_pick_workbook(
    path: Path, sheets: Mapping[str, PickTable], *, algo_convention: AlgoConvention = "cudnn"
) -> list[Path]:
    """Writes an algorithm-pick workbook; see `write_workbook`."""
    order = to_cudnn(np.arange(ALGORITHM_COUNT), algo_convention)
    header = [
        *SHAPE_NAMES, *(f"time_ms_{i}" for i in range(ALGORITHM_COUNT)), "best",
        f"pick_{algo_convention}",
    ]  # fmt: skip
    content: dict[str, list[list[Any]]] = {}
    for name, table in sheets.items():
        best = from_cudnn(table.best, algo_convention)
        known = np.maximum(table.cudnn_pick, 0)
        pick = np.where(table.cudnn_pick < 0, -1, from_cudnn(known, algo_convention))
        content[name] = [list(header)] + [
            [
                *(int(getattr(table.shapes, column)[row]) for column in SHAPE_NAMES),
                *(_cell(value) for value in table.time_ms[row, order]),
                int(best[row]),
                int(pick[row]) if pick[row] >= 0 else None,
            ]
            for row in range(len(table.shapes))
        ]
    return _write_sheets(Path(path), content)
