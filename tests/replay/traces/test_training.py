"""Kernel models by name, training presets and Tenset networks."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cdmpp.analytic.embedding.gpu import estimate
from cdmpp.analytic.embedding.shapes import EmbeddingShape
from cdmpp.analytic.kernels.data_movement import concat_s, host_copy_s
from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.analytic.kernels.work import operator_flop, product_sizes
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.replay.engine import replay
from cdmpp.replay.kernels import torch_kernel
from cdmpp.replay.tenset_network import read_tenset_network
from cdmpp.replay.traces.dlrm import (
    dlrm_iteration,
    iteration_graph,
    load_dlrm,
    walked_iteration,
)
from tests.paths import ROOT

CONFIGS = ROOT / "configs" / "replay"


@pytest.fixture(scope="module")
def v100() -> KernelTimes:
    return KernelTimes(get_device("v100"))


def test_kernels_are_those_of_the_analytic_models(v100: KernelTimes) -> None:
    shape = EmbeddingShape(2048, 1000000, 8, 100, 64, 4)
    sizes = {"batch": 2048, "rows": 1000000, "tables": 8, "lookups": 100, "width": 64,
             "rows_per_block": 4}  # fmt: skip
    assert v100.latency_s(KernelCall("embedding", sizes)) == pytest.approx(
        estimate(shape, v100.rates).latency_s
    )
    assert v100.latency_s(KernelCall("concat", {"bytes": 1e8})) == concat_s(1e8, v100.rates)
    assert v100.latency_s(KernelCall("memcpy", {"bytes": 1e8})) == host_copy_s(1e8, v100.rates)
    small, large = (
        v100.latency_s(KernelCall("gemm", {"batch": 1, "m": 512, "n": 512, "k": k}))
        for k in (256, 4096)
    )
    assert 0 < small < large
    # A kernel of one element still takes a kernel's time.
    assert v100.latency_s(KernelCall("relu", {"elements": 1})) > 1e-6
    with pytest.raises(UsageError, match="kernel 'sort' has no model; expected one of gemm"):
        v100.latency_s(KernelCall("sort", {"elements": 1}))
    for bad in ("gemm", "embedding", "tril", "relu"):
        with pytest.raises(DataError, match=f"kernel '{bad}': a size is missing"):
            v100.latency_s(KernelCall(bad, {"batch": 1}))


@pytest.mark.parametrize("name", ["dlrm-default", "dlrm-mlperf"])
def test_presets(v100: KernelTimes, name: str) -> None:
    preset = load_dlrm(CONFIGS / f"{name}.yaml")
    operators = dlrm_iteration(preset)
    names = [one.name for one in operators]
    assert (
        names.count("linear")
        == names.count("AddmmBackward0")
        == (len(preset.bottom) - 1 + len(preset.top))
    )
    graph = iteration_graph(operators, v100, name=name, device="v100")
    walked = walked_iteration(operators, v100)
    assert sum(len(one.calls) for one in walked) == len(graph.operators)
    kernels_us = sum(k.time_us or 0.0 for one in walked for k in one.kernels)
    assert replay(graph).total_s == pytest.approx(1e-6 * kernels_us)
    assert names.index("LookupFunction") < names.index("index") < names.index("Optimizer.step")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("bottom: [512, 512, 32]", "expected the same width"),
        ("top: [16]", "top that ends in 1"),
        ("loss: hinge", "expected mse or bce"),
        ("lookups: 0", "below 1"),
        ("colour: red", "colour"),
    ],
)
def test_bad_presets(tmp_path: Path, change: str, words: str) -> None:
    lines = (CONFIGS / "dlrm-default.yaml").read_text().splitlines()
    name = change.partition(":")[0]
    kept = [line for line in lines if not line.startswith(f"{name}:")]
    path = tmp_path / "p.yaml"
    path.write_text("\n".join([*kept, change]))
    with pytest.raises(UsageError, match=words):
        load_dlrm(path)


@pytest.mark.parametrize(
    ("name", "shapes", "sizes"),
    [
        ("linear", [(4, 8, 16), (32, 16), (32,)], (1, 32, 32, 16)),
        ("mm", [(4, 8), (8, 3)], (1, 4, 3, 8)),
        ("addmm", [(3,), (4, 8), (8, 3)], (1, 4, 3, 8)),
        ("bmm", [(5, 4, 8), (5, 8, 3)], (5, 4, 3, 8)),
        ("matmul", [(5, 4, 8), (8, 3)], (1, 20, 3, 8)),
        ("matmul", [(4, 8), (5, 8, 3)], None),
        ("linear", [(16,), (32, 16)], (1, 1, 32, 16)),
        ("mm", [(4, 8), (7, 3)], None),
        ("relu", [(4, 8)], None),
    ],
)
def test_products(
    name: str, shapes: list[tuple[int, ...]], sizes: tuple[int, int, int, int] | None
) -> None:
    assert product_sizes(name, shapes) == sizes
    if sizes is not None:
        assert operator_flop(name, shapes) == 2.0 * sizes[0] * sizes[1] * sizes[2] * sizes[3]


def test_framework_operators_have_kernels() -> None:
    assert torch_kernel("relu_", ("4x8",)) == KernelCall("relu", {"elements": 32.0})
    assert torch_kernel("softmax", ("4x8",)) == KernelCall("softmax", {"rows": 4.0, "cols": 8})
    assert torch_kernel("cat", ("4x8", "4x2")) == KernelCall("concat", {"bytes": 160.0})
    assert torch_kernel("sort", ("4x8",)) is None


NETWORK = "bert_tiny,[(1,128)]"


def test_tenset_networks_have_weights_and_no_edges(tmp_path: Path) -> None:
    folder = default_dataset_dir() / "network_info"
    found = read_tenset_network(folder / f"(({NETWORK}),llvm).task.pkl.gz", device="xeon-avx2-1c")
    weights = load_tasks(folder).network_tasks()[NETWORK]
    assert len(found.graph.operators) == sum(weight for _, _, weight in weights)
    assert not found.graph.has_edges
    assert all(not one.after and one.task in found.tasks for one in found.graph.operators)
    assert any(one.flop for one in found.graph.operators)
    with pytest.raises(DataError, match="no such file"):
        read_tenset_network(tmp_path / "((a),llvm).task.pkl")
    with pytest.raises(DataError, match="expected \\(\\(NETWORK\\),KIND\\)"):
        read_tenset_network(tmp_path / "tasks.pkl")
    empty = tmp_path / "((resnext_50,[(1,3,224,224)]),cuda).task.pkl"
    empty.write_bytes(pickle.dumps(([], []), protocol=4))
    with pytest.raises(DataError, match="no tasks in it"):
        read_tenset_network(empty)
