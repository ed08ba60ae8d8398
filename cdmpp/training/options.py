"""Options of a training run; written as config.yaml into its run folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cdmpp.config import dump_text
from cdmpp.models.nets.options import CdmppPaperOptions, DeviceType
from cdmpp.models.options import (
    EnsembleOptions,
    GbdtOptions,
    RecursiveLstmOptions,
    SegmentMlpOptions,
    TlpOptions,
    TransformerOptions,
)

SplitKind = Literal["task", "network", "record"]


@dataclass(frozen=True)
class TrainOptions:
    """Options of a training run.

    Attributes:
        dataset: folder in Tenset's layout or an extracted one; empty = packaged or fetched records
            of `devices`, or the default dataset without devices.
        devices: device labels; empty = every device of the dataset.
        model: kind of the model.
        baselines: kinds trained and evaluated beside it; a kind equal to `model` is left out.
            `conv` and `embedding` only predict programs that they recognise; with one of them,
            `constant` is added.
        split: `task` (whole tasks are held out), `network` (whole networks) or `record` (programs
            of one task in both parts, which leaks; for comparison only).
        seed: seed of the split and the training.
        fractions: shares of training, validation and test.
        test_networks: networks held out by `split: network`; empty = drawn by the seed.
        transformer: options of `model: transformer`.
        gbdt: options of `gbdt`, as model or baseline (tuned, configs/models/gbdt.yaml). Every kind
            has its own field, e.g. `gbdt_rank` for `gbdt-rank`.
    """

    dataset: str = ""
    devices: tuple[str, ...] = ()
    model: str = "transformer"
    baselines: tuple[str, ...] = ("gbdt", "roofline", "constant")
    split: SplitKind = "task"
    seed: int = 0
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)
    test_networks: tuple[str, ...] = ()
    transformer: TransformerOptions = field(default_factory=TransformerOptions)
    ensemble: EnsembleOptions = field(default_factory=EnsembleOptions)
    gbdt: GbdtOptions = field(
        default_factory=lambda: GbdtOptions(
            trees=3000, objective="absolute_log", depth=5, learning_rate=0.03, min_child_weight=10.0
        )
    )
    gbdt_rank: GbdtOptions = field(default_factory=lambda: GbdtOptions(objective="rank"))
    segment_mlp: SegmentMlpOptions = field(default_factory=SegmentMlpOptions)
    tlp: TlpOptions = field(default_factory=TlpOptions)
    tlp_rank: TlpOptions = field(default_factory=lambda: TlpOptions(loss="lambda_rank"))
    recursive_lstm: RecursiveLstmOptions = field(default_factory=RecursiveLstmOptions)
    cdmpp_paper: CdmppPaperOptions = field(default_factory=CdmppPaperOptions)


def trained_on(options: TrainOptions, device_type: DeviceType) -> TrainOptions:
    """Returns options whose transformer, and the ensemble's networks, train on a type of device."""

    def moved(part: Any) -> Any:
        return replace(part, loop=replace(part.loop, device_type=device_type))

    ensemble = replace(
        options.ensemble,
        transformer=moved(options.ensemble.transformer),
        perceptron=moved(options.ensemble.perceptron),
    )
    return replace(options, transformer=moved(options.transformer), ensemble=ensemble)


def run_name(options: TrainOptions) -> str:
    """Returns a folder name that depends only on the options, so that a run can be resumed."""
    dataset = Path(options.dataset).name
    if not dataset and not options.devices:
        dataset = "tenset-cpu"
    devices = "+".join(options.devices) if len(options.devices) <= 2 else ""
    if not dataset and not devices:
        devices = f"{len(options.devices)}-devices"
    words = [dataset, devices, options.model, f"by-{options.split}", f"seed{options.seed}"]
    return name_of(words, options)


def name_of(words: Iterable[str], options: Any) -> str:
    """Returns the non-empty words and a digest of the options, joined by `-`."""
    digest = hashlib.sha256(dump_text(options).encode()).hexdigest()[:6]
    return "-".join([*(word for word in words if word), digest])
