"""Files with tensor programs: what is read, what is run, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.errors import DataError, UsageError
from cdmpp.programs.work import program_work
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.program_file import NamedProgram, read_programs, sized
from tvm_helper.tasks.script import read_script
from tvm_helper.tir.loop_tree import loop_tree_from_tir
from tvm_helper.tir.symbolic import symbolic_sizes

pytestmark = pytest.mark.tvm

HEAD = "from tvm.script import tirx as T\n\n\n"
GOOD = """@T.prim_func(s_tir=True)
def good(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
    for i in range(128):
        with T.sblock("B"):
            vi = T.axis.spatial(128, i)
            B[vi] = A[vi] * T.float32(2)
"""
SYMBOLIC = """@T.prim_func(s_tir=True)
def rows(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n * 2, 64), "float16")
    B = T.match_buffer(b, (n, 64), "float16")
    for i in T.thread_binding(n, thread="blockIdx.x"):
        for j in T.thread_binding(64, thread="threadIdx.x"):
            B[i, j] = A[2 * i, j] * T.float16(2)
"""
OLDER = """@T.prim_func
def older(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
    T.func_attr({"tir.noalias": True})
    C = T.alloc_buffer((128,))
    for i in range(128):
        with T.block("C"):
            vi = T.axis.spatial(128, i)
            C[vi] = A[vi] * T.float32(2)
    for i in range(128):
        with T.block("B"):
            vi = T.axis.spatial(128, i)
            B[vi] = C[vi] + T.float32(1)
"""


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    return Predictor("pretrained", ["a100", "epyc-avx512-1c"])


def read(tmp_path: Path, text: str) -> list[NamedProgram]:
    path = tmp_path / "programs.py"
    path.write_text(text)
    return read_programs(path)


def test_a_file_that_is_tvmscript_alone_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_helper.tasks.program_file._run", lambda path: pytest.fail("run"))
    assert [one.name for one in read(tmp_path, HEAD + GOOD)] == ["good"]
    monkeypatch.undo()
    assert [one.name for one in read(tmp_path, f"{HEAD}SIZE = 3\n{GOOD}")] == ["good"]


def test_what_a_file_prints_is_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`predict FILE.py --json` printed the file's own lines before its JSON."""
    assert [one.name for one in read(tmp_path, f"{HEAD}print('loud')\n\n\n{GOOD}")] == ["good"]
    assert capsys.readouterr() == ("", "loud\n")


def test_a_program_that_cannot_be_parsed_leaves_the_others(
    tmp_path: Path, predictor: Predictor
) -> None:
    bad = GOOD.replace("good", "bad").replace("float32(2)", "float32(2, 3, 4)")
    found = read(tmp_path, f"{HEAD}{bad}\n\n{GOOD}")
    assert [bool(one.fault) for one in found] == [True, False]
    assert found[0].fault.startswith("programs.py:9: ")
    bad_row, _, _, good_row = predictor.programs(found)
    assert bad_row.reason == found[0].fault
    assert good_row.latency_s
    with pytest.raises(DataError, match=r"programs\.py:9: "):
        read(tmp_path, HEAD + bad)


@pytest.mark.exhaustive
def test_a_program_that_cannot_be_lowered_leaves_the_others(
    tmp_path: Path, predictor: Predictor
) -> None:
    mark = '            T.sblock_attr({"buffer_dim_align": [0]})\n            B[vi]'
    bad = GOOD.replace("good", "bad").replace("            B[vi]", mark)
    found = predictor.programs(read(tmp_path, f"{HEAD}{bad}\n\n{GOOD}"))
    by_name = {one.name: one for one in found if one.device == "epyc-avx512-1c"}
    assert "module cannot be lowered: TypeError: Cannot treat" in (by_name["bad"].reason or "")
    assert by_name["good"].latency_s


def test_an_older_name_is_said_with_its_line(tmp_path: Path) -> None:
    typo = GOOD.replace("T.sblock", "T.block")
    with pytest.raises(DataError, match=r"programs\.py:7: .*'block' \(T\.block is T\.sblock in"):
        read(tmp_path, HEAD + typo)
    other = OLDER.replace("C[vi] =", "C[vi] = open(0) +")
    with pytest.raises(DataError, match=r"older: line 10: `open` is not allowed"):
        read(tmp_path, "x = 1\nfrom tvm.script import tir as T\n" + other)


@pytest.mark.parametrize(
    "head", ["", "from tvm.script import tir as T\n", "# from tvm.script import tir as T\n"]
)
def test_older_tvmscript_is_read_by_the_names_of_this_tvm(
    tmp_path: Path, predictor: Predictor, head: str
) -> None:
    (found,) = read(tmp_path, head + OLDER)
    assert "T.block is T.sblock" in found.note
    assert all(one.latency_s and one.note for one in predictor.programs([found]))


OLDER_FORMS = {
    "a result": OLDER.replace('"float32")):', '"float32")) -> None:'),
    "buffers in brackets": OLDER.replace("T.Buffer((128,), ", "T.Buffer[(128,), ").replace(
        '"float32")', '"float32"]'),
    "a module": "import tvm\n@tvm.script.ir_module\nclass Module:\n"
        + OLDER.replace("@T", "    @T").replace("\n", "\n    "),
    "parsers": "from tvm.script.parser import ir as I, relax as R, tir as T\n" + OLDER,
    "named values": OLDER.replace(
        "            C[vi] = A[vi]", "            v: T.float32 = A[vi]\n            C[vi] = v"),
    "more than functions": f"import tvm\n\n{OLDER}\nsch = tvm.tir.Schedule(older)\n",
    "relax": "@I.ir_module\nclass Module:\n" + OLDER.replace("@T", "    @T").replace("\n", "\n    ")
        + '\n    @R.function\n    def main(x: R.Tensor((1,), "float32")):\n        return x\n',
}  # fmt: skip


@pytest.mark.parametrize("form", OLDER_FORMS)
def test_forms_of_older_tvmscript(tmp_path: Path, form: str) -> None:
    (plain,) = read(tmp_path, OLDER)
    (found,) = read(tmp_path, "from tvm.script import tir as T\n" + OLDER_FORMS[form])
    is_part = form in ("more than functions", "relax")
    assert found.note.startswith(
        "older TVMScript, of which only" if is_part else "older TVMScript;"
    )
    trees = [loop_tree_from_tir(one.module) for one in (plain, found)]
    assert program_work(trees[0]) == program_work(trees[1])


def test_an_older_lowered_kernel_is_read(tmp_path: Path) -> None:
    (found,) = read(
        tmp_path,
        """# from tvm.script import tir as T
@T.prim_func
def rows(A: T.Buffer((32, 64), "float32"), B: T.Buffer((32,), "float32")):
    blockIdx_x = T.launch_thread("blockIdx.x", 4)
    total = T.allocate([1], "float32", "local")
    threadIdx_x = T.launch_thread("threadIdx.x", 8)
    total_1 = T.Buffer((1,), data=total, scope="local")
    total_1[0] = T.float32(0)
    A_1 = T.Buffer((2048,), data=A.data)
    for k in range(64):
        total_1[0] = total_1[0] + A_1[blockIdx_x * 512 + threadIdx_x * 64 + k]
    B[blockIdx_x * 8 + threadIdx_x] = total_1[0]
""",
    )
    work = program_work(loop_tree_from_tir(found.module))
    assert (work.wide_flop, work.bytes, work.threads) == (32 * 64, 4 * (32 * 64 + 32), 32)


def test_what_makes_a_program_ill_formed_is_said(tmp_path: Path) -> None:
    text = GOOD.replace(
        "            B[vi] = A[vi]", "            v: T.float32 = A[vi]\n            B[vi] = v"
    )
    with pytest.raises(DataError, match=r"programs\.py: TIR is ill-formed: buffer v .*T\.let"):
        read(tmp_path, HEAD + text)
    (found,) = read(tmp_path, HEAD + text.replace("v: T.float32", "v: T.let[T.float32]"))
    assert program_work(loop_tree_from_tir(found.module)).wide_flop == 128


def test_a_program_of_a_relax_module_is_marked(tmp_path: Path) -> None:
    module = "@I.ir_module\nclass Module:\n" + GOOD.replace("@T", "    @T").replace("\n", "\n    ")
    relax = '\n    @R.function\n    def main(x: R.Tensor((1,), "float32")):\n        return x\n'
    head = "from tvm.script import ir as I\nfrom tvm.script import relax as R\n" + HEAD
    assert [one.note for one in read(tmp_path, head + module)] == [""]
    (found,) = read(tmp_path, head + module + relax)
    assert found.note == "of a Relax module, whose other operators are not predicted"


def test_symbolic_sizes_are_named_and_given(tmp_path: Path, predictor: Predictor) -> None:
    programs = read(tmp_path, HEAD + SYMBOLIC)
    assert symbolic_sizes(programs[0].module) == ["n"]
    asked = predictor.programs(programs)
    assert {one.reason for one in asked} == {
        "it has symbolic sizes: n; set them, e.g. --set n=4096"
    }
    given = sized(programs, {"n": 1 << 20})
    gpu, cpu = predictor.programs(given)
    assert gpu.explanation is not None
    moved = 2 * 2 * 64 * (1 << 20)
    assert gpu.explanation.least_s == pytest.approx((moved - 41943040) / 1.555e12)
    assert cpu.reason == "it has GPU threads, epyc-avx512-1c is a cpu"
    with pytest.raises(UsageError, match="--set m=3: no program has that"):
        sized(programs, {"m": 3})
    with pytest.raises(UsageError, match="n is an int32; expected at most 2,147,483,647"):
        sized(programs, {"n": 1 << 31})
    with pytest.raises(UsageError, match="--set n=0: expected a size of at least 1"):
        sized(programs, {"n": 0})


def test_what_nobody_scheduled_is_as_dlight_schedules_it(
    tmp_path: Path, predictor: Predictor
) -> None:
    gpu, cpu = predictor.programs(read(tmp_path, HEAD + GOOD))
    assert gpu.latency_s
    assert gpu.note == "as DLight would schedule it"
    assert cpu.note == ""
    parallel = GOOD.replace("in range(128)", "in T.parallel(128)")
    gpu, cpu = predictor.programs(read(tmp_path, HEAD + parallel))
    assert gpu.reason == "it has no thread bindings, a100 is a GPU; schedule it for one"
    assert cpu.latency_s


def test_what_cannot_be_read_has_its_own_reason(tmp_path: Path, predictor: Predictor) -> None:
    """The reason is not "no thread bindings", because nobody could look for them."""
    loop = GOOD.replace("for i in range(128):", "for i in T.serial(0, 128, step=2):")
    gpu, _ = predictor.programs(read(tmp_path, HEAD + loop))
    assert "has a step" in (gpu.reason or "")


def test_a_text_of_an_older_tvm_is_read_as_its_file(tmp_path: Path) -> None:
    """`predict FILE.py` read it, `Model.predict(TEXT)` and the server refused it."""
    text = (
        "from tvm.script import tir as T\n@T.prim_func\n"
        "def f(A: T.Buffer((8,), 'float32'), B: T.Buffer((8,), 'float32')):\n"
        "    for i in range(8):\n        with T.block('B'):\n"
        "            vi = T.axis.spatial(8, i)\n            B[vi] = A[vi] * T.float32(2)\n"
    )
    path = tmp_path / "older.py"
    path.write_text(text)
    [by_text], [by_file] = read_script(text), read_programs(path)
    assert (by_text.name, by_text.note) == (by_file.name, by_file.note)
    assert by_text.note.startswith("older TVMScript")
    assert by_text.module.script() == by_file.module.script()
