"""A campaign with TVM: sampled tasks, a user's file with programs that crash and hang, a replay."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.cli.main import main
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.extraction.extracted import read_table
from cdmpp.datasets.metaschedule.source import TuningDatabase
from cdmpp.errors import DataError, UsageError
from cdmpp.predict.estimates import load_trained
from cdmpp.pretrained import model_folder
from cdmpp.processes.serve import ProgramError
from tests.tvm_helper.measure.campaigns import FILES, small_dataset
from tvm_helper.measure import worker
from tvm_helper.measure.campaign import run_campaign
from tvm_helper.measure.journal import read_journal
from tvm_helper.measure.options import MeasureOptions, TimingOptions
from tvm_helper.measure.sources import campaign_tasks
from tvm_helper.measure.tables import read_task
from tvm_helper.measure.tasks import named_function

pytestmark = pytest.mark.tvm

NAMED = "matmul:m=16,n=16,k=16"
USER_FILE = '''
from tvm import te, tirx

def calling(name):
    """A task whose result needs a function of the C library."""
    a = te.placeholder((8,), name="A")
    body = lambda i: a[i] + tirx.call_extern("float32", name)
    return te.create_prim_func([a, te.compute((8,), body, name=f"calls_{name}")])

crashes = calling("abort")
hangs = calling("pause")
'''


COLUMNS = {
    "programs": ["program_id", "source", "workload_key", "target_kind", "leaf_features",
                 "leaf_extra", "tree"],
    "measurements": ["program_id", "error_code"],
}  # fmt: skip


def rows(folder: Path, table: str) -> dict[str, dict[str, Any]]:
    return {
        row["program_id"]: row
        for part in read_table(folder, table, COLUMNS[table])
        for row in part.to_pylist()
    }


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one campaign with all of it."""
    place = tmp_path_factory.mktemp("campaign")
    (place / "mine.py").write_text(USER_FILE, encoding="utf-8")
    words = [
        "measure", "--out", str(place / "out"), "--device", "epyc-avx2-1c", "--force",
        "--per-task", "1", "--task", NAMED, str(place / "mine.py"), "--replay",
        str(small_dataset(place / "tenset")),
        "--set", "run_timeout_s=1", "--set", "build_timeout_s=300", "--set", "timing.budget_s=0.2",
        "--json", "-q",
    ]  # fmt: skip
    assert main(words) == 0
    return place / "out"


def by_task(out: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in read_journal(out):
        if entry["kind"] == "measured":
            found.setdefault(read_task(out, entry["task"])["name"], []).append(entry)
    return found


@pytest.mark.exhaustive
@pytest.mark.slow
def test_programs_that_crash_or_hang_cost_themselves_only(out: Path) -> None:
    found = by_task(out)
    crashed, hung = found.pop("mine.py:crashes"), found.pop("mine.py:hangs")
    assert {(e["error_code"], e["error"]) for e in crashed} == {(4, "killed by SIGABRT")}
    assert {(e["error_code"], e["error"]) for e in hung} == {(7, "killed after 1 s")}
    assert len(found) == 1 + len(FILES)
    for name, entries in found.items():
        assert [entry["error_code"] for entry in entries] == [0] * len(entries), name
        assert all(cost > 0 for entry in entries for cost in entry["costs_s"])


def test_the_doctor_names_both(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {kind["name"] for kind in report["failures"]} == {
        "runtime error (device)", "run timeout",
    }  # fmt: skip
    assert report["threads"] == 1
    assert report["drift"]["n"] >= 1
    assert report["noise_floor"]["n"] >= 1
    assert main(["doctor", str(out)]) == 0
    assert "killed by SIGABRT" in capsys.readouterr().out


def test_the_dataset_holds_both_sources(out: Path) -> None:
    samples = load_samples(out, None)
    good = [row for row in rows(out, "measurements").values() if row["error_code"] == 0]
    assert len(samples) == len(good) > len(FILES)
    assert {row["source"] for row in rows(out, "programs").values()} == {"metaschedule", "tenset"}


def test_sampled_programs_are_those_of_a_metaschedule_database(out: Path, tmp_path: Path) -> None:
    from tvm.s_tir import meta_schedule

    from tvm_helper.compat import Target, s_tir, tvm
    from tvm_helper.measure.tasks import named_function
    from tvm_helper.tasks.metaschedule import featurise_traces

    folder = tmp_path / "database"
    folder.mkdir()
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    name, function = named_function(NAMED)
    module = tvm.IRModule({"main": function})
    entries = by_task(out)[name]
    schedules = {
        program["program_id"]: program["schedule"]
        for entry in read_journal(out)
        if entry["kind"] == "drawn"
        for program in entry["programs"]
    }
    target = Target(json.loads(json.loads((out / "campaign.json").read_text())["target"]))
    for entry in entries:
        schedule = s_tir.Schedule(module, debug_mask="none")
        s_tir.schedule.Trace.apply_json_to_schedule(schedules[entry["program_id"]], schedule)
        info = meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)
        workload = database.commit_workload(module)
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, workload, [1e-3], target, info)
        )
    extract(TuningDatabase(folder, "epyc-avx2-1c", featurise_traces), tmp_path / "imported", jobs=1)
    imported, measured = rows(tmp_path / "imported", "programs"), rows(out, "programs")
    assert set(imported) == {entry["program_id"] for entry in entries}
    for identity, row in imported.items():
        for column in ("workload_key", "target_kind", "leaf_features", "leaf_extra", "tree"):
            same = np.array_equal(row[column], measured[identity][column])
            assert same, f"{column} of {identity}"


def test_tasks_of_a_network_carry_its_name_and_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tvm_helper.compat import llvm_target
    from tvm_helper.measure.options import MeasureOptions
    from tvm_helper.measure.sources import campaign_tasks

    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(16, 16))

        def forward(self, x: Any) -> Any:
            return torch.relu(torch.relu(x @ self.weight) @ self.weight)

    path = tmp_path / "twice.pt2"
    torch.export.save(torch.export.export(Twice().eval(), (torch.ones(4, 16),)), path)
    tasks = campaign_tasks(MeasureOptions(network=(str(path),)), llvm_target())
    assert [task.networks for task in tasks] == [(("twice", 2),)]
    assert tasks[0].source == "metaschedule"
    assert tasks[0].operator.startswith("dense")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_chooses_what_is_measured(tmp_path: Path) -> None:
    task, device = "matmul:m=24,n=40,k=56", "epyc-avx2-1c"
    common = MeasureOptions(
        device=device,
        force=True,
        sample=(task,),
        timing=TimingOptions(min_repeats=1, budget_s=0.05),
    )
    run_campaign(replace(common, per_task=4), tmp_path / "random")
    again = replace(common, sample=(), tasks_of=(str(tmp_path / "random"),), least_flops=1e5)
    run_campaign(replace(again, per_task=2, choose_from=2), tmp_path / "chosen")
    drawn = load_samples(tmp_path / "random", cache_dir=tmp_path / "cache")
    chosen = load_samples(tmp_path / "chosen", cache_dir=tmp_path / "cache")
    predicted = load_trained(model_folder("pretrained")).model.predict(drawn)
    names = drawn.programs.program_id[drawn.program][np.argsort(predicted)]
    assert len(names) == 4
    assert set(chosen.programs.program_id) == set(names[:2])


@pytest.mark.exhaustive
def test_tasks_of_a_campaign_are_bounded(tmp_path: Path) -> None:
    names = ("matmul:m=8,n=8,k=8", "matmul:m=8,n=8,k=16", "matmul:m=8,n=8,k=32")
    first = MeasureOptions(
        device="epyc-avx2-1c", force=True, sample=names, per_task=1,
        timing=TimingOptions(min_repeats=1, budget_s=0.05),
    )  # fmt: skip
    run_campaign(first, tmp_path / "first")
    again = replace(first, sample=(), tasks_of=(str(tmp_path / "first"),))
    wide = [task.name for task in campaign_tasks(replace(again, least_flops=2e3), None)]
    assert wide == list(names[1:])
    few = [campaign_tasks(replace(again, most_tasks=2, seed=seed), None) for seed in range(8)]
    assert {len(tasks) for tasks in few} == {2}
    assert len({tuple(task.key for task in tasks) for tasks in few}) > 1
    with pytest.raises(DataError, match="least_flops"):
        campaign_tasks(replace(again, least_flops=1e12), None)
    with pytest.raises(DataError, match="campaign"):
        campaign_tasks(replace(again, tasks_of=(str(tmp_path),)), None)


def test_each_task_draws_for_itself(tmp_path: Path) -> None:
    from cdmpp.devices.registry import get_device
    from tvm_helper.measure.worker import _draw
    from tvm_helper.tasks.target import device_target

    target = device_target(get_device("epyc-avx2-1c"))
    names = [f"dense:m={16 * number},n=64,k=64,relu=1" for number in range(1, 9)]
    tasks = campaign_tasks(MeasureOptions(device="epyc-avx2-1c", sample=tuple(names)), target)
    kinds: list[bool] = []
    again: list[bool] = []
    for found in (kinds, again):
        for task in tasks:
            path = tmp_path / f"{task.key}.json"
            content = {"workload_key": task.workload_key, **task.content}
            path.write_text(json.dumps(content), encoding="utf-8")
            request = {"task": str(path), "target": str(target), "scratch": str(tmp_path),
                       "seed": 0, "count": 1, "choose_from": 1}  # fmt: skip
            (program,) = _draw(request, lambda: None)["programs"]
            found.append("ReverseComputeAt" in {step[0] for step in program["schedule"][0]})
    assert kinds == again
    assert set(kinds) == {True, False}  # not all of one sketch


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "attention:b=8,m=64,n=256,d=64",
            r"TVM cannot make a search space of this task for cuda \(IndexError: .*\)",
        ),
        ("cumsum:m=64,n=256", "no valid schedule"),  # the host would run it
    ],
)
def test_a_task_without_schedules_for_a_gpu_says_so(tmp_path: Path, name: str, text: str) -> None:
    from cdmpp.devices.registry import get_device
    from tvm_helper.measure.worker import _draw
    from tvm_helper.tasks.target import device_target

    target = device_target(get_device("t4"))
    options = MeasureOptions(device="t4", sample=(name,))
    (task,) = campaign_tasks(options, target)
    path = tmp_path / "task.json"
    content = {"workload_key": task.workload_key, **task.content}
    path.write_text(json.dumps(content), encoding="utf-8")
    request = {"task": str(path), "target": str(target), "scratch": str(tmp_path), "seed": 0,
               "count": 1, "choose_from": 1}  # fmt: skip
    with pytest.raises(ProgramError, match=text) as failed:
        _draw(request, lambda: None)
    assert failed.value.error_code == 1


def test_a_campaign_calls_its_device_as_the_registry_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--device EPYC-AVX2-1C measured for a label of its own, which no model was trained on."""
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "tvm_helper.measure.campaign.Campaign.run",
        lambda self, on_progress: asked.append((self._options.device, self._target.device)),
    )
    options = MeasureOptions(device="EPYC-AVX2-1C", force=True, sample=("matmul",))
    run_campaign(options, tmp_path / "out")
    assert asked == [("epyc-avx2-1c", "epyc-avx2-1c")]


def test_a_missing_folder_to_replay_is_named(tmp_path: Path) -> None:
    """The advice was --network-info, which `measure` does not have."""
    options = MeasureOptions(device="epyc-avx2-1c", force=True, replay=(str(tmp_path / "none"),))
    with pytest.raises(DataError, match="none: no such folder") as caught:
        run_campaign(options, tmp_path / "out")
    assert "--network-info" not in str(caught.value)


def test_machine_code_is_that_of_cpus(tmp_path: Path) -> None:
    options = MeasureOptions(device="t4", sample=("matmul",), machine_code=True)
    with pytest.raises(UsageError, match="t4 is compiled for cuda; expected a CPU"):
        run_campaign(options, tmp_path / "out")


def test_a_model_that_is_not_there_is_named_before_anything_is_drawn(tmp_path: Path) -> None:
    options = MeasureOptions(
        device="epyc-avx2-1c",
        force=True,
        sample=("matmul",),
        choose_from=2,
        model=str(tmp_path / "none"),
    )
    with pytest.raises(DataError, match="none"):
        run_campaign(options, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_lost_device_does_not_hide_why_a_program_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Lost:
        def upload(self, path: str) -> None:
            raise RuntimeError("no space on the board")

        def remove(self, name: str) -> None:
            raise RuntimeError("the connection is closed")

    monkeypatch.setattr(worker, "_remote", lambda _: Lost())
    request = {"artifact": str(tmp_path / "a.tar"), "timing": {}, "rpc": "h:1:k"}
    with pytest.raises(ProgramError, match="no space on the board"):
        worker._run(request, lambda: None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.exhaustive
def test_through_the_rpc_tracker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(module, reason=f"TVM's RPC tracker needs {module}")
    port = free_port()
    tracker = subprocess.Popen(
        [sys.executable, "-m", "tvm.exec.rpc_tracker", "--host=127.0.0.1", f"--port={port}",
         f"--port-end={port + 1}"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "tvm.exec.rpc_server", "--host=127.0.0.1",
         f"--tracker=127.0.0.1:{port}", "--key=board"],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.5)
        assert tracker.poll() is None
        assert server.poll() is None
        words = [
            "measure", "--out", str(tmp_path / "out"), "--device", "epyc-avx2-1c", "--per-task",
            "2", "--task", NAMED, "--rpc", f"127.0.0.1:{port}:board", "--json", "-q",
            "--set", "run_timeout_s=120", "--set", "build_timeout_s=300",
        ]  # fmt: skip
        assert main(words) == 0
    finally:
        for process in (server, tracker):
            process.kill()
            process.wait()
    report = json.loads(capsys.readouterr().out)
    assert (report["measured"], report["failures"]) == (2, [])


@pytest.mark.parametrize("text", ["dense:m=0", "gather:rows=0,n=8", "max_pool2d:h=0"])
def test_a_size_of_zero_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"would have the shape \[.*0.*\]\); choose others"):
        named_function(text)
