"""Only the eight globals of Tenset's task files are read; everything else is refused."""

from __future__ import annotations

import gzip
import os
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cdmpp.datasets.tenset.folder import load_tasks
from cdmpp.errors import DataError
from cdmpp.files.restricted_pickle import load_restricted


class _Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize(
    ("function", "argument", "name"),
    [
        (os.system, "touch {}", f"{os.system.__module__}.system"),
        (eval, "open({!r}, 'w')", "builtins.eval"),
        (getattr, "x", "builtins.getattr"),
    ],
)
def test_a_named_function_is_refused_and_not_run(
    tmp_path: Path, function: Any, argument: str, name: str, protocol: int
) -> None:
    trace = tmp_path / "ran"
    path = tmp_path / "all_tasks.pkl"
    path.write_bytes(pickle.dumps([_Call(function, argument.format(str(trace)))], protocol))
    with pytest.raises(DataError) as caught:
        load_restricted(path)
    shown = name.replace("builtins", "__builtin__") if protocol < 3 else name
    assert shown in str(caught.value)
    assert str(path) in str(caught.value)
    assert not trace.exists()


def test_os_system_is_named_as_written(tmp_path: Path) -> None:
    path = tmp_path / "x.task.pkl"
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match=r"os\.system"):
        load_restricted(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff\x13garbage" * 50,
        pickle.dumps(list(range(100)))[:-20],
        b"not a pickle",
        gzip.compress(b"", mtime=0),
        gzip.compress(pickle.dumps("x" * 500), mtime=0)[:-12],
        b"(\x8aN.",
        b"\x80\x04]r\xff\xff\xff\xff.",  # a memo index of four billion
        b"\x80\x02\x82\x01.",  # an extension code
        b"Pos.system\n.",  # a persistent id
        b"\x80\x04tR.",
    ],
)
def test_what_is_no_pickle_is_one_data_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "all_tasks.pkl"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        load_restricted(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        load_restricted(tmp_path / "none.pkl")


_NEW = b"ctvm.runtime.object\n_new_object\n"


@pytest.mark.parametrize(
    "data",
    [
        # _new_object of a function, of a str, of nothing
        _NEW + b"(" + _NEW + b"tR.",
        _NEW + b"(S'x'\ntR.",
        _NEW + b"(tR.",
        # state given to the function, to a class; a String of bytes
        _NEW + b"}S'__code__'\nS'x'\nsb.",
        b"ctvm.target.target\nTarget\n}S'get'\nS'x'\nsb.",
        b"ctvm.runtime.container\nString\n(C\x02hiS'rot13'\ntR.",
    ],
)
def test_stubs_do_nothing_but_hold_state(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "all_tasks.pkl"
    path.write_bytes(data)
    with pytest.raises(DataError):
        load_restricted(path)


def test_the_shipped_tasks_name_exactly_the_eight_globals(shipped: Path) -> None:
    path = shipped / "network_info" / "((bert_base,[(1,64)]),llvm).task.pkl.gz"
    data = gzip.decompress(path.read_bytes())
    strings: list[str] = []
    names = set()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "SHORT_BINUNICODE":
            strings.append(str(argument))
        elif opcode.name == "STACK_GLOBAL":
            names.add(strings[-1])
    assert len(names) >= 6
    tasks, weights = load_restricted(path)
    assert len(tasks) == len(weights) == 9
    assert type(tasks[0]).__module__ == "cdmpp.files.restricted_pickle"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(position=st.integers(0, 4000), value=st.integers(0, 255), cut=st.integers(100, 250_000))
@example(position=16, value=10, cut=191_260)  # a line's end in the name of a global
def test_a_damaged_pickle_is_read_or_refused(
    shipped: Path, tmp_path: Path, position: int, value: int, cut: int
) -> None:
    source = shipped / "network_info" / "((bert_base,[(1,64)]),llvm).task.pkl.gz"
    data = bytearray(gzip.decompress(source.read_bytes())[:cut])
    data[min(position, len(data) - 1)] = value
    path = tmp_path / "all_tasks.pkl"
    path.write_bytes(bytes(data))
    message = ""
    try:
        load_tasks(tmp_path)
    except DataError as error:
        message = str(error)
    assert "\n" not in message
