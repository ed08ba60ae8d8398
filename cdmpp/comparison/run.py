"""Computes the cells of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdmpp.comparison.cell import CompareCell
from cdmpp.comparison.eager import eager_cells
from cdmpp.comparison.llm.decoder import Decoder, check_names
from cdmpp.comparison.llm.times import KernelModel
from cdmpp.comparison.prices import Price
from cdmpp.comparison.serving import serving_cell
from cdmpp.comparison.transformer import Pass
from cdmpp.comparison.what_if import scaled
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.registry import get_devices, load_registry
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.graph.network_file import exported_network, network_format
from cdmpp.pretrained import PRETRAINED

if TYPE_CHECKING:
    import torch

    from cdmpp.networks.graph.graph import NetworkGraph
    from cdmpp.networks.predict import NetworkPredictor

#: ONNX file, its name and devices -> its cells; torch cannot run ONNX.
OnnxCells = Callable[[Path, str, Sequence[DeviceSpec]], list[CompareCell]]


@dataclass(frozen=True)
class TorchNetwork:
    """A torch network.

    Attributes:
        name: display name.
        source: a saved `torch.export` program, or a function that returns a module.
        shapes, dtypes: of a module's inputs, without the batch.
        method: tracing method of a module.
    """

    name: str
    source: Path | Callable[[], Any]
    shapes: Sequence[tuple[int, ...]] = ()
    dtypes: Sequence[torch.dtype] | None = None
    method: str = "fx"


@dataclass(frozen=True)
class Question:
    """Networks, devices and options of a comparison.

    Attributes:
        devices: specs, see `asked_devices`.
        hypothetical: labels of devices that do not exist.
        networks: torch networks and ONNX files.
        graphs: torch networks that are already traced.
        transformers: decoders; each is compared in all `passes`.
        passes: of transformers, with batch and degree.
        batches: of torch networks.
        running: how torch runs its networks.
        prices: label -> price of one device.
        model: model of whole networks, a run folder or `pretrained`.
    """

    devices: Sequence[DeviceSpec]
    hypothetical: frozenset[str] = frozenset()
    networks: Sequence[TorchNetwork] = ()
    graphs: Sequence[NetworkGraph] = ()
    transformers: Sequence[Decoder] = ()
    passes: Sequence[Pass] = ()
    batches: Sequence[int] = (1,)
    running: Running = field(default_factory=Running)
    prices: Mapping[str, Price] = field(default_factory=dict)
    model: str | Path = PRETRAINED


def asked_devices(
    labels: Sequence[str | DeviceSpec],
    descriptions: Iterable[Path],
    scales: Mapping[str, float],
    *,
    takes_all: bool,
) -> tuple[list[DeviceSpec], frozenset[str]]:
    """Returns the requested devices and the labels of the hypothetical ones: the user's own
    descriptions, and scaled devices. Scaled devices are added to the real ones.

    Raises:
        UsageError: no device is given.
        DeviceError: an unknown label, or an invalid description.
    """
    known = load_registry()
    real = list(known.values()) if takes_all else []
    real += get_devices(label for label in labels if isinstance(label, str))
    given = [spec for spec in labels if not isinstance(spec, str)]
    real += [spec for spec in given if known.get(spec.name) == spec]
    own = [spec for spec in given if known.get(spec.name) != spec]
    own += [spec for path in descriptions for spec in read_device_file(path).devices.values()]
    devices = list({spec.name: spec for spec in [*real, *own]}.values())
    if not devices:
        raise UsageError(
            "no device given: add some, e.g. --device h100,l40s,b200, or --all, or "
            "--device-spec FILE"
        )
    changed = [scaled(spec, scales) for spec in devices] if scales else []
    return [*devices, *changed], frozenset(spec.name for spec in [*own, *changed])


def compare(
    question: Question, *, onnx_cells: OnnxCells, kernels: Callable[[], KernelModel]
) -> list[CompareCell]:
    """Returns the cells by network, in the order of the question.

    Args:
        onnx_cells: returns the cells of ONNX files.
        kernels: loads the model of serving kernels; called only for transformers.

    Raises:
        CdmppError: a network cannot be read, two transformers have the same name, there is no
            pass, the devices cannot share a transformer, or no device can be predicted.
    """
    if question.transformers and not question.passes:
        raise UsageError(
            "nothing to compare for a language model: add --prefill N or --decode-at N"
        )
    check_names(question.transformers)
    found: list[CompareCell] = []
    for network in question.networks:
        if isinstance(network.source, Path) and network_format(network.source) == "onnx":
            found += onnx_cells(network.source, network.name, question.devices)
        else:
            found += _torch_cells(question, network)
    if question.graphs:
        predictor = _predictor(question.model)
        found += eager_cells(predictor, question.graphs, question.devices, question.running)
    model = kernels() if question.transformers else None
    for transformer in question.transformers:
        for one in question.passes:
            assert model is not None
            found += [serving_cell(transformer, one, spec, model) for spec in question.devices]
    if not found:
        raise UsageError(
            "nothing to compare: give a network, or --model CONFIG or --transformer SHAPE with "
            "--prefill or --decode-at"
        )
    if all(cell.latency_s is None for cell in found):
        reasons = dict.fromkeys(reason for cell in found for reason in cell.reasons)
        raise DataError(f"no device could be predicted: {'; '.join(list(reasons)[:3])}")
    return [_completed(cell, question) for cell in found]


def _torch_cells(question: Question, network: TorchNetwork) -> list[CompareCell]:
    predictor = _predictor(question.model)
    source, batches = network.source, list(question.batches)
    shapes, dtypes = network.shapes, network.dtypes
    if isinstance(source, Path):
        saved = exported_network(source)
        source, batches, shapes, dtypes = saved.module, [saved.batch], saved.shapes, saved.dtypes
    graphs = predictor.graphs(
        source, shapes, batches, name=network.name, dtypes=dtypes,
        method="export" if network.method == "export" else "fx",
    )  # fmt: skip
    return eager_cells(predictor, graphs, question.devices, question.running)


def _predictor(model: str | Path) -> NetworkPredictor:
    from cdmpp.networks.predict import NetworkPredictor

    return NetworkPredictor.load(model)


def _completed(cell: CompareCell, question: Question) -> CompareCell:
    """Returns the cell with its price; scaled devices have none."""
    return replace(
        cell,
        price=question.prices.get(cell.device),
        is_hypothetical=cell.device in question.hypothetical,
    )
