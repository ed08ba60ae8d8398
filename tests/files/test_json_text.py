"""JSON that is nested so deeply that Python's reader gives up: was a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdmpp.analytic.conv.seer.model import SeerModel
from cdmpp.analytic.embedding.cpu import CpuConstants
from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.errors import DataError
from cdmpp.files.journal import read_lines
from cdmpp.files.json_text import parse_json
from cdmpp.networks.dataset.store import MANIFEST, read_manifest
from cdmpp.profiling.formats.hl100_trace import read_symbols
from cdmpp.replay.graph_file import read_graph
from cdmpp.replay.outcome import read_times
from cdmpp.replay.traces.overheads import read_overheads
from tvm_helper.search.folder_files import read_final

_DEEP = "[" * 100_000
_READERS = [
    SeerModel.load, CpuConstants.load, OperatorModel.load, read_lines, read_symbols, read_graph,
    read_times, read_overheads,
]  # fmt: skip


def test_one_kind_of_error() -> None:
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    for text in ("", "{", _DEEP):
        with pytest.raises(ValueError, match=r"nested too deeply|line 1"):
            parse_json(text)


@pytest.mark.parametrize("read", _READERS)
def test_readers_say_one_sentence(read, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(_DEEP + "\n")
    with pytest.raises(DataError, match=r"file\.json"):
        read(path)


def test_readers_of_folders_say_one_sentence(tmp_path: Path) -> None:
    for name in (MANIFEST, "final.json"):
        (tmp_path / name).write_text(_DEEP)
    for read in (read_manifest, read_final):
        with pytest.raises(DataError):
            read(tmp_path)
