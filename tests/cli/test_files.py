"""A bare FILE: every command knows what it is, takes it, or names the command that does."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from cdmpp.cli.main import build_parser, main
from cdmpp.datasets.metaschedule.databases import RECORD_FILE, WORKLOAD_FILE
from cdmpp.errors import CdmppError
from cdmpp.replay.file_kind import KINDS, FileKind, file_kind
from tests.tvm_helper.predict.written import SCRIPT

DEVICE = ["--device", "epyc-avx2-1c"]
RECORD = '{"i": [["[\\"key\\"]", "llvm"], [[], []]], "r": [[0.1], 0, 0, 0], "v": "v0.6"}\n'
AUTOTVM = '{"input": ["llvm", "dense", []], "config": {}, "result": [[1], 0, 0, 0], "version": 1}\n'
CONTENTS: dict[str, tuple[FileKind, str]] = {
    "kernel.py": ("program", "x = 1\n"),
    "net.onnx": ("network", ""),
    "net.pt2": ("network", ""),
    "((net),llvm).task.pkl": ("tenset", ""),
    "records.json": ("records", RECORD),
    "t4.json": ("records", AUTOTVM),
    "tophub.log": ("records", AUTOTVM),
    "trace.json": ("chrome", '{"schemaVersion": 1, "traceEvents": []}'),
    "events.json": ("chrome", '[{"ph": "X"}]'),
    "observed.json": ("execution", '{"schema": "1", "pid": 3, "nodes": []}'),
    "graph.json": ("graph", '{"format": "cdmpp-operator-graph", "operators": []}'),
    "graph.yaml": ("graph", "format: cdmpp-operator-graph\n"),
    "preset.yaml": ("dlrm", "format: cdmpp-dlrm\n"),
    "config.json": ("config", '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}'),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_file_is_known_by_its_name_and_first_keys(name: str, tmp_path: Path) -> None:
    kind, text = CONTENTS[name]
    (tmp_path / name).write_text(text)
    assert file_kind(tmp_path / name) == kind
    if name.endswith(".json"):
        for suffix, packed in ((".gz", gzip.compress), (".xz", lzma.compress)):
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(packed(text.encode()))
            assert file_kind(path) == kind


def test_a_database_is_known_by_its_two_files(tmp_path: Path) -> None:
    for name in (WORKLOAD_FILE, RECORD_FILE):
        (tmp_path / name).write_text("[]\n")
    assert file_kind(tmp_path) == "records"
    with pytest.raises(CdmppError, match="part of a MetaSchedule database; give its folder"):
        file_kind(tmp_path / RECORD_FILE)


@pytest.mark.parametrize(
    "command", ["predict", "explain", "roofline", "search", "replay", "compare"]
)
@pytest.mark.parametrize("name", ["trace.json", "config.json", "records.json", "none.json"])
def test_every_command_knows_the_file(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in CONTENTS:
        (tmp_path / name).write_text(CONTENTS[name][1])
    code = main([command, str(tmp_path / name), *DEVICE])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    if name == "none.json":
        assert code == (2 if command == "compare" else 3)
        return
    kind = CONTENTS[name][0]
    what, next_command = KINDS[kind]
    if (command, kind) in (("replay", "chrome"), ("predict", "records")):
        assert what not in said  # it is read, and found empty
        return
    assert code == 2
    assert what in said
    assert f"Run: {next_command.format(tmp_path / name)}" in said


def test_a_file_and_an_option_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "kernel.py", "--network", "net.onnx"])
    assert "not allowed with argument FILE" in capsys.readouterr().err


@pytest.mark.tvm
def test_a_bare_program_is_answered_as_with_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(SCRIPT)
    rows = []
    for words in ([str(path)], ["--program", str(path)]):
        assert main(["predict", *words, *DEVICE, "--json", "-q"]) == 0
        rows.append(json.loads(capsys.readouterr().out))
    assert rows[0] == rows[1]
    assert main(["roofline", str(path), *DEVICE, "--json"]) == 0
    (bound,) = json.loads(capsys.readouterr().out)
    assert 0 < bound["least_s"] <= rows[0][0]["low_s"]
    args = build_parser().parse_args(["search", str(path), "--out", "x"])
    assert args.what == [str(path)]
