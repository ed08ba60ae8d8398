"""Networks to tasks: weights, operators, shapes; what cannot become a task is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.devices.registry import load_registry
from cdmpp.errors import DataError, DeviceError
from cdmpp.programs.compact_ast import CompactAst
from tests.tvm_helper.sampled import sample_target
from tvm_helper.tasks.network_tasks import load_network, network_tasks
from tvm_helper.tasks.sampling import first_valid_schedule
from tvm_helper.tasks.target import device_target
from tvm_helper.tir.features import featurise_modules

pytestmark = pytest.mark.tvm


class SmallNet(nn.Module):
    """Two equal convolutions, pooling, a dense layer and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.dense = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.first(x))))
        x = nn.functional.max_pool2d(x, 2)
        return torch.softmax(self.dense(torch.flatten(x, 1)), -1)


@pytest.fixture(scope="module")
def pt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "small.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        program = torch.export.export(SmallNet().eval(), (torch.zeros(1, 8, 8, 8),))
        torch.export.save(program, path)
    return path


def onnx_file(path: Path, nodes: Callable[[Any], list[Any]], shape: list[Any]) -> Path:
    """Writes an ONNX network from `x` to `y`, both of that shape."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper = onnx.helper
    graph = helper.make_graph(
        nodes(helper),
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return path


def test_a_scatter_is_a_task(tmp_path: Path) -> None:
    """A traceback: the only block of its program is not named root."""

    def nodes(helper: Any) -> list[Any]:
        places = helper.make_tensor("", 7, [1, 4], [3] * 4)
        values = helper.make_tensor("", 1, [1, 4], [1] * 4)
        return [
            helper.make_node("Constant", [], ["i"], value=places),
            helper.make_node("Constant", [], ["u"], value=values),
            helper.make_node("ScatterElements", ["x", "i", "u"], ["y"], axis=0),
        ]

    path = onnx_file(tmp_path / "scatter.onnx", nodes, [8, 4])
    (task,) = network_tasks(load_network(path), sample_target("llvm")).tasks
    assert task.operator == "scatter_elements_generic"


def test_an_exported_program_becomes_weighted_tasks(pt2: Path) -> None:
    found = network_tasks(load_network(pt2), sample_target("llvm"))
    assert not found.unknown
    by_operator = {task.operator: task for task in found.tasks}
    conv = by_operator["conv2d+elementwise"]
    assert conv.weight == 2  # the same computation twice
    assert conv.shapes == ("1x8x8x8", "8x8x3x3", "1x8x8x8")
    assert by_operator["dense+add"].shapes[-1] == "1x10"
    assert {"max_pool", "softmax"} <= by_operator.keys()
    assert found.tasks[0] is conv  # most calls first
    assert sum(task.weight for task in found.tasks) == 6


def test_a_batch_norm_behind_a_convolution_is_folded_into_its_weights(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network.eval(), (torch.zeros(1, 8, 8, 8),))
        torch.export.save(program, tmp_path / "norm.pt2")
    (task,) = network_tasks(load_network(tmp_path / "norm.pt2"), sample_target("llvm")).tasks
    assert task.operator.startswith("conv2d+add")
    assert not any(word in task.name for word in ("subtract", "divide", "multiply"))


def test_an_exported_program_that_branches_is_refused(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            found = torch.cond(x.sum() > 0, lambda y: y @ y, lambda y: y + 1, (x,))
            return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Branches().eval(), (torch.zeros(64, 64),))
        torch.export.save(program, tmp_path / "cond.pt2")
    with pytest.raises(DataError, match=r"control flow \(torch.cond\) cannot be traced; export"):
        load_network(tmp_path / "cond.pt2")


def test_an_onnx_file_becomes_tasks(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "net.onnx",
        lambda helper: [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        [4, 16],
    )
    found = network_tasks(load_network(path), sample_target("llvm"))
    assert [task.operator.split("+")[-1] for task in found.tasks].count("softmax") == 1
    assert not found.unknown


def test_an_operator_that_tvm_cannot_import_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = onnx_file(
        tmp_path / "odd.onnx",
        lambda helper: [helper.make_node("FrobnicateAll", ["x"], ["y"], domain="")],
        [4, 16],
    )
    with pytest.raises(DataError, match="FrobnicateAll"):
        load_network(path)
    path = onnx_file(
        tmp_path / "shapes.onnx", lambda helper: [helper.make_node("MatMul", ["x", "x"], ["y"])],
        [4, 16],
    )  # fmt: skip
    with pytest.raises(DataError, match="MatMul"):  # of which TVM's importer prints a line first
        load_network(path)
    assert capsys.readouterr() == ("", "")


def test_a_call_to_a_library_is_named_not_counted_as_nothing() -> None:
    from tvm import relax
    from tvm.script import relax as R  # noqa: N812

    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.exp(x))
            z = builder.emit_output(
                relax.call_dps_packed("my.library.solve", y, R.Tensor((8, 8), "float32"))
            )
        builder.emit_func_output(z)
    found = network_tasks(builder.get(), sample_target("llvm"))
    assert found.unknown == {"my.library.solve": 1}
    assert [task.operator for task in found.tasks] == ["elementwise"]


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_network(tmp_path / "missing.onnx")
    text = tmp_path / "network.txt"
    text.write_text("hello")
    with pytest.raises(DataError, match="unknown kind of network"):
        load_network(text)
    broken = tmp_path / "broken.pt2"
    broken.write_text("hello")
    with pytest.raises(DataError, match="not an exported program"):
        load_network(broken)


@pytest.mark.parametrize("kind", ["llvm", "cuda"])
def test_the_first_valid_sample_is_reproducible_and_has_features(pt2: Path, kind: Any) -> None:
    target = sample_target(kind)
    task = next(
        task
        for task in network_tasks(load_network(pt2), target).tasks
        if task.operator.startswith("dense")
    )
    schedules = [first_valid_schedule(task.module["main"], target, seed=0) for _ in range(2)]
    assert schedules[0] is not None
    assert str(schedules[0].trace) == str(schedules[1].trace)
    (ast,) = featurise_modules([schedules[0].mod], target)
    assert isinstance(ast, CompactAst)
    assert ast.valid


def test_every_cpu_and_gpu_of_the_registry_has_a_target() -> None:
    kinds = {"cpu": {"llvm"}, "gpu": {"cuda", "rocm"}}
    for name, spec in load_registry().items():
        if spec.kind in kinds and spec.name != "b60":
            assert device_target(spec).kind.name in kinds[spec.kind], name
    for name in ("hl-100", "b60"):
        with pytest.raises(DeviceError, match="no target"):
            device_target(load_registry()[name])


def test_a_target_has_the_threads_and_vectors_of_the_label() -> None:
    target = device_target(load_registry()["epyc-avx512-1c"])
    assert int(target.attrs["num-cores"]) == 1
    assert str(target.attrs["mcpu"]) == "skylake-avx512"
    assert str(device_target(load_registry()["t4"]).attrs["arch"]) == "sm_75"
