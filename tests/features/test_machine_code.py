"""Columns of assembly, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cdmpp.errors import DataError
from cdmpp.features.machine_code import (
    KINDS,
    MACHINE_CODE_NAMES,
    UNKNOWN_TRIPS,
    machine_code_columns,
)

#: out[i] += a[i] * b: 12 x 40 rows; a vector of 16 is multiplied and added, kept on the stack.
_LOOPS = """
__tvm_ffi_main:
	vdivps	%zmm0, %zmm1, %zmm2
	retq
.Lfunc_begin4:
main_compute_:
	xorl	%eax, %eax
.LBB4_1:
	movq	$-160, %rcx
.LBB4_2:
	vmovups	(%rdi,%rcx,4), %zmm1	# a row
	vfmadd231ps	(%rsi,%rcx,4), %zmm0, %zmm1
	vmovups	%zmm1, 64(%rsp)
	addq	$4, %rcx
	jne	.LBB4_2
	incl	%eax
	cmpl	$12, %eax
	jne	.LBB4_1
	vaddss	%xmm1, %xmm0, %xmm0
	callq	*(%rdx)
	retq
"""


def columns(assembly: str) -> dict[str, float]:
    found = machine_code_columns(assembly)
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
    # 480 runs of 16 multiplications and additions, one scalar addition
    assert count(found["flops"]) == pytest.approx(480 * 32 + 1, rel=0.01)
    assert found["hottest.depth"] == 2
    assert count(found["hottest.instructions"]) == pytest.approx(5, rel=0.01)
    assert found["hottest.flops_each"] == pytest.approx(32 / 5, abs=0.01)
    assert found["hottest.fma512"] == pytest.approx(1 / 5, abs=0.01)
    assert found["hottest.load"] == pytest.approx(2 / 5, abs=0.01)
    assert found["hottest.spill"] == pytest.approx(1 / 5, abs=0.01)
    assert found["hottest.share"] > 0.9
    assert count(found["static.call"]) == pytest.approx(1, rel=0.01)
    assert count(found["static.float_scalar"]) == pytest.approx(1, rel=0.01)


def test_functions_of_the_runtime_do_not_count() -> None:
    assert count(columns(_LOOPS)["static.divide"]) == 0


def test_a_bound_in_a_register_is_unknown() -> None:
    found = columns(_LOOPS.replace("cmpl	$12, %eax", "cmpl	%ebx, %eax"))
    assert found["unknown_loops"] == 0.5
    expected = 40 * UNKNOWN_TRIPS * 32 + 1
    assert count(found["flops"]) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("instruction", "kinds"),
    [
        ("vfmadd213ss	%xmm1, %xmm2, %xmm3", {"fma_scalar"}),
        ("vfmadd231ps	8(%rsp), %ymm2, %ymm3", {"fma256", "reload"}),
        ("vmulps	%xmm1, %xmm2, %xmm3", {"float128"}),
        ("vdivps	%zmm1, %zmm2, %zmm3", {"divide"}),
        ("vbroadcastss	4(%rax), %zmm3", {"broadcast", "load"}),
        ("vpermt2ps	%zmm1, %zmm2, %zmm3", {"shuffle"}),
        ("vgatherqps	(%rax,%zmm1), %ymm2 {%k1}", {"gather", "load"}),
        ("vmovups	%zmm1, (%rax,%rcx,4)", {"move", "store"}),
        ("movl	%eax, 12(%rsp)", {"integer", "spill"}),
        ("leaq	(%rax,%rcx,4), %rdx", {"address"}),
        ("kmovw	%eax, %k1", {"mask"}),
        ("callq	*(%rax)", {"call"}),
    ],
)
def test_kinds(instruction: str, kinds: set[str]) -> None:
    rest = "	vaddsd	%xmm0, %xmm0, %xmm0"
    assembly = f"main:\n	{instruction}\n{rest}\n{rest}\n"
    found = columns(assembly)
    static = {kind for kind in KINDS if found[f"static.{kind}"] > 0}
    assert static - {"float_scalar"} == kinds - {"float_scalar"}


@pytest.mark.parametrize("jump", ["jmp\tmemcpy@PLT", "callq\tmemcpy@PLT\n\tretq"])
def test_of_a_call_of_a_library_the_code_says_nothing(jump: str) -> None:
    """Was: a network with a copy of a tensor had no answer."""
    assert machine_code_columns(f"main_compute_:\n\tmovl\t$4000, %edx\n\t{jump}\n") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "__tvm_ffi_main:\n	vaddps	%zmm0, %zmm1, %zmm2\n",
        "main:\n	retq\n.Lend:\n",
    ],
)
def test_what_is_no_program_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="no function of a program"):
        machine_code_columns(text)
