"""Columns of LLVM's text, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.programs.machine_code.columns import (
    KINDS,
    MACHINE_CODE_NAMES,
    UNKNOWN_TRIPS,
    machine_code_columns,
)
from cdmpp.programs.machine_code.llvm_text import functions_of

#: out[i] += a[i] * b: 12 rows of 40 vectors of 16, then one scalar addition.
_LOOPS = """
define dllexport i32 @__tvm_ffi_main(ptr %0) {
entry:
  %1 = fdiv <16 x float> zeroinitializer, zeroinitializer
  ret i32 0
}

; Function Attrs: nounwind
define internal fastcc i32 @main_compute_(ptr noalias align 64 %a, ptr noalias align 64 %b) #3 {
entry:
  br label %rows

rows:                                             ; preds = %entry, %row_end
  %row = phi i32 [ 0, %entry ], [ %row.next, %row_end ]
  br label %vectors

vectors:                                          ; preds = %vectors, %rows
  %indvars.iv = phi i64 [ 0, %rows ], [ %indvars.iv.next, %vectors ]
  %sum = phi <16 x float> [ zeroinitializer, %rows ], [ %3, %vectors ]
  %1 = getelementptr inbounds float, ptr %a, i64 %indvars.iv
  %2 = load <16 x float>, ptr %1, align 64
  %3 = call <16 x float> @llvm.fmuladd.v16f32(<16 x float> %2, <16 x float> %2, <16 x float> %sum)
  store <16 x float> %3, ptr %b, align 64
    #dbg_value(i32 0, !71, !DIExpression(), !59)
  %indvars.iv.next = add nuw nsw i64 %indvars.iv, 16
  %exitcond.not = icmp eq i64 %indvars.iv.next, 640
  br i1 %exitcond.not, label %row_end, label %vectors

row_end:                                          ; preds = %vectors
  %row.next = add nuw nsw i32 %row, 1
  %done = icmp eq i32 %row.next, 12, !dbg !47
  br i1 %done, label %end, label %rows

end:                                              ; preds = %row_end
  %4 = load float, ptr %a, align 4
  %5 = fadd float %4, %4
  ret i32 0
}
"""


def columns(text: str) -> dict[str, float]:
    found = machine_code_columns(text)
    assert found is not None
    assert found.dtype == np.float32
    return dict(zip(MACHINE_CODE_NAMES, found.tolist(), strict=True))


def count(value: float) -> float:
    """The number that a column of a logarithm stands for."""
    return 2.0**value - 1.0


def test_trips_weigh_what_loops_repeat() -> None:
    found = columns(_LOOPS)
    assert count(found["loops"]) == pytest.approx(2, rel=0.01)
    assert found["unknown_loops"] == 0
    assert found["depth"] == 2
    assert found["parallel_loops"] == 0
    # 480 runs of 16 multiplications and additions, one scalar addition
    assert count(found["flops"]) == pytest.approx(480 * 32 + 1, rel=0.01)
    assert count(found["total.fma512"]) == pytest.approx(480, rel=0.01)
    assert count(found["total.float_scalar"]) == pytest.approx(1, rel=0.01)
    assert count(found["total.loaded"]) == pytest.approx(480 * 16 + 1, rel=0.01)
    assert count(found["total.stored"]) == pytest.approx(480 * 16, rel=0.01)
    assert found["hottest.depth"] == 2
    assert count(found["hottest.trips"]) == pytest.approx(40, rel=0.01)
    assert count(found["hottest.runs"]) == pytest.approx(480, rel=0.01)
    assert count(found["hottest.blocks"]) == pytest.approx(1, rel=0.01)
    assert count(found["hottest.instructions"]) == pytest.approx(9, rel=0.01)
    assert found["hottest.fma512"] == pytest.approx(1 / 9, abs=0.01)
    assert found["hottest.share"] > 0.9
    # one sum hands a value on, and a multiplication of 512 bits is two: 2 x 4 cycles in a chain
    assert count(found["hottest.cycles"]) == pytest.approx(8, rel=0.01)
    assert count(found["bound.chain"]) == pytest.approx(480 * 8, rel=0.01)
    assert count(found["bound.arithmetic"]) == pytest.approx(480 + 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("guard", "rows"),
    [
        ("icmp slt i32 %row, 3", 3),
        ("icmp eq i32 %row, 3", 1),
        ("icmp ult i32 %row, 11", 12),  # in more than half of the iterations: not counted
        ("icmp ne i32 %row, 3", 12),
        ("icmp sgt i32 %row, 9", 2),
        ("icmp eq i32 %masked, 0", 3),
        ("icmp eq i32 %rest, 1", 2),
        ("icmp ult i32 %below, 4", 4),  # rows 1 to 4: -1 is the largest unsigned number
        ("icmp slt i32 %row, %unknown", 12),
    ],
)
def test_what_a_guard_skips_does_not_run(guard: str, rows: int) -> None:
    text = _LOOPS.replace(
        "  br label %vectors\n\nvectors:",
        "  %masked = and i32 %row, 3\n  %rest = urem i32 %row, 6\n  %below = add i32 %row, -1\n"
        f"  %guard = {guard}\n  br i1 %guard, label %vectors, label %row_end\n\nvectors:",
    )
    assert count(columns(text)["total.fma512"]) == pytest.approx(rows * 40, rel=0.01)


def test_functions_of_the_runtime_do_not_count() -> None:
    assert columns(_LOOPS)["total.divide512"] == 0


def test_a_bound_that_is_no_constant_is_unknown() -> None:
    found = columns(_LOOPS.replace("%row.next, 12", "%row.next, %rows_given"))
    assert found["unknown_loops"] == 0.5
    assert count(found["flops"]) == pytest.approx(40 * UNKNOWN_TRIPS * 32 + 1, rel=0.01)


@pytest.mark.parametrize(
    ("condition", "trips"),
    [
        ("icmp eq i64 %next, 640", 40),
        ("icmp ult i64 %next, 633", 40),  # the last run begins below the end
        ("icmp eq i64 640, %next", 40),
        ("icmp eq i64 %narrow, 640", 40),
        ("icmp eq i64 %least, %next", 25),
        ("icmp eq i64 %masked, %next", 12),
        ("icmp eq i64 %chosen, %next", 25),
        ("icmp eq i64 %shifted, %next", 20),
        ("icmp eq i64 %part, %next", 25),
        ("icmp eq i64 %i, 640", 41),  # compared before the step
        ("phi i1 [ true, %entry ], [ false, %loop ]", 2),
        ("icmp eq i64 %other, %next", None),
        ("icmp eq i64 %next, 0", None),
        ("fcmp olt float %x, 1.0", None),
    ],
)
def test_trips(condition: str, trips: float | None) -> None:
    text = f"""
define internal i32 @main_compute_(i64 %begin, i64 %other) {{
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add nuw nsw i64 %i, 16
  %narrow = trunc nsw i64 %next to i32
  %least = tail call i64 @llvm.smin.i64(i64 %other, i64 400)
  %masked = and i64 205, -16
  %chosen = select i1 %c, i64 200, i64 400
  %shifted = lshr i64 640, 1
  %part = sub nsw i64 %least, %begin
  %done = {condition}
  br i1 %done, label %end, label %loop

end:
  ret i32 0
}}
"""
    (function,) = functions_of(text)
    (loop,) = function.loops
    assert loop.trips == trips
    assert loop.blocks == {"loop"}


def test_a_loop_that_threads_share_counts_with_the_runs_of_all() -> None:
    text = """
define private noundef i32 @__tvm_parallel_lambda.68(i32 %task_id, ptr %0, ptr %1) #4 {
parallel_closure_entry:
  %end = tail call i32 @llvm.smin.i32(i32 %8, i32 224)
  %begin = mul nsw i32 %6, %task_id
  br label %for_body

for_body:
  %i = phi i32 [ %next, %for_body ], [ %begin, %parallel_closure_entry ]
  %2 = load float, ptr %0, align 4
  %3 = fmul float %2, %2
  store float %3, ptr %1, align 4
  %next = add nsw i32 %i, 1
  %done = icmp eq i32 %next, %end
  br i1 %done, label %for_end, label %for_body

for_end:
  ret i32 0
}
"""
    found = columns(text)
    assert found["parallel_loops"] == 1
    assert count(found["flops"]) == pytest.approx(224, rel=0.01)


@pytest.mark.parametrize(
    ("instruction", "kinds"),
    [
        ("%r = tail call <8 x float> @llvm.fmuladd.v8f32(<8 x float> %a)", {"fma256"}),
        ("%r = fmul <4 x float> %a, %b", {"float128"}),
        ("%r = call float @llvm.maxnum.f32(float %a, float %b)", {"float_scalar"}),
        ("%r = fdiv <16 x float> %a, %b", {"divide512"}),
        ("%r = load <8 x float>, ptr %p, align 32", {"load256"}),
        ("store float %a, ptr %p, align 4", {"store_scalar"}),
        (
            "%r = shufflevector <4 x float> %a, <4 x float> poison, <4 x i32> zeroinitializer",
            {"splat"},
        ),
        (
            "%r = shufflevector <4 x float> %a, <4 x float> %b, <4 x i32> <i32 0, i32 4>",
            {"shuffle"},
        ),
        ("%r = insertelement <4 x float> poison, float %a, i64 0", {"insert"}),
        ("%r = call <8 x float> @llvm.masked.gather.v8f32.v8p0(<8 x ptr> %p)", {"gather"}),
        ("%r = call float @llvm.nearbyint.f32(float %a)", {"float_scalar"}),
        ("%r = call <8 x float> @llvm.sqrt.v8f32(<8 x float> %a)", {"divide256"}),
        ("%r = call <8 x i32> @llvm.ctpop.v8i32(<8 x i32> %a)", {"integer"}),
        ("%r = call float @expf(float %a)", {"math"}),
        ("%r = call i32 %f(ptr %a)", {"call"}),
        ("tail call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 64, i1 false)", {"memory_call"}),
        ("%r = srem i32 %a, 7", {"integer_divide"}),
        ("%r = getelementptr float, ptr %p, i64 %i", {"address"}),
        ("%r = sext i32 %a to i64", {"convert"}),
        ("%r = select i1 %c, float %a, float %b", {"compare"}),
        ("%r = xor i32 %a, 1", {"integer"}),
        ("call void @llvm.assume(i1 true)", set()),
    ],
)
def test_kinds(instruction: str, kinds: set[str]) -> None:
    found = columns(
        f"define i32 @main_compute_() {{\nentry:\n  {instruction}\n  fadd x\n  ret i32 0\n}}\n"
    )
    counted = {kind for kind in KINDS if found[f"total.{kind}"] > 0}
    assert counted == kinds | {"float_scalar", "branch"}


def test_a_vector_wider_than_a_register_is_several_instructions() -> None:
    text = _LOOPS.replace("16 x float", "32 x float")
    assert count(columns(text)["total.fma512"]) == pytest.approx(960, rel=0.01)


def test_of_a_call_of_a_library_the_code_says_nothing() -> None:
    """Was: a network with a copy of a tensor had no answer."""
    text = """
define internal i32 @main_compute_(ptr %a, ptr %b) {
entry:
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 64 %b, ptr align 64 %a, i64 4000, i1 false)
  ret i32 0
}
"""
    assert machine_code_columns(text) is None


@pytest.mark.parametrize(
    "text", ["", "nonsense", "define i32 @__tvm_ffi_main() {\nentry:\n  ret i32 0\n}\n"]
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="no function of a program"):
        machine_code_columns(text)
