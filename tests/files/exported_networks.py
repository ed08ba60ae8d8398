"""Saved networks, and such that would run something when they are opened."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WEIGHTS = "data/weights/model_weights_config.json"
GRAPH = "net/models/model.json"


def saved_network(path: Path) -> dict[str, bytes]:
    """Writes a network whose batch is open, and returns the files in its archive."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.scale = torch.ones(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.linear(x) * self.scale).reshape(x.shape[0] * 2).relu()

    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    torch.export.save(torch.export.export(Net(), (torch.ones(4, 3),), dynamic_shapes=shapes), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(files: dict[str, bytes]) -> bytes:
    """Returns the archive of these files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def _pickled(value: object) -> bytes:
    import torch

    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _with_a_pickled_weight(files: dict[str, bytes], trap: Path) -> None:
    config = json.loads(files[f"net/{_WEIGHTS}"])
    first = next(iter(config["config"].values()))
    first["use_pickle"] = True
    files[f"net/{_WEIGHTS}"] = json.dumps(config).encode()
    files[f"net/data/weights/{first['path_name']}"] = _pickled(_Touch(trap))


def _with_pickled_inputs(files: dict[str, bytes], trap: Path) -> None:
    files["net/data/sample_inputs/model.pt"] = _pickled(((_Touch(trap),), {}))


def _replaced(pattern: str, words: str) -> Callable[[dict[str, bytes], Path], None]:
    def change(files: dict[str, bytes], trap: Path) -> None:
        text, count = re.subn(
            pattern, words.replace("TRAP", str(trap)), files[GRAPH].decode(), count=1
        )
        assert count == 1
        files[GRAPH] = text.encode()

    return change


def _with_a_library(files: dict[str, bytes], trap: Path) -> None:
    files["net/data/aotinductor/model/model.so"] = b"\x7fELF"


#: Why it is refused -> what makes such a network of a saved one; TRAP is what it would make.
TRAPS: dict[str, Callable[[dict[str, bytes], Path], None]] = {
    "a pickled tensor": _with_a_pickled_weight,
    "inputs that are not plain tensors": _with_pickled_inputs,
    "the size": _replaced(
        r'"expr_str": "[^"]*"', "\"expr_str\": \"__import__('os').mkdir('TRAP')\""
    ),
    "a call of 'torch.os.mkdir'": _replaced("torch.ops.aten.relu.default", "torch.os.mkdir"),
    "the guard": _replaced(
        r'"guards_code": \[\]', "\"guards_code\": [\"open('TRAP', 'w') is None\"]"
    ),
    "it contains 'data/aotinductor": _with_a_library,
}
