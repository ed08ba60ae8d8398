"""What TVM makes of programs by default."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.programs.compact_ast import CompactAst
from tests.tvm_helper.sampled import WORKLOADS
from tvm_helper.compat import relax, tvm
from tvm_helper.tasks.default_schedule import default_schedule
from tvm_helper.tasks.script import read_script
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.features import featurise_modules

pytestmark = pytest.mark.tvm


def unscheduled(name: str) -> Any:
    return tvm.IRModule({"main": WORKLOADS[name]()})


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_cpu_gets_the_loops_as_they_stand(name: str) -> None:
    module = unscheduled(name)
    target = device_target(get_device("xeon-avx2-1c"))
    tvm.ir.assert_structural_equal(default_schedule(module, target).mod, module)


@pytest.mark.parametrize("device", ["v100", "mi50"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_gpu_gets_a_kernel_that_fits_it(name: str, device: str) -> None:
    target = device_target(get_device(device))
    module = unscheduled(name)
    scheduled = default_schedule(module, target).mod
    tvm.ir.assert_structural_equal(module, unscheduled(name))
    (ast,) = featurise_modules([scheduled], target)
    assert isinstance(ast, CompactAst)
    assert ast.valid, ast.reject_reason
    assert "threadIdx.x" in scheduled.script()


def test_a_whole_network_is_scheduled_as_relax_does_it() -> None:
    """The kernels are those of the pipeline that `tvm.compile` runs on a relax module."""
    target = device_target(get_device("t4"))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64, 128), "float32"))
    w = relax.Var("w", relax.TensorType((128, 32), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            result = builder.emit_output(relax.op.nn.relu(product))
        builder.emit_func_output(result)
    passes = relax.backend.cuda.legalize_passes(target)
    with target:
        fused = tvm.transform.Sequential(passes[:-1])(builder.get())
        whole = tvm.transform.Sequential(passes)(builder.get())
    names = [one.name_hint for one, function in fused.functions_items()]
    (name,) = (name for name in names if name != "main")
    ours = default_schedule(tvm.IRModule({"main": fused[name]}), target).mod["main"]
    tvm.ir.assert_structural_equal(ours, whole[name], map_free_vars=True)


def test_what_no_rule_fits_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relax.backend.cuda, "legalize_passes", lambda _: [lambda module: module])
    with pytest.raises(DataError, match="no TVM default rule"):
        default_schedule(unscheduled("matmul"), device_target(get_device("v100")))


def test_a_store_in_no_block_is_named() -> None:
    loops = """
@T.prim_func(s_tir=True)
def double(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in range(64):
        B[i] = A[i] * T.float32(2)
"""
    target = device_target(get_device("v100"))
    with pytest.raises(
        DataError, match=r"its store to B is outside of all blocks; write it inside of T\.sblock"
    ):
        default_schedule(read_script(loops)[0].module, target)
