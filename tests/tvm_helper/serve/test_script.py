"""Scripts of strangers: TVM's own come through unchanged, and nothing of any of them is run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

import tvm_ffi

from cdmpp.errors import DataError
from tests.tvm_helper.sampled import sample_schedules
from tests.tvm_helper.search.fixtures import matmul
from tvm_helper.compat import te, topi, tvm
from tvm_helper.tasks.script import read_script, read_tir_json

pytestmark = pytest.mark.tvm

PLAIN = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.sblock("b"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] + T.float32(1)
"""
_EVENTS: list[str] = []
_WATCHED = {"os.system", "subprocess.Popen", "open", "socket.connect", "import", "os.exec"}
_is_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _is_watching and event in _WATCHED:
        _EVENTS.append(f"{event} {arguments[:1]}")


sys.addaudithook(_audit)


@pytest.fixture
def watched() -> Iterator[list[str]]:
    """Files, processes, connections and imports since the test began."""
    global _is_watching
    read_script(PLAIN)  # what TVM imports late, it has now
    _EVENTS.clear()
    _is_watching = True
    yield _EVENTS
    _is_watching = False


def functions() -> list[Any]:
    data = te.placeholder((1, 8, 8, 16), name="input")
    weight = te.placeholder((3, 3, 16, 16), name="sum")  # names of builtins of Python
    relu = topi.nn.relu(topi.nn.conv2d_nhwc(data, weight, 1, 1, 1))
    rows = te.placeholder((8, 128), name="rows")
    return [
        matmul(64),
        te.create_prim_func([data, weight, relu]),
        te.create_prim_func([rows, topi.nn.softmax(rows)]),
    ]


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_what_tvm_prints_comes_back(kind: str) -> None:
    for function in functions():
        for schedule in sample_schedules(function, kind, 1, seed=1):
            for program, text in (
                (read_script, schedule.mod.script()),
                (read_tir_json, tvm.ir.save_json(schedule.mod)),
            ):
                (found,) = program(text)
                assert tvm_ffi.structural_equal(found.module, schedule.mod)


def test_several_programs_keep_their_names() -> None:
    assert [one.name for one in read_script(PLAIN + PLAIN.replace("def f", "def g"))] == ["f", "g"]


def test_what_tvm_does_not_take_is_said() -> None:
    with pytest.raises(DataError, match=r"f: .*takes from 1 to 2 positional arguments"):
        read_script(PLAIN.replace("T.float32(1)", "T.float32(1, 2, 3)"))


_BODY = "            B[vi] = A[vi] + T.float32(1)"
ATTACKS = {
    "statement": "__import__('os').system('true')\n" + PLAIN,
    "import": "import os\n" + PLAIN,
    "from": "from os import system as T\n" + PLAIN,
    "function": "def helper():\n    pass\n" + PLAIN,
    "decorator": PLAIN.replace("@T.prim_func", "@print\n@T.prim_func"),
    "decorator argument": PLAIN.replace("s_tir=True", "s_tir=open('/etc/passwd')"),
    "decorator call": PLAIN.replace("@T.prim_func(s_tir=True)", "@T.prim_func(**open('x'))"),
    "macro": PLAIN.replace("@T.prim_func(s_tir=True)", "@T.macro"),
    "inline": PLAIN.replace("@T.prim_func(s_tir=True)", "@T.inline"),
    "jit": PLAIN.replace("@T.prim_func(s_tir=True)", "@T.jit"),
    "class decorator": "@open('/etc/passwd')\nclass M:\n    pass\n",
    "base class": "@I.ir_module\nclass M(BasePyModule):\n    pass\n",
    "metaclass": "@I.ir_module\nclass M(metaclass=print):\n    pass\n",
    "pyfunc": "@I.ir_module\nclass M:\n    @I.pyfunc\n    def main(self):\n        return 1\n",
    "class statement": "@I.ir_module\nclass M:\n    x = open('/etc/passwd')\n",
    "nested function": PLAIN.replace(_BODY, "            def g():\n                pass"),
    "default": PLAIN.replace('"float32")):', '"float32") = open("/etc/passwd")):'),
    "annotation": PLAIN.replace('T.Buffer((16,), "float32"), B', 'open("/etc/passwd"), B'),
    "text in a signature": PLAIN.replace("(16,)", '("__import__(0).system(1)",)', 1),
    "text in a shape": PLAIN.replace("(16,)", '("open(n)",)', 1),
    "annotation of a value": PLAIN.replace(
        _BODY, '            v: open("/etc/passwd") = A[vi]\n            B[vi] = v'),
    "text in an annotation": PLAIN.replace(
        _BODY, '            v: T.let["open(0)"] = A[vi]\n            B[vi] = v'),
    "annotation as text": PLAIN.replace('T.Buffer((16,), "float32"), B', '"open(0)", B'),
    "returns": PLAIN.replace("):\n    for", ') -> open("/etc/passwd"):\n    for'),
    "builtin": PLAIN.replace("T.float32(1)", "open('/etc/passwd')"),
    "import in it": PLAIN.replace("T.float32(1)", "__import__('os').system('true')"),
    "eval": PLAIN.replace("T.float32(1)", "eval('1')"),
    "shadowed builtin": PLAIN.replace("for i in", "for open in").replace(
        "T.float32(1)", "open('/etc/passwd')"),
    "attribute": PLAIN.replace("T.float32(1)", "T.__loader__"),
    "module": PLAIN.replace("T.float32(1)", "T.builder.sys"),
    "class of a buffer": PLAIN.replace("T.float32(1)", "A.__class__.__init__.__globals__"),
    "chain": PLAIN.replace("T.float32(1)", "T.float32(1).ty.dtype"),
    "subscript of a call": PLAIN.replace("T.float32(1)", "A.data.__reduce__()[0]"),
    "lambda": PLAIN.replace("T.float32(1)", "(lambda: 1)()"),
    "comprehension": PLAIN.replace("T.float32(1)", "[x for x in (1,)][0]"),
    "generator": PLAIN.replace("T.float32(1)", "T.max(*(x for x in (1, 2)))"),
    "f-string": PLAIN.replace("T.float32(1)", "f'{open(0)}'"),
    "walrus": PLAIN.replace("T.float32(1)", "(x := 1)"),
    "star": PLAIN.replace("T.float32(1)", "T.max(*A)"),
    "two stars": PLAIN.replace("T.float32(1)", "T.max(**A)"),
    "await": PLAIN.replace("T.float32(1)", "(yield)"),
    "power": PLAIN.replace("T.float32(1)", "9 ** 9 ** 9"),
    "shift": PLAIN.replace("T.float32(1)", "1 << 10 ** 9"),
    "with": PLAIN.replace('T.sblock("b")', 'open("/etc/passwd")'),
    "try": PLAIN.replace(_BODY, "            try:\n                pass\n            finally:\n"
                         "                pass"),
    "global": PLAIN.replace(_BODY, "            global T"),
    "delete": PLAIN.replace(_BODY, "            del B"),
    "rebinding": PLAIN.replace("for i in", "for T in"),
    "loop over a builtin": PLAIN.replace("range(16)", "map(print, (1,))"),
    "target": PLAIN.replace("T.float32(1)", "T.target('llvm')"),
    "packed function": PLAIN.replace("T.float32(1)", "T.call_packed('testing.echo', 1)"),
    "attribute store": PLAIN.replace("            B[vi] =", "            T.x ="),
    "nothing": "",
    "no python": "\x00",
    "nesting": "(" * 5000,
    "deep nesting": PLAIN.replace("T.float32(1)", "-" * 3000 + "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_script_is_run(name: str, watched: list[str]) -> None:
    with pytest.raises(DataError):
        read_script(ATTACKS[name])
    assert watched == []


def test_a_name_of_a_builtin_means_what_the_script_says(watched: list[str]) -> None:
    text = PLAIN.replace("A: T", "open: T").replace("A[vi]", "open[vi]")
    (found,) = read_script(text)
    (same,) = read_script(PLAIN)
    assert tvm_ffi.structural_equal(found.module, same.module)
    assert watched == []


NO_TIR = {
    "empty": "",
    "no graph": "{}",
    "a list": "[1]",
    "no nodes": '{"root_index": 9, "nodes": []}',
    "no text": "\x00",
    "a number": "9" * 9999,
    "nesting": "[" * 9999,
    "a library": '{"nodes": [{"type": "ffi.Module", "data": ""}], "root_index": 0}',
    "no name": '{"nodes": [{"type": ["int"]}], "root_index": 0}',
}


@pytest.mark.parametrize("name", NO_TIR)
def test_nonsense_is_no_tir_json(name: str) -> None:
    with pytest.raises(DataError):
        read_tir_json(NO_TIR[name])
