"""Predictions for networks compiled by TVM: kernels are predicted, then replayed.

from tvm_helper.replay.ways import NetworkQuestion, network_answers

for one in network_answers(NetworkQuestion(Path("resnet18.pt2"), labels=("epyc-avx512-1c",))):
    print(one.way, one.device, one.latency_s, one.low_s, one.high_s)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DeviceError, UsageError
from cdmpp.networks.graph.network_file import exported_types, network_format, read_exported
from cdmpp.networks.graph.torch_graph import check_float32, example_inputs
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.cut_costs import UNKNOWN_WORK
from cdmpp.predict.estimates import TrainedModel
from cdmpp.predict.gpu_schedules import BY_SCHEDULE
from cdmpp.predict.networks import (
    WAYS,
    NetworkKernel,
    NetworkPrediction,
    NetworkQuestion,
    NoTvmError,
    Way,
    predict_network,
    with_shares,
)
from cdmpp.replay.costs import OperatorCost
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.graph import Operator
from cdmpp.replay.summary import replay_costs
from cdmpp.text import counted, percent_text

if TYPE_CHECKING:  # TVM is loaded when a way needs it
    from tvm_helper.predict.predictor import Predictor
    from tvm_helper.replay.costs import ChosenSchedule, ScheduleChoice
    from tvm_helper.replay.outcome import NetworkCosts

#: Share of out-of-distribution kernels above which a prediction has low confidence.
_MOST_STRANGE = 0.1


def network_answers(
    question: NetworkQuestion, *, on_step: Callable[[str], None] = lambda _: None
) -> list[NetworkPrediction]:
    """Returns the predictions for a network by device, batch and way; see `predict_network`."""

    @cache
    def module(batch: int | None) -> Any:
        return _relax_module(question, batch)

    def compiled(
        way: Way,
        trained: TrainedModel,
        devices: Sequence[DeviceSpec],
        on_step: Callable[[str], None],
    ) -> list[NetworkPrediction]:
        try:
            from tvm_helper.predict.predictor import Predictor, check_reads_code
            from tvm_helper.replay.costs import ScheduleChoice
        except UsageError as error:  # TVM is missing or another version
            raise NoTvmError(str(error)) from None
        predictor = Predictor(
            trained, devices, compiles=question.compiles, must_compile=question.must_compile
        )
        if question.must_compile:
            check_reads_code(predictor)
        is_tuned = way == "tvm-tuned"
        choice = ScheduleChoice("database" if is_tuned else "default", database=question.database)
        found = []
        for batch in question.batches:
            for device in devices:
                on_step(f"{question.name} {WAYS[way]}, kernels for {device.name}")
                one = compiled_answer(
                    question.name, module(batch), device, predictor, choice, batch=batch
                )
                found.append(one)
        return found

    return predict_network(question, compiled, on_step=on_step)


def compiled_answer(
    name: str,
    module: Any,
    device: DeviceSpec,
    predictor: Predictor,
    choice: ScheduleChoice,
    *,
    batch: int | None = None,
) -> NetworkPrediction:
    """Returns the prediction for a network compiled by TVM.

    Args:
        name: name of the network.
        module: relax module.
        choice: schedules of the kernels.
        batch: see `NetworkPrediction`.

    Raises:
        DataError: TVM cannot convert the network to tensor programs.
    """
    from tvm_helper.replay.outcome import network_costs

    way: Way = "tvm-tuned" if choice.kind == "database" else "tvm-untuned"
    try:
        costs = network_costs(module, device, predictor, choice, name=name)
    except DeviceError as error:  # TVM has no target for the device
        return NetworkPrediction(name, device.name, way=way, batch=batch, reasons=(str(error),))
    return _compiled(name, way, device.name, batch, costs)


def _relax_module(question: NetworkQuestion, batch: int | None) -> Any:
    from tvm_helper.tasks.network_tasks import load_network, network_of_module

    if isinstance(question.source, Path):
        if network_format(question.source) == "exported":
            check_float32(exported_types(read_exported(question.source)), question.name)
        return load_network(question.source, InputSizes(question.input_shapes, batch))
    name = question.name
    inputs = example_inputs(question.source, question.shapes, batch or 1, name, question.dtypes)
    return network_of_module(*inputs, name)


def _compiled(
    name: str, way: Way, device: str, batch: int | None, costs: NetworkCosts
) -> NetworkPrediction:
    replayed = replay_costs(costs.costs, ReplayOptions(), device=device, schedule=costs.schedule)
    kernels = _kernels(costs)
    return NetworkPrediction(
        name, device, replayed.expected.total_s, replayed.low_s, replayed.high_s,
        reasons=(*_doubts(kernels, device), *costs.notes()), way=way, batch=batch,
        schedule=costs.schedule, kernels=kernels, replayed=replayed,
    )  # fmt: skip


def _kernels(costs: NetworkCosts) -> tuple[NetworkKernel, ...]:
    calls: dict[str, int] = {}
    first: dict[str, tuple[Operator, OperatorCost]] = {}
    for one, cost in zip(costs.costs.graph.operators, costs.costs.costs, strict=True):
        key = one.task or one.label
        calls[key] = calls.get(key, 0) + 1
        first.setdefault(key, (one, cost))
    found = [
        NetworkKernel(
            name=one.label, calls=calls[key], shapes=tuple(one.shapes), in_network_s=cost.latency_s,
            prediction=costs.predictions.get(key),
            reason=cost.reason if cost.source == "bound" else "",
            module=_program(costs.chosen.get(key)), key=key,
        )
        for key, (one, cost) in first.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.calls * one.in_network_s))


def _program(chosen: ChosenSchedule | None) -> Any:
    return chosen.schedules[0].mod if chosen is not None and chosen.schedules else None


def _doubts(kernels: Sequence[NetworkKernel], device: str) -> tuple[str, ...]:
    """Returns the reasons for low confidence in a compiled network's prediction."""
    shares = {id(one): share for one, share in with_shares(kernels)}

    def share(strange: Sequence[NetworkKernel]) -> float:
        return sum(shares[id(one)] for one in strange)

    found = []
    if any(one.prediction is not None and one.prediction.is_new_device for one in kernels):
        found.append(f"the model was not trained on {device}")
    far = [one for one in kernels if one.prediction is not None and one.prediction.is_far]
    if share(far) > _MOST_STRANGE:
        found.append(
            f"{percent_text(share(far), 0)} of the time is {counted(len(far), 'kernel')} out of "
            "distribution"
        )
    if any(one.prediction is not None and one.prediction.by_schedule for one in kernels):
        found.append(f"kernels {BY_SCHEDULE.replace('its', 'their')}")
    bounds = [one for one in kernels if one.reason]
    if bounds:
        names = ", ".join(dict.fromkeys(one.name for one in bounds[:4]))
        found.append(
            f"no model for {counted(len(bounds), 'kernel')} ({names}): roofline estimates, "
            f"{percent_text(share(bounds), 0)} of the time"
        )
    found += dict.fromkeys(one.reason for one in bounds if one.reason.endswith(UNKNOWN_WORK))
    return tuple(found)
