"""Blocks and threads of kernels."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.programs.gpu_code.sizes import KernelSize, kernel_sizes
from tests.programs.gpu_programs import flat_block, tiled_copy, two_kernels
from tests.programs.programs import matmul, nest


def test_each_outermost_binding_is_a_kernel() -> None:
    assert kernel_sizes(two_kernels()) == [KernelSize(7, 48), KernelSize(5, 1)]
    assert kernel_sizes(tiled_copy(pad=0)) == [KernelSize(4, 32)]
    assert kernel_sizes(flat_block()) == [KernelSize(1, 32)]


def test_a_loop_of_the_host_launches_again() -> None:
    tree = two_kernels()
    again = replace(tree, body=nest([("k", 10, "serial"), ("l", 2, "serial")], tree.body))
    assert kernel_sizes(again) == [KernelSize(7, 48, 20), KernelSize(5, 1, 20)]


def test_a_program_of_a_cpu_has_none() -> None:
    assert kernel_sizes(matmul()) == []
