"""What a network takes: one answer for each way of running it, device and batch.

from tvm_helper.replay.ways import NetworkQuestion, network_answers

for one in network_answers(NetworkQuestion(Path("resnet18.pt2"), labels=("epyc-avx512-1c",))):
    print(one.way, one.device, one.latency_s, one.low_s, one.high_s)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cdmpp.datasets.metaschedule.databases import check_database
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.networks.graph.mode import Mode
from cdmpp.networks.graph.network_file import exported_network, network_format
from cdmpp.networks.graph.torch_graph import Method, example_inputs
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.replay.costs import OperatorCost
from cdmpp.replay.engine import ReplayOptions
from cdmpp.replay.graph import Operator
from cdmpp.replay.summary import ReplayOutcome, replay_costs
from cdmpp.text import percent_text
from cdmpp.training.estimates import TrainedModel, load_trained
from cdmpp.training.requested_device import asked_devices

if TYPE_CHECKING:  # torch and TVM are loaded when a way needs them
    import torch

    from cdmpp.networks.predict import NetworkPredictor, TorchPrediction
    from tvm_helper.predict.answers import Prediction
    from tvm_helper.predict.predictor import Predictor
    from tvm_helper.replay.costs import ChosenSchedule, ScheduleChoice
    from tvm_helper.replay.outcome import NetworkCosts

Way = Literal["tvm-untuned", "tvm-tuned", "torch-eager"]
#: Each way of running, in words.
WAYS: dict[Way, str] = {
    "tvm-untuned": "as TVM compiles it, untuned",
    "tvm-tuned": "as TVM compiles it, tuned",
    "torch-eager": "as torch runs it (eager)",
}
_EAGER: Way = "torch-eager"
#: What is said of eager torch besides.
_MEMORY_KEYS = (
    "memory_bytes", "memory_low_bytes", "memory_high_bytes", "utilisation", "utilisation_low",
    "utilisation_high", "memory_limit_bytes", "fits",
)  # fmt: skip
#: Share of a network's time above which kernels unlike the training tasks make it a guess.
_MOST_STRANGE = 0.1


class _NoTvmError(UsageError):
    """TVM is not installed, or another version."""


@dataclass(frozen=True)
class NetworkQuestion:
    """A network, and how it is to be run.

    Attributes:
        source: ONNX file, saved `torch.export` program, or a function that makes a torch module.
        name: what the network is called.
        ways: of running it; none = all that source and question allow.
        labels, descriptions: devices by label or as hardware, and files that describe hardware that
            nobody measured. None of both = those that the model was trained on.
        model: run folder of a cost model or of a model of whole networks; `pretrained` = both.
        loaded: gives the cost model where it is kept loaded; None = it is read from `model`.
        database: folder of a MetaSchedule database: the programs of `tvm-tuned`.
        compiles: whether kernels are compiled where the model can read their machine code.
        must_compile: whether a model that cannot is an error.
        batches: samples of an iteration; of a file `(None,)`, as the file says.
        shapes, dtypes: of a torch module's inputs, without the batch; no types = as `torch_graph`
            guesses.
        method: how a torch module is followed for eager running.
        memory_limit_bytes: what there is; None = the devices'.
    """

    source: Path | Callable[[], Any]
    name: str = ""
    ways: Sequence[Way] = ()
    labels: Sequence[str | DeviceSpec] = ()
    descriptions: Sequence[Path] = ()
    model: str | Path = PRETRAINED
    loaded: Callable[[], TrainedModel] | None = None
    database: Path | None = None
    compiles: bool = True
    must_compile: bool = False
    batches: Sequence[int | None] = (1,)
    shapes: Sequence[tuple[int, ...]] = ()
    dtypes: Sequence[torch.dtype] | None = None
    method: Method = "fx"
    memory_limit_bytes: float | None = None

    def cost_model(self) -> TrainedModel:
        """Returns the model of kernels.

        Raises:
            DataError: there is no complete model.
        """
        if self.loaded is not None:
            return self.loaded()
        return load_trained(_models(self.model)[1], with_code=self.compiles)


@dataclass(frozen=True)
class KernelAnswer:
    """A kernel of a compiled network.

    Attributes:
        calls: how often it runs.
        shapes: of its arguments.
        in_network_s: seconds of one call within the network.
        prediction: what the model says of it alone; None where no model covers it.
        reason: why none does; empty where one does.
        module: its program; None where it has none.
        key: what the operators that call it have as their task, or as their name without one.
    """

    name: str
    calls: int
    shapes: tuple[str, ...]
    in_network_s: float
    prediction: Prediction | None
    reason: str = ""
    module: Any = None
    key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns what `predict --json` and the server say of a kernel."""
        alone = {} if self.prediction is None else self.prediction.to_json()
        return alone | {
            "name": self.name, "calls": self.calls, "shapes": list(self.shapes),
            "in_network_s": self.in_network_s, "reason": self.reason or None,
        }  # fmt: skip


@dataclass(frozen=True)
class NetworkAnswer:
    """What a network takes on a device, run one way.

    Attributes:
        batch: samples of an iteration; None = as the file says.
        latency_s: of an iteration; None where it cannot be told, see `reasons`.
        low_s, high_s: ends of its interval; None without one.
        schedule: which programs a compiler's kernels are, in words.
        reasons: why it is a guess, or why there is no latency; empty = neither.
        kernels: of a compiled network, dearest first.
        replayed: how a compiled network was put together.
        eager: memory and utilisation of eager torch.
    """

    network: str
    way: Way
    device: str
    batch: int | None = None
    mode: Mode = "infer"
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    schedule: str = ""
    reasons: tuple[str, ...] = ()
    kernels: tuple[KernelAnswer, ...] = ()
    replayed: ReplayOutcome | None = None
    eager: TorchPrediction | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns what `predict --json` and the server say of a network."""
        eager = {} if self.eager is None else self.eager.to_json()
        return {
            "network": self.network, "batch": self.batch, "way": self.way, "mode": self.mode,
            "device": self.device, "program_id": None, "latency_s": self.latency_s,
            "low_s": self.low_s, "high_s": self.high_s, "measured_s": None,
            "out_of_distribution": bool(self.reasons), "reasons": list(self.reasons),
            "schedule": self.schedule or None,
            "kernels": [kernel.to_json() for kernel in self.kernels],
            **{key: value for key, value in eager.items() if key in _MEMORY_KEYS},
        }  # fmt: skip


def network_answers(
    question: NetworkQuestion, *, on_step: Callable[[str], None] = lambda _: None
) -> list[NetworkAnswer]:
    """Returns what a network takes, by device, batch and way.

    A way that a network or device does not allow has an answer without latency that says why.

    Args:
        on_step: is told what is done next, in words.

    Raises:
        CdmppError: a model, a device or a database is not as it should be; or no way has a latency.
    """
    ways = _ways(question)
    eager = _eager_predictor(_models(question.model)[0]) if "torch-eager" in ways else None
    trained = question.cost_model() if ways[0] != _EAGER else None
    devices = _devices(question, eager, trained)

    @cache
    def module(batch: int | None) -> Any:
        return _relax_module(question, batch)

    found: list[NetworkAnswer] = []
    for way in ways:
        on_step(f"{question.name} {WAYS[way]}")
        try:
            if way == _EAGER:
                assert eager is not None
                found += _eager_answers(question, eager, devices)
            else:
                assert trained is not None
                found += _compiled_answers(question, way, trained, devices, module, on_step)
        except (DataError, _NoTvmError) as error:
            if len(ways) == 1:
                raise
            found += [
                NetworkAnswer(question.name, way, device.name, batch, reasons=(str(error),))
                for device in devices
                for batch in question.batches
            ]
    if all(one.latency_s is None for one in found):
        reasons = {one.reasons[0] for one in found}
        if len(reasons) == 1:
            raise DataError(reasons.pop())
        why = "; ".join(dict.fromkeys(f"{WAYS[one.way]}: {one.reasons[0]}" for one in found))
        raise DataError(f"{question.name} cannot be predicted ({why})")
    names = [device.name for device in devices]
    return sorted(found, key=lambda one: (names.index(one.device), one.batch or 0))


def _ways(question: NetworkQuestion) -> tuple[Way, ...]:
    if "tvm-tuned" in question.ways and question.database is None:
        raise UsageError("tuned programs are those of a database; expected --database DIR")
    if question.database is not None:
        check_database(question.database)
    is_onnx = isinstance(question.source, Path) and network_format(question.source) == "onnx"
    if is_onnx and _EAGER in question.ways:
        raise UsageError(f"{question.source}: torch runs no ONNX file; expected .pt2 or --torch")
    if question.ways:
        return tuple(way for way in WAYS if way in question.ways)
    left_out = {_EAGER} if is_onnx else set()
    if question.database is None:
        left_out.add("tvm-tuned")
    return tuple(way for way in WAYS if way not in left_out)


def _models(model: Path | str) -> tuple[Path | str, Path]:
    """Returns the models of whole networks and of kernels: the named one, and a packaged one."""
    from cdmpp.networks.run import is_networks_run  # it loads pyarrow

    if str(model) != PRETRAINED and is_networks_run(Path(model)):
        return model, model_folder(PRETRAINED)
    return PRETRAINED, model_folder(model)


def _eager_predictor(model: Path | str) -> NetworkPredictor:
    from cdmpp.networks.predict import NetworkPredictor

    return NetworkPredictor.load(model)


def _devices(
    question: NetworkQuestion, eager: NetworkPredictor | None, trained: TrainedModel | None
) -> list[DeviceSpec]:
    """Returns the devices that are named; without one those that networks were measured on."""
    labels, descriptions = question.labels, question.descriptions
    if eager is not None and not labels and not descriptions:
        return list(eager.trained.devices)
    if trained is not None:
        return asked_devices(labels, descriptions, trained.card)
    described = [spec for path in descriptions for spec in read_device_file(path).devices.values()]
    named = [one if isinstance(one, DeviceSpec) else get_device(one) for one in labels]
    return [one for place, one in enumerate(named) if one not in named[:place]] + described


def _eager_answers(
    question: NetworkQuestion, eager: NetworkPredictor, devices: Sequence[DeviceSpec]
) -> list[NetworkAnswer]:
    module, batches, shapes, dtypes = _torch_module(question)
    graphs = eager.graphs(
        module, shapes, batches, name=question.name, method=question.method, dtypes=dtypes
    )
    found = eager.predict(graphs, devices, memory_limit_bytes=question.memory_limit_bytes)
    is_file = isinstance(question.source, Path)
    return [
        NetworkAnswer(
            question.name, _EAGER, one.device, None if is_file else one.batch, one.mode,
            one.time_s.value, one.time_s.low, one.time_s.high, reasons=one.reasons, eager=one,
        )
        for one in found
    ]  # fmt: skip


def _torch_module(
    question: NetworkQuestion,
) -> tuple[Any, list[int], Sequence[tuple[int, ...]], Sequence[torch.dtype] | None]:
    """Returns module (or what makes it), batches, shapes without the batch, and types.

    Raises:
        DataError: an exported program has dynamic shapes or inputs that do not share their first
            axis.
    """
    if not isinstance(question.source, Path):
        batches = [batch or 1 for batch in question.batches]
        return question.source, batches, question.shapes, question.dtypes
    saved = exported_network(question.source)
    return saved.module, [saved.batch], saved.shapes, saved.dtypes


def _compiled_answers(
    question: NetworkQuestion,
    way: Way,
    trained: TrainedModel,
    devices: Sequence[DeviceSpec],
    module: Callable[[int | None], Any],
    on_step: Callable[[str], None],
) -> list[NetworkAnswer]:
    """Returns the answers of one of TVM's ways.

    Args:
        module: batch -> relax module.
    """
    try:
        from tvm_helper.predict.predictor import Predictor, check_reads_code
        from tvm_helper.replay.costs import ScheduleChoice
    except UsageError as error:  # no TVM, or another
        raise _NoTvmError(str(error)) from None
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
            name, relax = question.name, module(batch)
            one = compiled_answer(name, relax, device, predictor, choice, batch=batch)
            found.append(one)
    return found


def compiled_answer(
    name: str,
    module: Any,
    device: DeviceSpec,
    predictor: Predictor,
    choice: ScheduleChoice,
    *,
    batch: int | None = None,
) -> NetworkAnswer:
    """Returns what a network takes as TVM compiles it.

    Args:
        name: what it is called.
        module: relax module.
        choice: which programs its kernels are.
        batch: see `NetworkAnswer`.

    Raises:
        DataError: TVM cannot turn it into tensor programs.
    """
    from tvm_helper.replay.outcome import network_costs

    way: Way = "tvm-tuned" if choice.kind == "database" else "tvm-untuned"
    try:
        costs = network_costs(module, device, predictor, choice, name=name)
    except DeviceError as error:  # TVM has no target for it
        return NetworkAnswer(name, way, device.name, batch, reasons=(str(error),))
    return _compiled(name, way, device.name, batch, costs)


def _relax_module(question: NetworkQuestion, batch: int | None) -> Any:
    from tvm_helper.tasks.network_tasks import load_network, network_of_module

    if isinstance(question.source, Path):
        return load_network(question.source)
    name = question.name
    inputs = example_inputs(question.source, question.shapes, batch or 1, name, question.dtypes)
    return network_of_module(*inputs, name)


def _compiled(
    name: str, way: Way, device: str, batch: int | None, costs: NetworkCosts
) -> NetworkAnswer:
    replayed = replay_costs(costs.costs, ReplayOptions(), device=device, schedule=costs.schedule)
    kernels = _kernels(costs)
    return NetworkAnswer(
        name, way, device, batch, "infer", replayed.expected.total_s, replayed.low_s,
        replayed.high_s, costs.schedule, _doubts(kernels, device), kernels, replayed,
    )  # fmt: skip


def _kernels(costs: NetworkCosts) -> tuple[KernelAnswer, ...]:
    calls: dict[str, int] = {}
    first: dict[str, tuple[Operator, OperatorCost]] = {}
    for one, cost in zip(costs.costs.graph.operators, costs.costs.costs, strict=True):
        key = one.task or one.label
        calls[key] = calls.get(key, 0) + 1
        first.setdefault(key, (one, cost))
    found = [
        KernelAnswer(
            name=one.label, calls=calls[key], shapes=tuple(one.shapes), in_network_s=cost.latency_s,
            prediction=costs.predictions.get(key),
            reason=cost.reason if cost.source == "bound" else "",
            module=_program(costs.chosen.get(key)), key=key,
        )
        for key, (one, cost) in first.items()
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.calls * one.in_network_s))


def with_shares(kernels: Sequence[KernelAnswer]) -> list[tuple[KernelAnswer, float]]:
    """Returns kernels with the share of all kernels' time that their calls take, in [0, 1]."""
    whole_s = sum(one.calls * one.in_network_s for one in kernels) or 1.0
    return [(one, one.calls * one.in_network_s / whole_s) for one in kernels]


def _program(chosen: ChosenSchedule | None) -> Any:
    return chosen.schedules[0].mod if chosen is not None and chosen.schedules else None


def _doubts(kernels: Sequence[KernelAnswer], device: str) -> tuple[str, ...]:
    """Returns why a compiled network's answer is a guess."""
    shares = {id(one): share for one, share in with_shares(kernels)}

    def share(strange: Sequence[KernelAnswer]) -> float:
        return sum(shares[id(one)] for one in strange)

    found = []
    if any(one.prediction is not None and one.prediction.is_new_device for one in kernels):
        found.append(f"the model was not trained on {device}")
    far = [one for one in kernels if one.prediction is not None and one.prediction.is_far]
    if share(far) > _MOST_STRANGE:
        found.append(
            f"{percent_text(share(far), 0)} of the time is {_kernels_text(len(far))} unlike all "
            "that the model was trained on"
        )
    bounds = [one for one in kernels if one.reason]
    if bounds:
        names = ", ".join(dict.fromkeys(one.name for one in bounds[:4]))
        found.append(
            f"no model covers {_kernels_text(len(bounds))} ({names}): a roofline stands in, "
            f"{percent_text(share(bounds), 0)} of the time"
        )
    return tuple(found)


def _kernels_text(count: int) -> str:
    return f"{count} kernel{'' if count == 1 else 's'}"
