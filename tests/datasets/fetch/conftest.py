"""A small source of AutoTVM logs, packed as a repository's host packs it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from cdmpp.datasets.fetch.registry import Download, PublicSource, SourcePart

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def log_lines(count: int, *, first: int = 0) -> bytes:
    """Returns lines of an AutoTVM log of the T4."""
    dense = ["dense_small_batch.gpu", [["TENSOR", [1, 512], "float32"],
             ["TENSOR", [1000, 512], "float32"], None, "float32"], {}]  # fmt: skip
    lines = [
        {
            "input": ["cuda -keys=cuda,gpu -model=t4", *dense],
            "config": {"index": n, "code_hash": None, "entity": [["tile_k", "sp", [-1, n + 1]]]},
            "result": [[1e-5 * (n + 1)], 0, 1.0, 1610301343.0],
            "version": 0.2,
            "tvm_version": "0.8.dev0",
        }
        for n in range(first, first + count)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def tar_of(files: dict[str, bytes], *, commit: str = COMMIT) -> bytes:
    """Returns a .tar.gz of files, with the commit in its header as `git archive` writes it."""
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": commit}
    ) as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def files() -> dict[str, bytes]:
    """What the repository holds: two logs of the T4, one of the CPU, and other files."""
    return {
        "logs/t4/a.kernel.log": log_lines(300),
        "logs/t4/b.kernel.log": log_lines(40, first=300).rstrip(b"\n"),
        "logs/t4/b.graph.log": b"no measurements\n",
        "logs/platinum-8124m/a.kernel.log": log_lines(7, first=900),
        "README.md": b"read me\n",
    }


@pytest.fixture
def archive(files: dict[str, bytes]) -> bytes:
    """The repository as its host packs it."""
    return tar_of({f"repo-{COMMIT}/{path}": content for path, content in files.items()})


@pytest.fixture
def source() -> PublicSource:
    """The source, on a host that cannot be reached."""
    name = f"repo-{COMMIT}.tar.gz"
    return PublicSource(
        name="logs",
        title="Logs of a test",
        kind="autotvm",
        devices=("t4", "platinum-8124m"),
        licence="none",
        citation="nobody",
        homepage="https://example.invalid/repo",
        most_bytes=10_000_000,
        downloads=(Download(name, f"http://127.0.0.1:9/{name}"),),
        parts=(
            SourcePart("logs/t4/*.kernel.log", "t4.json"),
            SourcePart("logs/platinum-8124m/*.kernel.log", "platinum-8124m.json"),
        ),
        strip=1,
        commit=COMMIT,
    )


def unpack(files: dict[str, bytes], folder: Path) -> Path:
    """Writes files below a folder, as a clone has them."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder
