"""Networks through TVM: edges, schedules, costs, and the measured module beside them."""

from __future__ import annotations

import ctypes
import platform
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from tvm.s_tir import meta_schedule

from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.predict.prediction import Prediction
from cdmpp.replay.costs import OperatorCost, gather_costs
from cdmpp.replay.engine import ReplayOptions, replay
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.summary import replay_costs
from tests.tvm_helper.tasks.test_network_tasks import onnx_file
from tvm_helper.compat import Target, tvm
from tvm_helper.replay.costs import ProgramCosts, ScheduleChoice, choose_schedules
from tvm_helper.replay.graph import DEVICE, KernelGraph, network_graph
from tvm_helper.replay.measure import MeasuredNetwork, _calls, _deeper, _Kernel, measure_network
from tvm_helper.replay.outcome import NetworkCosts, measured_values, replay_network
from tvm_helper.tasks.network_tasks import load_network
from tvm_helper.tasks.sampling import valid_schedules
from tvm_helper.tasks.target import device_target

pytestmark = pytest.mark.tvm
SPEC = get_device("epyc-avx2-1c")
TARGET = device_target(SPEC)


class Branches(nn.Module):
    """Two equal convolutions side by side, joined, and a dense layer behind a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.right = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.dense = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], 1)
        result: torch.Tensor = self.dense(torch.flatten(joined, 1))
        return result


@pytest.fixture(scope="module")
def network_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "branches.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        program = torch.export.export(Branches().eval(), (torch.zeros(1, 4, 4, 4),))
        torch.export.save(program, path)
    return path


def read_network_graph(path: Path, target: Target, *, device: str = "") -> KernelGraph:
    return network_graph(load_network(path), target, name=path.stem, device=device)


@pytest.fixture(scope="module")
def network(network_file: Path) -> KernelGraph:
    return read_network_graph(network_file, TARGET, device=SPEC.name)


def test_edges_follow_the_data_through_reshapes(network: KernelGraph) -> None:
    operators = network.graph.operators
    convolutions = [one for one in operators if "conv2d" in one.kind]
    assert len(convolutions) == 2
    assert all(not one.after for one in convolutions)
    dense = next(one for one in operators if one.kind.startswith("dense"))
    # The flattening is a view: no operator, and the edge goes through it.
    assert "reshape" not in {one.kind for one in operators}
    (joined,) = [one for one in operators if one.id in dense.after]
    assert set(joined.after) == {one.id for one in convolutions}
    run = replay(network.graph.scaled({one.id: 1.0 for one in operators}))
    assert run.longest_path_s == len(operators) - 1


def test_calls_agree_with_the_weights_of_the_tasks(network: KernelGraph) -> None:
    calls: dict[str, int] = {}
    for one in network.graph.operators:
        calls[one.task] = calls.get(one.task, 0) + 1
        assert (one.bytes or 0) > 0
        assert one.flop is None or one.flop > 0
    flops = {one.kind.split("+")[0]: one.flop for one in network.graph.operators}
    assert flops["conv2d"] >= 2 * 4 * 4 * 4 * 4 * 9
    assert flops["concat"] is None
    weights = {task.workload_key: task.weight for task in network.tasks.tasks}
    assert {key: weights[key] for key in calls} == calls


def test_of_a_table_the_rows_that_are_read_count(tmp_path: Path) -> None:
    path = tmp_path / "rows.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 3)).eval()
        torch.export.save(torch.export.export(table, (torch.zeros(5, dtype=torch.int64),)), path)
    operators = read_network_graph(path, TARGET, device=SPEC.name).graph.operators
    (take,) = [one for one in operators if "take" in one.kind]
    rows = 5 * 8 * 4
    assert 2 * rows < (take.bytes or 0) <= 3 * rows
    (dense,) = [one for one in operators if one.kind.startswith("dense")]
    assert dense.bytes == rows + 4 * (8 * 3 + 3 + 5 * 3)


class FakePredictor:
    """Answers with the number of its calls, in milliseconds."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def cold_s_per_byte(self, device: Any) -> float:
        return 0.0

    def own_half_width(self, device: Any, latency_s: float, one: Any) -> float:
        return 0.0

    def scheduled(
        self, task: Any, schedule: Any, device: Any, *, fastest_of: int = 0
    ) -> Prediction:
        self.asked.append(schedule)
        if task.operator.startswith("dense"):
            return Prediction(task.name, device.name, reasons=("too strange",))
        seconds = 1e-3 * len(self.asked)
        return Prediction(task.name, device.name, seconds, seconds / 2, 1.0)


def test_draws_make_a_distribution_and_the_unknown_a_bound(network: KernelGraph) -> None:
    chosen = choose_schedules(network, TARGET, ScheduleChoice("draws", draws=3))
    assert all(len(one.schedules) == 3 for one in chosen.values())
    predictor: Any = FakePredictor()
    costs = gather_costs(
        network.graph, [ProgramCosts(predictor, network, chosen, SPEC)], {DEVICE: SPEC}
    )
    assert costs.draw_count() == 3
    assert [one.kind.split("+")[0] for one, _ in costs.uncovered] == ["dense"]
    assert "too strange" in costs.uncovered[0][1].reason
    equal = [c for o, c in zip(network.graph.operators, costs.costs, strict=True)
             if "conv2d" in o.kind]  # fmt: skip
    assert equal[0] == equal[1]
    outcome = replay_costs(costs, ReplayOptions())
    assert len(outcome.draws_s) == 3
    assert outcome.low_s < outcome.expected.total_s < outcome.high_s


def test_the_database_gives_its_fastest_program(network: KernelGraph, tmp_path: Path) -> None:
    database = meta_schedule.database.JSONDatabase(work_dir=str(tmp_path))
    task = next(one for one in network.tasks.tasks if "conv2d" in one.operator)
    schedules = list(valid_schedules(task.module["main"], TARGET, seed=5, tries=40))
    workload = database.commit_workload(task.module)
    info = meta_schedule.arg_info.ArgInfo.from_entry_func(task.module, remove_preproc=True)
    # The second one is the fastest that ran; a failed one has 1e10 s.
    for schedule, seconds in zip(schedules, (3.0, 1.0, 1e10, 2.0), strict=False):
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(schedule.trace, workload, [seconds], TARGET, info)
        )
    chosen = choose_schedules(network, TARGET, ScheduleChoice("database", database=tmp_path))
    found = chosen[task.workload_key]
    assert str(found.schedules[0].mod) == str(schedules[1].mod)
    assert found.remark == ""
    assert found.fastest_of == 3
    others = [one for key, one in chosen.items() if key != task.workload_key]
    assert others
    assert all("not in the database" in one.remark for one in others)
    assert not any(one.fastest_of for one in others)


class MeanPredictor:
    """Says that a program takes 1 ms, and programs like it 3 ms in the mean."""

    def __init__(self) -> None:
        self.latency_s = 3e-3
        self.fastest_of: dict[str, int] = {}
        self.seconds = 0.0

    def cold_s_per_byte(self, device: Any) -> float:
        return self.seconds

    def own_half_width(self, device: Any, latency_s: float, one: Any) -> float:
        return 0.0

    def scheduled(
        self, task: Any, schedule: Any, device: Any, *, fastest_of: int = 0
    ) -> Prediction:
        self.fastest_of[task.workload_key] = fastest_of
        return Prediction(
            task.name, device.name, latency_s=self.latency_s / 3, low_s=1e-7,
            high_s=1e-2, mean_s=self.latency_s,
        )  # fmt: skip


def test_of_programs_that_chance_chose_the_mean_counts(network: KernelGraph) -> None:
    """Of others what is likely: some random ones are far slower than they look."""
    key = network.tasks.tasks[0].workload_key
    default = choose_schedules(network, TARGET, ScheduleChoice())
    chosen = dict(choose_schedules(network, TARGET, ScheduleChoice("first-valid")))
    chosen[key] = replace(default[key], fastest_of=5)
    predictor: Any = MeanPredictor()
    costs = ProgramCosts(predictor, network, chosen, SPEC).costs(network.graph)
    by_task = {one.task: costs[one.id].latency_s for one in network.graph.operators}
    assert by_task == pytest.approx({task: 1e-3 if task == key else 3e-3 for task in by_task})
    assert key in by_task
    assert predictor.fastest_of == {task: 5 if task == key else 0 for task in by_task}
    costs = ProgramCosts(predictor, network, default, SPEC).costs(network.graph)
    assert {one.latency_s for one in costs.values()} == {1e-3}


def test_arguments_come_from_memory(network: KernelGraph) -> None:
    chosen = choose_schedules(network, TARGET, ScheduleChoice("draws", draws=2))
    predictor: Any = MeanPredictor()
    small = replace(SPEC, l3_bytes=sum(one.bytes or 0 for one in network.graph.operators))
    warm = ProgramCosts(predictor, network, chosen, small).costs(network.graph)
    predictor.seconds = 1e-8
    cold = ProgramCosts(predictor, network, chosen, small).costs(network.graph)
    large = replace(small, l3_bytes=8 * (small.l3_bytes or 0))  # it holds the network
    near = ProgramCosts(predictor, network, chosen, large).costs(network.graph)
    for one in network.graph.operators:
        assert warm[one.id].latency_s < near[one.id].latency_s < cold[one.id].latency_s
    assert len(warm) == len(cold) == len(network.graph.operators)
    for one in network.graph.operators:
        assert one.bytes
        more_s = cold[one.id].latency_s - warm[one.id].latency_s
        assert more_s == pytest.approx(1e-8 * one.bytes)
        for name in ("low_s", "high_s"):
            ratio = getattr(cold[one.id], name) / getattr(warm[one.id], name)
            assert ratio == pytest.approx(cold[one.id].latency_s / warm[one.id].latency_s)
        assert cold[one.id].draws_s == pytest.approx((3e-3 + 1e-8 * one.bytes,) * 2)
    predictor.latency_s = 3e-6
    short = ProgramCosts(predictor, network, chosen, small).costs(network.graph)
    assert {cost.latency_s for cost in short.values()} == {3e-6}


def test_a_network_may_take_longer_by_the_erf_of_all_calls(network: KernelGraph) -> None:
    known = {one.task: Prediction(one.task, SPEC.name, 1e-3) for one in network.graph.operators}
    conv = next(one.task for one in network.graph.operators if "conv2d" in one.kind)
    calls = sum(one.task == conv for one in network.graph.operators)
    costs = gather_costs(network.graph, [], {DEVICE: SPEC})

    def notes(**changes: float) -> tuple[str, ...]:
        asked = {**known, conv: replace(known[conv], **changes)}
        return NetworkCosts(network, {}, costs, "", asked).notes()

    assert calls > 1
    (note,) = notes(erf_s=2e-3)
    assert f"{2 * calls}.00 ms longer" in note
    assert notes() == ()


def test_bad_databases(network: KernelGraph, tmp_path: Path) -> None:
    choice = ScheduleChoice("database", database=tmp_path)
    with pytest.raises(DataError, match=r"no database_workload.json and no database_tuning"):
        choose_schedules(network, TARGET, choice)
    meta_schedule.database.JSONDatabase(work_dir=str(tmp_path))
    for name in ("database_workload.json", "database_tuning_record.json"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match="has none of the network's"):
        choose_schedules(network, TARGET, choice)
    with pytest.raises(UsageError, match="0 draws"):
        choose_schedules(network, TARGET, ScheduleChoice("draws", draws=0))


def test_a_file_is_replayed_on_every_device(network_file: Path) -> None:
    predictor: Any = MeanPredictor()
    predictor.devices = (SPEC, get_device("xeon-avx2-1c"))
    predictor.reads_code_of = lambda device, of_fastest: False
    first, second = replay_network(
        network_file, predictor, ScheduleChoice(), ReplayOptions(gap_s=1e-3)
    )
    assert (first.device, second.device) == (SPEC.name, "xeon-avx2-1c")
    assert first.schedule == "TVM's default schedule of each task"
    assert first.measured is None
    graph = first.costs.graph
    covered = len(graph.operators) - len(first.costs.uncovered)
    assert covered
    assert first.expected.sum_s >= 1e-3 * covered
    times = dict.fromkeys((one.id for one in graph.operators), 1.0)
    (given, _) = replay_network(
        network_file, predictor, ScheduleChoice(), ReplayOptions(), times=times
    )
    assert given.expected.total_s == len(graph.operators)
    with pytest.raises(UsageError, match="--calibrate-gap writes the gap of one device"):
        replay_network(
            network_file, predictor, ScheduleChoice(), ReplayOptions(), is_measured=True,
            is_forced=True, gap_file=network_file.with_name("gap.json"),
        )  # fmt: skip


@pytest.mark.parametrize("text", ["best", "draws:0", "draws:²", "draws:x", "database:", "database"])
def test_other_schedules_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected default, first-valid, database:DIR or draws:N"):
        ScheduleChoice.of(text, 0)
    assert ScheduleChoice.of("draws:3", 7) == ScheduleChoice("draws", 7, draws=3)


@pytest.mark.slow
def test_predicted_beside_measured(network: KernelGraph) -> None:
    chosen = choose_schedules(network, TARGET, ScheduleChoice())
    timed = measure_network(network, chosen, TARGET, turns=1)
    assert len(timed.costs_s) == 2
    assert timed.unmeasured == {}
    assert set(timed.kernel_s) == {one.task for one in network.graph.operators}
    costs = gather_costs(network.graph, [_Known(timed.kernel_s)], {DEVICE: SPEC})
    values = measured_values(replay_costs(costs, ReplayOptions()), timed)
    assert values["predicted_s"] == values["replayed_s"] == values["without_gaps_s"]
    assert values["error"] == values["replay_error"]
    assert values["unmeasured"] == 0
    assert sum(row["calls"] for row in values["breakdown"]) == len(network.graph.operators)
    assert all(row["error"] == 0 for row in values["breakdown"])


def test_the_fastest_turn_counts_at_each_stack_position() -> None:
    assert MeasuredNetwork((3.0, 7.0, 2.0, 5.0, 9.0, 6.0), {}, {}).latency_s == (2 + 5) / 2


def test_calls_share_activations_and_have_weights_of_their_own() -> None:
    row, square = np.ones((1, 4), np.float32), np.ones((4, 4), np.float32)
    tensors = [tvm.runtime.tensor(values, tvm.cpu(0)) for values in (row, square, row)]
    kernel = _Kernel(lambda *_: None, tensors, lambda *_: None)
    operators = (Operator("a", task="k"), Operator("b", task="k"), Operator("c", task="other"))
    own = tvm.runtime.tensor(2 * square, tvm.cpu(0))
    packed = tvm.runtime.tensor(np.ones((2, 8), np.float32), tvm.cpu(0))
    constants = {"a": (None, packed), "b": (None, own)}
    network: Any = SimpleNamespace(graph=OperatorGraph("two", operators), constants=constants)
    first, second = _calls(network, {"k": kernel})
    for place in (0, 2):
        assert first.tensors[place] is second.tensors[place]
    assert first.tensors[0] is not first.tensors[2]
    assert first.tensors[1] is not second.tensors[1]
    assert np.array_equal(first.tensors[1].numpy(), square)  # in the layout of its schedule
    assert np.array_equal(second.tensors[1].numpy(), 2 * square)


def _stack_pointer() -> int:
    """Returns the processor's stack pointer: a register that glibc's getcontext stores."""
    registers = ctypes.create_string_buffer(2048)
    ctypes.CDLL(None).getcontext(registers)
    return int.from_bytes(registers[160:168], "little")


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="the layout of getcontext's registers is that of glibc on x86-64",
)
def test_every_other_step_lies_alike_to_blocks_of_32_bytes() -> None:
    places = [_deeper(depth, _stack_pointer) % 32 for depth in range(4, 14)]
    assert len(set(places[::2])) == len(set(places[1::2])) == 1
    assert abs(places[0] - places[1]) == 16


class _Known(ProgramCosts):
    """Says what was measured."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds

    def costs(self, graph: Any) -> dict[str, OperatorCost]:
        return {
            one.id: OperatorCost(self._seconds[one.task], 0.0, 9.0, "measured")
            for one in graph.operators
        }

    def reasons(self) -> dict[str, str]:
        return {}


def test_a_dynamic_shape_is_one_sentence(tmp_path: Path) -> None:
    path = onnx_file(
        tmp_path / "d.onnx", lambda helper: [helper.make_node("Relu", ["x"], ["y"])], ["n", 4]
    )
    with pytest.raises(DataError, match="is dynamic; export the network") as caught:
        read_network_graph(path, TARGET)
    assert "\n" not in str(caught.value)
