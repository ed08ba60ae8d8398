"""Files with tensor programs: what is read, what is run, and what is said of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.errors import DataError, UsageError
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.program_file import NamedProgram, read_programs, sized
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
    with pytest.raises(DataError, match=r"programs\.py:2: .*T\.block is T\.sblock"):
        read(tmp_path, "x = 1\nfrom tvm.script import tir as T\n" + OLDER)


@pytest.mark.parametrize(
    "head", ["", "from tvm.script import tir as T\n", "# from tvm.script import tir as T\n"]
)
def test_older_tvmscript_is_read_by_the_names_of_this_tvm(
    tmp_path: Path, predictor: Predictor, head: str
) -> None:
    (found,) = read(tmp_path, head + OLDER)
    assert "T.block is T.sblock" in found.note
    assert all(one.latency_s and one.note for one in predictor.programs([found]))


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


def test_what_nobody_scheduled_is_as_dlight_schedules_it(
    tmp_path: Path, predictor: Predictor
) -> None:
    gpu, cpu = predictor.programs(read(tmp_path, HEAD + GOOD))
    assert gpu.latency_s
    assert gpu.note == (
        "as DLight would schedule it; predicted from its lower bound and its schedule, calibrated "
        "on measured programs of other kinds and GPUs; programs of TVM's default rules (DLight) "
        "are not in the GPU training data"
    )
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
