"""Explanations: leaves beside the program's lines, and programs that it might be instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import ReplayError
from tests.tvm_helper.sampled import WORKLOADS, sample_schedules
from tests.tvm_helper.search.fixtures import DEVICE, train_into
from tvm_helper.compat import Schedule, tvm
from tvm_helper.predict.counterfactuals import counterfactuals
from tvm_helper.predict.explain import explain_programs
from tvm_helper.predict.painted import painted_script
from tvm_helper.predict.predictor import Predictor
from tvm_helper.tasks.build import arguments_of, random_tensors
from tvm_helper.tasks.program_file import NamedProgram, read_programs
from tvm_helper.tir.features import featurise_modules

pytestmark = pytest.mark.tvm

PROGRAM = """
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def dense_relu(A: T.Buffer((64, 48), "float32"), B: T.Buffer((48, 32), "float32"),
               D: T.Buffer((64, 32), "float32")):
    C = T.sblock_alloc_buffer((64, 32), "float32")
    for i, j, k in T.grid(64, 32, 48):
        with T.sblock("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(64, 32):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("explain") / "run")


@pytest.fixture(scope="module")
def program_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs") / "dense_relu.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture(scope="module")
def program(program_file: Path) -> NamedProgram:
    return read_programs(program_file)[0]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_leaf_has_the_line_of_its_store(name: str) -> None:
    module = sample_schedules(WORKLOADS[name](), "llvm", 1, seed=3)[0].mod
    (ast,) = featurise_modules([module], None)
    assert not isinstance(ast, ReplayError)
    script = painted_script(module, len(ast.leaf_features))
    assert script is not None
    lines = [line for line in script.lines if line.leaf is not None]
    assert sorted(line.leaf or 0 for line in lines) == list(range(1, len(ast.leaf_features) + 1))
    assert all("] = " in line.text for line in lines)
    assert None not in script.blocks


def test_counterfactuals_compute_the_same(program: NamedProgram) -> None:
    found = counterfactuals(program.module, "matmul", get_device("epyc-avx2-2c"))
    assert {"vectorised", "unrolled", "tiled", "parallel"} <= {one.name for one in found}
    results = []
    for module in (program.module, *(one.module for one in found)):
        tensors = random_tensors(arguments_of(module), tvm.cpu(0))
        tvm.compile(module, target="llvm").jit()["main"](*tensors)
        results.append(tensors[-1].numpy())
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4)


def test_a_program_without_blocks_has_no_counterfactuals(run_folder: Path) -> None:
    from tvm_helper.tir.loop_tree import lowering_passes

    module = sample_schedules(WORKLOADS["matmul"](), "llvm", 1, seed=0)[0].mod
    (one,) = explain_programs(
        Predictor(run_folder, [DEVICE]), [NamedProgram("lowered", lowering_passes()(module))]
    )
    assert one.row()["no_counterfactual"] == "it has no blocks that TVM can schedule"


def test_shares_add_up_and_the_sum_takes_the_time(
    run_folder: Path, program_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    arguments = ["explain", "--program", str(program_file), "--model", str(run_folder)]
    arguments += ["--device", DEVICE, "--machine-code", "--html", str(page)]
    assert main([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["shares_by"] == "model"
    assert sum(leaf["share"] for leaf in row["leaves"]) == pytest.approx(1, rel=1e-5)
    assert max(row["leaves"], key=lambda leaf: leaf["share"])["leaf"] == 2
    assert row["machine_code"]["flop"] == pytest.approx(2 * 64 * 32 * 48, rel=0.1)
    assert [line["leaf"] for line in row["lines"] if line["leaf"]] == [1, 2, 3]
    assert 0 < row["counterfactuals"][0]["low_s"] < row["counterfactuals"][0]["latency_s"]
    html = page.read_text()
    assert "T.grid(64, 32, 48)" in html
    assert "<script" not in html
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "C[vi, vj] + A[vi, vk] * B[vk, vj]" in text
    assert "predicted after a change" in text
    assert "compiled: " in text


def test_what_a_change_is_said_to_be_is_what_it_is(program: NamedProgram) -> None:
    found = counterfactuals(program.module, "matmul", get_device("epyc-avx512-1c"))
    kinds: dict[str, set[int]] = {}
    for one in found:
        schedule = Schedule(one.module)
        loops = [schedule.get(loop) for loop in schedule.get_loops(schedule.get_sblock("matmul"))]
        kinds.setdefault(one.name, set()).update(int(loop.kind) for loop in loops)
    assert 2 in kinds["vectorised"]
    assert 3 in kinds["unrolled"]
    assert kinds["tiled"] == {0}
    assert "parallel" not in kinds  # the label has one thread


def test_a_network_is_explained_kernel_by_kernel(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tvm_helper.tasks.test_network_tasks import onnx_file

    network = onnx_file(
        tmp_path / "net.onnx",
        lambda helper: [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        ],
        [4, 16],
    )
    arguments = ["explain", "--network", str(network), "--model", str(run_folder)]
    assert main([*arguments, "--device", DEVICE, "--kernels", "1", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    kernels = found[0]["kernels"]
    assert sum(one["share"] for one in kernels) == pytest.approx(1)
    assert kernels[0]["explanation"]["lines"]
    assert all(one["explanation"] is None for one in kernels[1:])
    assert main([*arguments, "--device", DEVICE, "--kernels", "0"]) == 2
    assert "--kernels 0: expected at least 1" in capsys.readouterr().err
