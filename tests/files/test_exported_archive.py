"""Saved programs that would run something when they are opened are not opened."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cdmpp.errors import DataError
from cdmpp.files.exported_archive import check_archive
from cdmpp.networks.graph.network_file import read_exported
from tests.files.exported_networks import GRAPH, TRAPS, packed, saved_network


def _written(path: Path, files: dict[str, bytes]) -> Path:
    path.write_bytes(packed(files))
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a saved network whose batch is open."""
    import torch

    path = tmp_path_factory.mktemp("saved") / "net.pt2"
    files = saved_network(path)
    check_archive(path)
    assert read_exported(path).module()(torch.ones(5, 3)).shape == (10,)
    return files


@pytest.mark.parametrize("reason", TRAPS)
def test_what_would_run_is_refused(saved: dict[str, bytes], tmp_path: Path, reason: str) -> None:
    files, trap = dict(saved), tmp_path / "trap"
    TRAPS[reason](files, trap)
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
    graph = json.loads(saved[GRAPH])
    graph["more"] = {"expr_str": text}
    path = _written(tmp_path / "net.pt2", {**saved, GRAPH: json.dumps(graph).encode()})
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
    graph = json.loads(saved[GRAPH])
    graph["more"] = {"guards_code": [guard]}
    path = _written(tmp_path / "net.pt2", {**saved, GRAPH: json.dumps(graph).encode()})
    if is_fine:
        check_archive(path)
    else:
        with pytest.raises(DataError, match="the guard"):
            check_archive(path)


def test_what_is_no_archive_is_refused(saved: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "net.pt2").write_bytes(b"nothing")
    deep = "[" * 100_000 + "]" * 100_000
    cut = {name: content for name, content in saved.items() if name != GRAPH}
    for files in (None, cut, {**saved, GRAPH: deep.encode()}):
        path = tmp_path / "net.pt2"
        if files is not None:
            _written(path, files)
        with pytest.raises(DataError, match="not an exported program"):
            read_exported(path)


@pytest.mark.parametrize("graph", ["5", '{"guards_code": 5}', '{"expr_str": 5}'])
def test_values_of_another_type_are_refused(tmp_path: Path, graph: str) -> None:
    path = _written(tmp_path / "net.pt2", {GRAPH: graph.encode()})
    with pytest.raises(DataError, match="not an exported program"):
        check_archive(path)


@pytest.mark.parametrize(("offset", "value"), [(8, 1), (10, 77)])  # encrypted; unknown compression
def test_what_zipfile_cannot_unpack_is_refused(tmp_path: Path, offset: int, value: int) -> None:
    content = bytearray(packed({GRAPH: b"{}"}))
    content[offset - 2], content[content.index(b"PK\1\2") + offset] = value, value
    (tmp_path / "net.pt2").write_bytes(content)
    with pytest.raises(DataError, match="not an exported program"):
        check_archive(tmp_path / "net.pt2")
