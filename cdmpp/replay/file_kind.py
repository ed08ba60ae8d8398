"""Detects the kind of a user's file, and the command for it; shared by all commands."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from cdmpp.config import read_yaml
from cdmpp.datasets.metaschedule.databases import (
    RECORD_FILE,
    WORKLOAD_FILE,
    is_metaschedule_database,
)
from cdmpp.errors import DataError, UsageError
from cdmpp.files.json_stream import top_level_keys
from cdmpp.files.open_text import PACKED_SUFFIXES
from cdmpp.replay.graph_file import FORMAT
from cdmpp.replay.tenset_network import is_tenset_network
from cdmpp.replay.traces.dlrm import FORMAT as DLRM

FileKind = Literal[
    "program", "network", "records", "tenset", "graph", "chrome", "execution", "dlrm", "config"
]
#: Each kind in words, and its command.
KINDS: dict[FileKind, tuple[str, str]] = {
    "program": ("a Python file with tensor programs (.py)", "cdmpp predict {}"),
    "network": ("a network (.onnx, .pt2)", "cdmpp predict {}"),
    "records": (
        "measure records of Ansor or AutoTVM, or a MetaSchedule database", "cdmpp predict {}",
    ),
    "tenset": ("a network of Tenset (((NETWORK),KIND).task.pkl)", "cdmpp replay {}"),
    "graph": ("a graph of operators (.json, .yaml)", "cdmpp replay {}"),
    "chrome": ("a trace of torch.profiler (.json, .json.gz)", "cdmpp replay {}"),
    "execution": ("a trace of ExecutionTraceObserver (.json)", "cdmpp replay {}"),
    "dlrm": ("a training preset (.yaml)", "cdmpp replay {}"),
    "config": (
        "a config.json of a language model", "cdmpp compare --model {} --decode-at 4096 --all",
    ),
}  # fmt: skip
_SUFFIXES: dict[str, FileKind] = {".py": "program", ".onnx": "network", ".pt2": "network"}
#: Files with weights only, or a module without its forward code.
_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")
_TEXT_SUFFIXES = (".json", ".log", ".txt", ".jsonl")
#: Keys of AutoTVM before TVM 0.6 and of Ansor; keys of AutoTVM today.
_RECORD_KEYS = ({"i", "r"}, {"input", "config", "result"})
_CONFIG_KEYS = frozenset({"architectures", "model_type", "hidden_size", "num_hidden_layers"})


def file_kind(path: Path, wanted: Collection[FileKind] = tuple(KINDS)) -> FileKind:
    """Returns the kind of a file, from its name and first keys.

    Args:
        wanted: kinds that the command accepts.

    Raises:
        DataError: the file does not exist, or has no known kind.
        UsageError: the file has another kind, which another command accepts.
    """
    kind = _kind(path, wanted)
    if kind not in wanted:
        what, command = KINDS[kind]
        raise UsageError(
            f"{path} is {what}; expected {expected(wanted)}. Run: {command.format(path)}"
        )
    return kind


def expected(wanted: Collection[FileKind] = tuple(KINDS)) -> str:
    """Returns the kinds of files in words."""
    return ", or ".join(KINDS[kind][0] for kind in wanted)


def _kind(path: Path, wanted: Collection[FileKind]) -> FileKind:
    if is_metaschedule_database(path):
        return "records"
    if not path.is_file():
        module, colon, factory = str(path).partition(".py:")
        if colon and factory and Path(f"{module}.py").is_file():
            raise UsageError(
                f"{path} is a torch network; expected {expected(wanted)}. "
                f"Run: cdmpp predict --torch {path}, or cdmpp compare {path} --all"
            )
        what = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}; expected {expected(wanted)}")
    suffixes = [part.lower() for part in path.suffixes]
    found = _SUFFIXES.get(path.suffix.lower())
    if found is not None:
        return found
    if is_tenset_network(path):
        return "tenset"
    if suffixes[-1:] in ([".yaml"], [".yml"]):
        return _yaml_kind(path)
    if suffixes[-1:] and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    if suffixes[-1:] and suffixes[-1] in _TEXT_SUFFIXES:
        return _text_kind(path, wanted)
    if path.suffix.lower() in _WEIGHTS:
        raise DataError(
            f"{path}: holds weights, not what is computed with them; expected {expected(wanted)}. "
            "Write a network with torch.export.save(torch.export.export(module, inputs), 'x.pt2')"
        )
    raise DataError(f"{path}: unknown kind of file; expected {expected(wanted)}")


def _text_kind(path: Path, wanted: Collection[FileKind]) -> FileKind:
    plain = path.stem if path.suffix in PACKED_SUFFIXES else path.name
    if plain in (RECORD_FILE, WORKLOAD_FILE):
        raise DataError(
            f"{path} is part of a MetaSchedule database; give its folder: {path.parent}"
        )
    try:
        found = top_level_keys(path)
    except DataError:
        if ".json" in path.suffixes:
            raise
        raise DataError(f"{path}: unknown kind of file; expected {expected(wanted)}") from None
    keys = set(found)
    if any(one <= keys for one in _RECORD_KEYS):
        return "records"
    if "traceEvents" in keys or found == ["[]"]:
        return "chrome"
    if "nodes" in keys or {"schema", "pid"} <= keys:
        return "execution"
    if "operators" in keys or "format" in keys:
        return "graph"
    if keys & _CONFIG_KEYS:
        return "config"
    raise DataError(
        f"{path}: its keys are {', '.join(found) or 'none'}; expected {expected(wanted)}"
    )


def _yaml_kind(path: Path) -> FileKind:
    try:
        name = read_yaml(path).get("format")
    except UsageError as error:
        raise DataError(str(error)) from None
    if name == DLRM:
        return "dlrm"
    if name == FORMAT:
        return "graph"
    raise DataError(f"{path}: format {name!r}; expected format: {FORMAT}, or format: {DLRM}")
