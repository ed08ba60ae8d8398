"""GPU programs compiled without a GPU: their source, their kernels, and refusals."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from cdmpp.devices.registry import get_device
from cdmpp.errors import DeviceError, ReplayError, UsageError
from tests.programs.ansor.small_dags import matmul_relu

pytestmark = pytest.mark.tvm


def _has_nvrtc() -> bool:
    return find_spec("nvidia") is not None and find_spec("nvidia.cuda_nvrtc") is not None


def scheduled(vector: int) -> Any:
    """Returns a product whose 64 x 32 results are made by 64 threads, written in such vectors."""
    from tvm_helper.compat import Schedule, te
    from tvm_helper.tir.prim_func import build_te

    schedule = Schedule(te.create_prim_func(build_te(matmul_relu())))
    product, relu = schedule.get_sblock("C"), schedule.get_sblock("D")
    i, j = schedule.get_loops(relu)
    threads, rest = schedule.split(i, [64, None])
    outer, inner = schedule.split(j, [None, vector])
    blocks, outer = schedule.split(outer, [2, None])
    schedule.reorder(blocks, threads, rest, outer, inner)
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.vectorize(inner)
    schedule.compute_at(product, threads)
    schedule.set_scope(product, 0, "local")
    return schedule.mod


@pytest.mark.parametrize(("vector", "is_one_access"), [(4, True), (8, False)])
def test_a_source_has_vectors_that_exist(vector: int, is_one_access: bool):
    from tvm_helper.tasks.gpu_code import cuda_source
    from tvm_helper.tasks.target import device_target

    source = cuda_source(scheduled(vector), device_target(get_device("v100")))
    kernels = source.partition('extern "C"')[2]
    assert "main_kernel" in kernels
    assert ("float4" in kernels) == is_one_access
    assert "longlong" not in kernels


def test_devices_whose_code_cannot_be_read_are_refused():
    from tvm_helper.tasks.gpu_code import gpu_launches

    for label in ("k80", "h100", "epyc-avx512-1c"):
        with pytest.raises(DeviceError):
            gpu_launches(scheduled(4), get_device(label))


@pytest.mark.skipif(_has_nvrtc(), reason="NVIDIA's compiler is here")
def test_without_the_compiler_one_sentence_says_how_to_get_it():
    from tvm_helper.tasks.gpu_code import gpu_launches

    with pytest.raises(UsageError, match=r"pip install 'cdmpp\[nvrtc\]'"):
        gpu_launches(scheduled(4), get_device("v100"))


@pytest.mark.skipif(not _has_nvrtc(), reason="needs cdmpp[nvrtc]")
@pytest.mark.parametrize("label", ["v100", "t4", "a100"])
def test_kernels_are_compiled_and_fill_the_device(label: str):
    from tvm_helper.tasks.gpu_code import gpu_launches

    (launch,) = gpu_launches(scheduled(4), get_device(label))
    assert (launch.blocks, launch.threads) == (2, 64)
    assert 16 <= launch.kernel.registers <= 255
    assert 0 < launch.occupancy <= 1
    assert launch.cores == get_device(label).core_count
    assert {4, 16} >= set(launch.kernel.width[launch.kernel.width > 0].tolist())


@pytest.mark.skipif(not _has_nvrtc(), reason="needs cdmpp[nvrtc]")
def test_a_source_that_is_none_is_refused():
    from tvm_helper.tasks.nvrtc import cubin_of

    with pytest.raises(ReplayError, match="NVRTC refuses the source"):
        cubin_of("float f( {", "sm_70")
