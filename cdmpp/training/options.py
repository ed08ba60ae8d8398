"""Everything that decides a training run; written as config.yaml into its run folder."""

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
    """A training run.

    Attributes:
        dataset: folder in Tenset's layout or an extracted one; empty = what is shipped or fetched
            of the devices, without devices the shipped default dataset.
        devices: device labels; empty = every device of the dataset.
        model: kind of the model.
        baselines: kinds trained and judged beside it; kinds equal to `model` are left out. `conv`
            and `embedding` answer only the programs that they recognise; with one, `constant` is
            judged too.
        split: `task` (whole tasks are held out), `network` (whole networks) or `record` (programs
            of one task on both sides: leaks, for comparison only).
        seed: decides the split and the training.
        fractions: shares of training, validation and test.
        test_networks: networks held out by `split: network`; empty = drawn by the seed.
        transformer: options of `model: transformer`.
        gbdt: options of `gbdt`, as model or baseline (as tuned, configs/models/gbdt.yaml); so on
            for every kind: `gbdt-rank` reads `gbdt_rank`.
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
    """Returns the options with the transformer, alone or in the ensemble, trained there."""

    def moved(part: Any) -> Any:
        return replace(part, loop=replace(part.loop, device_type=device_type))

    ensemble = replace(
        options.ensemble,
        transformer=moved(options.ensemble.transformer),
        perceptron=moved(options.ensemble.perceptron),
    )
    return replace(options, transformer=moved(options.transformer), ensemble=ensemble)


def run_name(options: TrainOptions) -> str:
    """Returns a folder name that is equal for equal options, so that a stopped run is found
    again.
    """
    dataset = Path(options.dataset).name
    if not dataset and not options.devices:
        dataset = "tenset-cpu"
    devices = "+".join(options.devices) if len(options.devices) <= 2 else ""
    if not dataset and not devices:
        devices = f"{len(options.devices)}-devices"
    words = [dataset, devices, options.model, f"by-{options.split}", f"seed{options.seed}"]
    return name_of(words, options)


def name_of(words: Iterable[str], options: Any) -> str:
    """Returns the words that are not empty and a digest of the options, joined by `-`."""
    digest = hashlib.sha256(dump_text(options).encode()).hexdigest()[:6]
    return "-".join([*(word for word in words if word), digest])
