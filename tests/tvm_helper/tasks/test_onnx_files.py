"""ONNX files as people have them: open sizes, shape arithmetic, operators that TVM lacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.onnx_files.cut import CutOperator, cut_out
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.cut_costs import CutCosts
from cdmpp.replay.graph import Operator, OperatorGraph
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import campaign_tasks
from tvm_helper.replay.graph import network_graph
from tvm_helper.search import worker
from tvm_helper.search.tasks import tasks_of_network
from tvm_helper.tasks.network_tasks import cut_operators, load_network, network_tasks
from tvm_helper.tasks.target import device_target

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.tvm
CPU, GPU = get_device("epyc-avx2-1c"), get_device("a100")
FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8
CONV = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
RELU = helper.make_node("Relu", ["c"], ["y"])
KERNEL = ("w", np.ones((16, 3, 3, 3), np.float32))


def save(
    path: Path,
    nodes: Sequence[Any],
    x: Sequence[int | str],
    weights: Sequence[tuple[str, Any]] = (),
    *,
    kind: int = FLOAT,
    others: Sequence[Any] = (),
) -> Path:
    """Writes a network from `x` (and others) to `y`."""
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", kind, x), *others],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(value, key) for key, value in weights],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), str(path))
    return path


def keys(path: Path, sizes: InputSizes | None = None) -> list[str]:
    found = network_tasks(load_network(path, sizes), device_target(CPU))
    assert not found.unknown
    return [task.workload_key for task in found.tasks]


def flattened() -> list[Any]:
    """A flatten as exporters write it: its shape is computed from that of its input."""
    return [
        CONV, helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Slice", ["s", "start", "end"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Cast", ["shape"], ["to"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["c", "to"], ["y"]),
    ]  # fmt: skip


NUMBERS = [(key, np.array(value)) for key, value in (("start", [0]), ("end", [1]), ("rest", [-1]))]


def test_open_sizes_are_set_and_the_network_is_the_fixed_one(tmp_path: Path) -> None:
    fixed = keys(save(tmp_path / "fixed.onnx", [CONV, RELU], [2, 3, 32, 32], [KERNEL]))
    path = save(tmp_path / "open.onnx", [CONV, RELU], ["N", 3, "H", "W"], [KERNEL])
    assert keys(path, InputSizes({"x": (2, 3, 32, 32)})) == fixed
    assert keys(path, InputSizes({"": (2, 3, 32, 32)})) == fixed
    path = save(tmp_path / "batch.onnx", [CONV, RELU], ["N", 3, 32, 32], [KERNEL])
    assert keys(path, InputSizes(batch=2)) == fixed


@pytest.mark.exhaustive
def test_a_campaign_a_search_and_a_comparison_take_the_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = save(tmp_path / "fixed.onnx", [CONV, RELU], [2, 3, 32, 32], [KERNEL])
    path = save(tmp_path / "open.onnx", [CONV, RELU], ["N", 3, "H", "W"], [KERNEL])
    target = device_target(CPU)
    given = ("x=2x3x32x32",)
    wanted = {
        task.workload_key for task in campaign_tasks(MeasureOptions(network=(str(fixed),)), target)
    }
    options = MeasureOptions(network=(str(path),), network_input=given)
    assert {task.workload_key for task in campaign_tasks(options, target)} == wanted
    tasks, _ = tasks_of_network(path, options.network_sizes, target)
    assert {task.task.workload_key for task in tasks} == wanted
    compiled_for = json.dumps({"kind": "llvm", "mcpu": "core-avx2"})
    module = worker._fused(str(path), given, None, compiled_for)
    assert "R.Tensor((2, 3, 32, 32)" in module["main"].script()
    words = ["compare", str(path), "--device", CPU.name, "--json", "--input"]
    assert main([*words, given[0]]) == 0
    (cell,) = json.loads(capsys.readouterr().out)
    assert cell["batch"] == 2
    assert main([*words, "x=4x3x32x32", "--batch", "4"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["batch"] == 4
    assert main(["compare", str(path), "--device", CPU.name]) == 3
    assert "--input x=1x3x224x224" in capsys.readouterr().err


def test_an_empty_file_has_no_operator(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"empty\.onnx: the ONNX model has no operator"):
        load_network(path)


def test_shape_arithmetic_is_computed(tmp_path: Path) -> None:
    path = save(tmp_path / "open.onnx", flattened(), ["N", 3, 32, 32], [KERNEL, *NUMBERS])
    plain = [CONV, helper.make_node("Reshape", ["c", "to"], ["y"])]
    shape = ("to", np.array([2, 16 * 32 * 32]))
    fixed = save(tmp_path / "fixed.onnx", plain, [2, 3, 32, 32], [KERNEL, shape])
    assert keys(path, InputSizes(batch=2)) == keys(fixed)


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        (["N", 3, 32, 32], r"'x' \(Nx3x32x32\).* e\.g\. --batch 1$"),
        (["N", 3, "H", 32], r"'x' \(Nx3xHx32\).* e\.g\. --input x=1x3x224x32$"),
    ],
)
def test_unknown_sizes_are_named_with_the_option_for_them(
    shape: list[Any], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "open.onnx", [CONV, RELU], shape, [KERNEL])
    with pytest.raises(DataError, match=advice):
        load_network(path, InputSizes())
    assert main(["predict", str(path), "--device", "a100", "-q"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (InputSizes({"z": (1, 3, 32, 32)}), "no input of that name; expected .* x=Nx3x32x32"),
        (InputSizes({"x": (1, 3, 32)}), "3 sizes; expected 4"),
        (
            InputSizes({"x": (1, 4, 32, 32)}),
            "got 4 for a size that is fixed in the file, which is 3",
        ),
        (InputSizes({"x": (1, 3, 32, 32)}, batch=2), "fixed in the file|got 2 for N"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: InputSizes, text: str, tmp_path: Path) -> None:
    path = save(tmp_path / "open.onnx", [CONV, RELU], ["N", 3, 32, 32], [KERNEL])
    with pytest.raises(UsageError, match=text):
        load_network(path, sizes)


def branching(condition: str) -> list[Any]:
    ends = [helper.make_tensor_value_info(op, FLOAT, [1, 16, 32, 32]) for op in ("Relu", "Sigmoid")]
    branches = [
        helper.make_graph([helper.make_node(end.name, ["c"], [end.name])], end.name, [], [end])
        for end in ends
    ]
    both = {"then_branch": branches[0], "else_branch": branches[1]}
    return [CONV, helper.make_node("If", [condition], ["y"], **both)]


def test_a_branch_that_is_chosen_beforehand_is_followed(tmp_path: Path) -> None:
    weights = [KERNEL, ("yes", np.array(True))]
    path = save(tmp_path / "if.onnx", branching("yes"), [1, 3, 32, 32], weights)
    plain = save(tmp_path / "plain.onnx", [CONV, RELU], [1, 3, 32, 32], [KERNEL])
    assert keys(path) == keys(plain)


def test_control_flow_is_said_not_to_be_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = helper.make_tensor_value_info("ask", TensorProto.BOOL, [])
    path = save(tmp_path / "if.onnx", branching("ask"), [1, 3, 32, 32], [KERNEL], others=[asked])
    (cut,) = cut_operators(load_network(path))
    assert (cut.kind, cut.flop) == ("If", None)
    words = ["predict", str(path), "--device", CPU.name, "--no-machine-code", "-q"]
    assert main(words) == 0
    assert "control flow (If) cannot be traced" in capsys.readouterr().out
    branch = branching("ask")[1]
    branch.input[0] = "ask"
    for graph in (one.g for one in branch.attribute):
        graph.node[0].input[0] = "x"
    alone = save(tmp_path / "alone.onnx", [branch], [1, 16, 32, 32], others=[asked])
    assert main(["predict", str(alone), "--device", CPU.name, "-q"]) == 3
    assert "control flow (If) cannot be traced" in capsys.readouterr().err


LSTM = helper.make_node("LSTM", ["x", "W", "R"], ["h"], hidden_size=32)
SCALE = [("s", np.float32(0.02)), ("z", np.int8(0))]
QCONV = helper.make_node(
    "QLinearConv", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], pads=[1, 1, 1, 1]
)
QMATMUL = helper.make_node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"])
LACKING: dict[str, Any] = {
    "LSTM": (
        [LSTM, helper.make_node("Relu", ["h"], ["y"])], [10, 4, 16], FLOAT,
        [("W", np.zeros((1, 128, 16), np.float32)), ("R", np.zeros((1, 128, 32), np.float32))],
        2 * 10 * 4 * 128 * (16 + 32), 10,
    ),
    "QLinearConv": (
        [QCONV], [1, 3, 32, 32], INT8, [*SCALE, ("w", np.zeros((16, 3, 3, 3), np.int8))],
        2 * 16 * 32 * 32 * 27, 1,
    ),
    "QLinearMatMul": (
        [QMATMUL], [64, 48], INT8, [*SCALE, ("w", np.zeros((48, 80), np.int8))],
        2 * 64 * 48 * 80, 1,
    ),
    "FusedMatMul": (
        [
            helper.make_node("FusedMatMul", ["x", "w"], ["m"], domain="com.microsoft", transB=1),
            helper.make_node("Relu", ["m"], ["y"]),
        ],
        [2, 64, 48], FLOAT, [("w", np.zeros((80, 48), np.float32))], 2 * 2 * 64 * 48 * 80, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", LACKING)
def test_an_operator_that_tvm_lacks_has_its_roofline(kind: str, tmp_path: Path) -> None:
    nodes, shape, dtype, weights, flop, steps = LACKING[kind]
    module = load_network(save(tmp_path / "net.onnx", nodes, shape, weights, kind=dtype))
    (cut,) = cut_operators(module)
    assert (cut.kind, cut.flop, cut.steps) == (kind, flop, steps)
    for device in (CPU, GPU):
        network = network_graph(module, device_target(device), name="net")
        assert len(network.graph.operators) == len(nodes)  # the rest is a kernel
        assert network.tasks.unknown == {kind: 1}
        (cost,) = CutCosts(network.cut, device).costs(network.graph).values()
        assert cost.source == "bound"
        assert 0 < cost.low_s <= cost.latency_s < cost.high_s
        if device is GPU:  # a CPU may have them in its caches
            assert device.mem_bandwidth_bytes_per_s
            assert cost.low_s >= cut.bytes / device.mem_bandwidth_bytes_per_s
        if steps > 1 and device is GPU:
            assert device.launch_s is not None
            assert cost.latency_s >= steps * device.launch_s


def test_an_operator_of_an_empty_tensor_has_no_known_work(tmp_path: Path) -> None:
    weights = LACKING["QLinearMatMul"][3]
    path = save(tmp_path / "net.onnx", [QMATMUL], [0, 48], weights, kind=INT8)
    (cut,) = cut_out(onnx.load(path), lambda node: True, "net")
    assert cut.flop is None


@pytest.mark.parametrize(("dtype", "peak"), [("float16", "tensor"), ("float8_e4m3fn", "fp8")])
def test_an_operator_is_bounded_by_the_peak_of_its_type(dtype: str, peak: str) -> None:
    cut = CutOperator("x", "Gemm", 1e15, 0.0, dtype=dtype, least_flop=1e15)
    graph = OperatorGraph("n", operators=(Operator("x", "x"),))
    (cost,) = CutCosts({"x": cut}, get_device("h100")).costs(graph).values()
    rate = getattr(get_device("h100"), f"peak_{peak}_flop_per_s")
    assert cost.low_s == cost.latency_s == pytest.approx(1e15 / rate)


def test_an_operator_of_unknown_work_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Frobnicate", ["x"], ["c"], domain="com.example"), RELU]
    path = save(tmp_path / "net.onnx", nodes, [4, 16])
    with pytest.raises(DataError, match="cannot import Frobnicate, and the shape of its result"):
        load_network(path)
