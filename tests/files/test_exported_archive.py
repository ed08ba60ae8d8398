"""Saved programs that would run something when they are opened are not opened."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdmpp.errors import DataError
from cdmpp.files.exported_archive import check_archive
from cdmpp.networks.graph.network_file import read_exported

_WEIGHTS = "data/weights/model_weights_config.json"
_GRAPH = "models/model.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a saved network whose batch is open."""
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.scale = torch.ones(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.linear(x) * self.scale).reshape(x.shape[0] * 2).relu()

    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    torch.export.save(torch.export.export(Net(), (torch.ones(4, 3),), dynamic_shapes=shapes), path)
    check_archive(path)
    assert read_exported(path).module()(torch.ones(5, 3)).shape == (10,)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class _Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def _written(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


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
            pattern, words.replace("TRAP", str(trap)), files[f"net/{_GRAPH}"].decode(), count=1
        )
        assert count == 1
        files[f"net/{_GRAPH}"] = text.encode()

    return change


def _with_a_library(files: dict[str, bytes], trap: Path) -> None:
    files["net/data/aotinductor/model/model.so"] = b"\x7fELF"


_TRAPS = {
    "a pickled tensor": _with_a_pickled_weight,
    "inputs that are no plain tensors": _with_pickled_inputs,
    "the size": _replaced(
        r'"expr_str": "[^"]*"', "\"expr_str\": \"__import__('os').mkdir('TRAP')\""
    ),
    "a call of 'torch.os.mkdir'": _replaced("torch.ops.aten.relu.default", "torch.os.mkdir"),
    "the guard": _replaced(
        r'"guards_code": \[\]', "\"guards_code\": [\"open('TRAP', 'w') is None\"]"
    ),
    "it holds 'data/aotinductor": _with_a_library,
}


@pytest.mark.parametrize("reason", _TRAPS)
def test_what_would_run_is_refused(saved: dict[str, bytes], tmp_path: Path, reason: str) -> None:
    files, trap = dict(saved), tmp_path / "trap"
    _TRAPS[reason](files, trap)
    path = _written(tmp_path / "net.pt2", files)
    with pytest.raises(DataError, match=re.escape(reason)):
        read_exported(path)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("text", "is_fine"),
    [
        ("Symbol('s77', positive=True, integer=True)", True),
        ("2*s0 + Max(1, FloorDiv(u1, 3))**2 - 1.5", True),
        ("Eq(Mod(s0, 8), 0)", True),
        ("9**9**9**9", False),
        ("s0**s1", False),
        ("10" * 40, False),
        ("sympify('x')", False),
        ("Symbol('x').__class__", False),
        ("(lambda: 1)()", False),
        ("[s0 for s0 in (1, 2)]", False),
        ("Symbol('__import__(1)')", False),
        ("f'{s0}'", False),
        ("L['x'].size()[0]", False),
        ("s0 +", False),
        ("-" * 200_000 + "1", False),
    ],
)
def test_sizes_are_arithmetic(
    saved: dict[str, bytes], tmp_path: Path, text: str, is_fine: bool
) -> None:
    graph = json.loads(saved[f"net/{_GRAPH}"])
    graph["more"] = {"expr_str": text}
    path = _written(tmp_path / "net.pt2", {**saved, f"net/{_GRAPH}": json.dumps(graph).encode()})
    if is_fine:
        check_archive(path)
    else:
        with pytest.raises(DataError, match="the size"):
            check_archive(path)


@pytest.mark.parametrize(
    ("guard", "is_fine"),
    [
        ("2 <= L['x'].size()[0] <= 64", True),
        ("L['x'][0].stride(1) == 1 and L['x'].numel() != 0", True),
        ("L['x'].__class__", False),
        ("L['x'].size.__globals__['os']", False),
        ("math.floor(1)", False),
    ],
)
def test_guards_ask_for_sizes(
    saved: dict[str, bytes], tmp_path: Path, guard: str, is_fine: bool
) -> None:
    graph = json.loads(saved[f"net/{_GRAPH}"])
    graph["more"] = {"guards_code": [guard]}
    path = _written(tmp_path / "net.pt2", {**saved, f"net/{_GRAPH}": json.dumps(graph).encode()})
    if is_fine:
        check_archive(path)
    else:
        with pytest.raises(DataError, match="the guard"):
            check_archive(path)


def test_what_is_no_archive_is_refused(saved: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"nothing")
    deep = "[" * 100_000 + "]" * 100_000
    cut = {name: content for name, content in saved.items() if name != f"net/{_GRAPH}"}
    for files in (None, cut, {**saved, f"net/{_GRAPH}": deep.encode()}):
        path = tmp_path / "net.pt2"
        if files is not None:
            _written(path, files)
        with pytest.raises(DataError, match="no exported program"):
            read_exported(path)
