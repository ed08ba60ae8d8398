"""Searches with everything real: every cost model, programs that crash and hang, a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from tests.tvm_helper.search.fixtures import train_into
from tests.tvm_helper.search.search_runs import few_are_drawn
from tvm_helper.measure.journal import read_journal

pytestmark = pytest.mark.tvm

TASK = "matmul:m=32,n=32,k=32"
SMALL = [
    "--device", "epyc-avx2-1c", "--force", "--trials-per-round", "2", "--set", "population=8",
    "--set", "search_threads=1", "--set", "timing.max_repeats=3", "--set", "queue_timeout_s=600",
    "--set", "build_timeout_s=600", "--set", "final_repeats=3",
]  # fmt: skip
USER_FILE = '''
from tvm import te, tirx

def calling(name):
    """A task whose result needs a function of the C library."""
    a = te.placeholder((64,), name="A")
    body = lambda i: a[i] + tirx.call_extern("float32", name)
    return te.create_prim_func([a, te.compute((64,), body, name=f"calls_{name}")])

good = te.create_prim_func([
    a := te.placeholder((16, 16), name="A"), te.compute((16, 16), lambda i, j: a[i, j] * 2.0)
])
crashes = calling("abort")
hangs = calling("pause")
'''


def searched(out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["search", "--out", str(out), *SMALL, "--json", *words]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


@pytest.fixture(autouse=True)
def _few_are_drawn() -> Iterator[None]:
    with few_are_drawn():
        yield


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("search") / "run")


@pytest.mark.exhaustive
@pytest.mark.parametrize("cost_model", ["cdmpp", "xgb"])
def test_a_search_with_every_cost_model_that_learns(
    cost_model: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuning = ["--finetune-every", "2"] if cost_model == "cdmpp" else []
    summary = searched(
        tmp_path / "out", capsys, "--task", TASK, "--trials", "6", "--cost-model", cost_model,
        "--model", str(run_folder), "--set", "machine_code=true", *tuning,
    )  # fmt: skip
    assert (summary["trials"], summary["failed"], summary["state"]) == (6, 0, "finished")
    (code,) = read_machine_code(tmp_path / "out")
    columns = np.stack(list(code.columns.values()))
    assert len(columns) == 6
    assert np.all(columns[:, MACHINE_CODE_NAMES.index("flops")] > 0)
    (task,) = summary["tasks"]
    assert task["predicted_s"] > 0, "the model predicts the table whoever searches"
    assert task["tuned_s"] > 0
    assert task["untuned_s"] > 0
    assert task["tuned_repeats"] == 3
    assert summary["seconds"]["cost_model"] > 0
    last = [entry for entry in read_journal(tmp_path / "out") if entry["kind"] == "round"][-2]
    assert (last["predicted_gain"] is not None) == (cost_model == "cdmpp")
    assert set(summary["xgb_shares"]) == ({0.0} if cost_model == "cdmpp" else set())
    assert result_of_matmul(Path(summary["module"]), task["symbol"]) < 1e-5


def result_of_matmul(module: Path, symbol: str) -> float:
    """Returns how far the saved function is from numpy's."""
    from tvm_helper.compat import tvm

    rng = np.random.default_rng(0)
    a, b = rng.random((2, 32, 32), np.float32)
    tensors = [tvm.runtime.tensor(value, tvm.runtime.cpu(0)) for value in (a, b, np.zeros_like(a))]
    tvm.runtime.load_module(str(module))[symbol](*tensors)
    return float(np.abs(tensors[2].numpy() - a @ b).max() / (a @ b).max())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_programs_that_crash_or_hang_cost_themselves_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(USER_FILE, encoding="utf-8")
    summary = searched(
        tmp_path / "out", capsys, "--task", str(tmp_path / "mine.py"), "--trials", "6",
        "--cost-model", "random", "--set", "run_timeout_s=1", "--trials-per-round", "2",
        "--model", "none",
    )  # fmt: skip
    names = {task["name"]: task for task in summary["tasks"]}
    assert names["mine.py:good"]["best_s"] > 0
    assert names["mine.py:good"]["tuned_s"] > 0
    found = {kind["name"]: kind["first_text"] for kind in summary["failures"]}
    assert found["run timeout"] == "killed after 1 s"
    assert found["runtime error (device)"] == "killed by SIGABRT"
    assert names["mine.py:crashes"]["tuned_s"] is None
    assert set(summary["untuned_tasks"]) == {
        names["mine.py:crashes"]["symbol"], names["mine.py:hangs"]["symbol"],
    }  # fmt: skip


@pytest.mark.exhaustive
def test_a_network_of_two_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from tvm import relax

    from tvm_helper.compat import tvm

    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 8 * 8, 10),
    ).eval()  # fmt: skip
    example = torch.randn(1, 3, 8, 8)
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(layers, (example,)), path)
    summary = searched(
        tmp_path / "out", capsys, "--network", str(path), "--trials", "3", "--cost-model",
        "random", "--trials-per-round", "1", "--model", "none",
    )  # fmt: skip
    operators = {task["operator"].partition("+")[0] for task in summary["tasks"]}
    assert operators == {"conv2d", "dense", "reshape"}
    assert [task["trials"] for task in summary["tasks"]] == [1, 1, 1]
    assert summary["end_to_end"]["tuned_s"] > 0
    assert summary["end_to_end"]["untuned_s"] > 0
    module = tvm.runtime.load_module(summary["module"])
    network = relax.VirtualMachine(module, tvm.cpu())
    (found,) = network["main"](tvm.runtime.tensor(example.numpy(), tvm.cpu()))
    with torch.no_grad():
        np.testing.assert_allclose(found.numpy(), layers(example).numpy(), atol=1e-5)
