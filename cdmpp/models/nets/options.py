"""Options of the torch modules, their losses and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Literal

from cdmpp.config import to_dict
from cdmpp.errors import UsageError

PositionKind = Literal["sinusoidal", "original", "none"]

AnchorKind = Literal["leaf_roofline", "none"]

AlignmentKind = Literal["none", "cmd", "mmd"]

AlignmentGroups = Literal["device", "task"]

ScheduleKind = Literal["cosine", "triangular"]

OptimiserKind = Literal["adamw", "adam"]

DeviceType = Literal["cpu", "cuda"]

Precision = Literal["fp32", "bf16"]

#: Use of an analytic model's time in a learned model: none, as the base of the predicted ratio, as
#: an input feature, or both.
PriorKind = Literal["none", "residual", "feature", "both"]

_RANGES: Mapping[str, Callable[[float], bool]] = MappingProxyType({
    "at least 1": lambda value: value >= 1,
    "0 or more": lambda value: value >= 0,
    "above 0": lambda value: value > 0,
    "above 0, at most 1": lambda value: 0 < value <= 1,
    "from 0 to below 1": lambda value: 0 <= value < 1,
})  # fmt: skip

_LATER = "added_later"

#: Metadata of fields added after results were stored under an identity of their options: `identity`
#: leaves such a field out at its default.
ADDED_LATER: Mapping[str, bool] = MappingProxyType({_LATER: True})


def identity(options: Any) -> dict[str, Any]:
    """Returns the options that identify a training, as JSON values.

    Fields marked `ADDED_LATER` appear only if they differ from their default.

    Args:
        options: a dataclass; fields may be nested dataclasses.
    """
    values = to_dict(options)
    for entry in fields(options):
        value = getattr(options, entry.name)
        if entry.metadata.get(_LATER) and value == entry.default:
            del values[entry.name]
        elif is_dataclass(value) and not isinstance(value, type):
            values[entry.name] = identity(value)
    return values


def check_ranges(options: Any, ranges: Mapping[str, tuple[str, ...]]) -> None:
    """Checks the ranges of options.

    Args:
        ranges: range (see `_RANGES`) -> names of fields.

    Raises:
        UsageError: a value is out of range.
    """
    for expected, names in ranges.items():
        for name in names:
            if not _RANGES[expected](getattr(options, name)):
                raise UsageError(f"{name} must be {expected}, got {getattr(options, name)}")


def check_heads(options: Any) -> None:
    """Checks that `heads` divides `hidden`.

    Raises:
        UsageError: it does not, or one of them is below 1.
    """
    check_ranges(options, {"at least 1": ("hidden", "heads")})
    if options.hidden % options.heads:
        raise UsageError(f"heads must divide hidden ({options.hidden}), got {options.heads}")


def is_base(kind: PriorKind) -> bool:
    """Returns whether a model predicts the log ratio to its prior."""
    return kind in ("residual", "both")


def is_feature(kind: PriorKind) -> bool:
    """Returns whether the prior is an input of the model."""
    return kind in ("feature", "both")


@dataclass(frozen=True)
class NetOptions:
    """Shape of the transformer.

    Attributes:
        hidden: width of a leaf's state.
        layers: number of encoder layers.
        heads: number of attention heads; divides `hidden`.
        feed_forward: width inside the perceptron of an encoder layer.
        head_hidden: width inside the heads that map states to latencies.
        dropout: share of activations dropped in training, in [0, 1).
        position: encoding of a leaf's position in the tree.
        anchor: `leaf_roofline` predicts each leaf's slowdown relative to its roofline; `none`
            predicts the logarithm of seconds directly.
        members: number of networks that are trained together and averaged.
        ratios: whether inputs include ratios of each leaf's demand to the device's supply: times at
            peak rates, bytes over cache sizes, parallel iterations over cores.
        traffic: whether these ratios include the time to fetch each cache's misses.

    Raises:
        UsageError: a value is out of range.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    feed_forward: int = 128
    head_hidden: int = 64
    dropout: float = 0.1
    position: PositionKind = "sinusoidal"
    anchor: AnchorKind = "leaf_roofline"
    members: int = 2
    ratios: bool = True
    traffic: bool = True

    def __post_init__(self) -> None:
        check_heads(self)
        check_ranges(
            self,
            {
                "at least 1": ("feed_forward", "head_hidden", "members"),
                "0 or more": ("layers",),
                "from 0 to below 1": ("dropout",),
            },
        )


@dataclass(frozen=True)
class LossOptions:
    """Loss on d = log(predicted) - log(measured).

    Attributes:
        huber_delta: |d| up to which the main term is quadratic.
        relative_weight: weight of the clipped percentage error min(|exp(d) - 1|, relative_clip).
        relative_clip: upper bound of the percentage error.
        rank_weight: weight of the pairwise order term among programs of one task on one device.
        alignment: term that aligns the embeddings of the training part's domains: `cmd` central
            moments, `mmd` kernels.
        alignment_weight: weight of the alignment term.
        alignment_groups: kind of domain: devices or tasks.
    """

    huber_delta: float = 0.5
    relative_weight: float = 1.0
    relative_clip: float = 3.0
    rank_weight: float = 0.4
    alignment: AlignmentKind = "none"
    alignment_weight: float = 0.1
    alignment_groups: AlignmentGroups = "device"


@dataclass(frozen=True)
class LoopOptions:
    """Options of the training loop of torch models.

    Attributes:
        epochs: maximum passes over the training part.
        programs_per_batch: programs per step, each with all its devices.
        programs_per_task: programs of one task that are grouped in a batch, which gives the order
            term its pairs.
        learning_rate: peak learning rate; linear warm-up, then cosine to zero at the last epoch.
        warmup_fraction: share of the warm-up in all steps.
        weight_decay: decoupled, on matrices only.
        gradient_clip: maximum norm of the gradient.
        average_decay: decay of the moving average of the weights, which is validated and selected.
        patience: epochs without a better validation loss after which training stops.
        checkpoint_every: steps between checkpoints; at most 200 checkpoints per epoch.
        threads: CPU threads of the training; 0 = all cores. Small matrices gain little from more
            than one, and one thread gives the same bytes on any number of cores.
        schedule: learning rate schedule: `cosine` as above; `triangular` cycles between a tenth of
            `learning_rate` and ten times `learning_rate`.
        half_period: steps of half a cycle of `triangular`.
        optimiser: `adamw`, or `adam`, whose weight decay is an L2 term on all parameters.
        validate_every: steps between validations, which also update patience and the best weights;
            0 = once per pass over the training part.
        max_steps: maximum number of steps; 0 = no limit besides `epochs`.
        cpu_seconds: process CPU time, validation included, after which training stops; the learning
            rate then follows the used time if that is further along than the steps. Not
            reproducible; 0 = off.
        device_type: the device that trains.
        precision: `bf16` multiplies matrices in bfloat16 (weights and losses stay float32).
        compile: whether the steps run through torch.compile; faster on a GPU, needs a C++ compiler.

    Raises:
        UsageError: a value is out of range.
    """

    epochs: int = 30
    programs_per_batch: int = 48
    programs_per_task: int = 4
    learning_rate: float = 1e-3
    warmup_fraction: float = 0.05
    weight_decay: float = 0.05
    gradient_clip: float = 1.0
    average_decay: float = 0.995
    patience: int = 10
    checkpoint_every: int = 200
    threads: int = 1
    schedule: ScheduleKind = "cosine"
    half_period: int = 2000
    optimiser: OptimiserKind = "adamw"
    validate_every: int = 0
    max_steps: int = 0
    cpu_seconds: float = 0.0
    device_type: DeviceType = "cpu"
    precision: Precision = "fp32"
    compile: bool = False

    def __post_init__(self) -> None:
        check_ranges(
            self,
            {
                "at least 1": (
                    "epochs", "programs_per_batch", "programs_per_task", "patience",
                    "checkpoint_every", "half_period",
                ),
                "0 or more": (
                    "threads", "validate_every", "max_steps", "cpu_seconds", "weight_decay",
                ),
                "above 0": ("learning_rate", "gradient_clip"),
                "from 0 to below 1": ("warmup_fraction", "average_decay"),
            },
        )  # fmt: skip


@dataclass(frozen=True)
class TorchPeerOptions:
    """Common options of the torch baselines.

    Attributes:
        extra_blocks: named blocks of added leaf columns to use; null = all.
        loop: options of the training loop.
    """

    extra_blocks: tuple[str, ...] | None = None
    loop: LoopOptions = field(default_factory=LoopOptions)


@dataclass(frozen=True)
class CdmppPaperOptions(TorchPeerOptions):
    """Options of the original CDMPP, with its published sizes as defaults.

    Attributes:
        layers: number of encoder layers.
        feed_forward: width inside the perceptron of an encoder layer.
        dropout: share of activations dropped in the encoder, in [0, 1).
        input_layer: width of the first layer on the flattened leaves.
        embedded_layers: widths of the following layers.
        latent: width of the latents of program and device.
        device_layers: widths of the device encoder before the latent.
        regression_layers: widths of the decoder.
        mse_weight: weight of the squared error relative to the percentage error of the normalised
            label.
    """

    layers: int = 11
    feed_forward: int = 2048
    dropout: float = 0.1
    input_layer: int = 716
    embedded_layers: tuple[int, ...] = (985, 985, 985)
    latent: int = 69
    device_layers: tuple[int, ...] = (128, 128, 128)
    regression_layers: tuple[int, ...] = (930, 930, 930)
    mse_weight: float = 1000.0
    loop: LoopOptions = field(
        default_factory=lambda: LoopOptions(
            epochs=100,
            programs_per_batch=600,
            learning_rate=1.6765674942e-5,
            weight_decay=0.0013070669,
            gradient_clip=2.0,
            average_decay=0.0,
            patience=1000,
            schedule="triangular",
            half_period=2000,
            optimiser="adam",
        )
    )
