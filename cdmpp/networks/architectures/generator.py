"""Random architectures: search space and seeded drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from cdmpp.errors import DataError, UsageError
from cdmpp.networks.architectures.spec import (
    Activation,
    ArchitectureSpec,
    CnnSpec,
    Halving,
    Head,
    MlpSpec,
    StageSpec,
    Style,
    TransformerSpec,
)

_STYLES: tuple[Style, ...] = ("plain", "inception", "residual", "dense", "separable")
_CHANNEL_STEP = 8
#: Maximum number of draws for one architecture; then the search space is too narrow.
_MOST_DRAWS = 1000

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class SearchSpace:
    """Search space of architectures. The defaults are those of the published data set.

    A list has the choices; a choice that is listed twice is drawn twice as often. A pair has the
    minimum and the maximum.

    Attributes:
        transformer_share: share of transformers, 0 to 1.
        mlp_share: share of perceptrons, 0 to 1; the other networks are convolutional.
        resolutions: sides of the input image in pixels.
        stem_widths, stem_kernels, stem_strides: options of the stem's convolution.
        stem_pool_share: share of stems with a final max pooling.
        stages: number of stages.
        depth: number of blocks of a stage.
        width: number of channels of a stage, drawn log-uniformly.
        growth: number of channels that a layer of the dense style adds.
        kernels: sizes of the spatial convolutions.
        halvings: how a stage halves height and width.
        activations: activations of convolutional networks.
        norm_share: share of convolutional networks with batch normalisation.
        heads: heads of convolutional networks.
        classes: numbers of outputs.
        tokens: number of tokens of a transformer.
        sequence_width: number of channels of transformers and perceptrons.
        sequence_depth: number of layers of transformers and perceptrons.
        batches: batch sizes.
        batches_per_architecture: number of batch sizes of an architecture.
        most_flops: maximum number of operations of one inference of a batch; None = no limit.
    """

    transformer_share: float = 0.0
    mlp_share: float = 0.0
    resolutions: tuple[int, ...] = (224,)
    stem_widths: tuple[int, ...] = (32,)
    stem_kernels: tuple[int, ...] = (3,)
    stem_strides: tuple[int, ...] = (2,)
    stem_pool_share: float = 0.0
    stages: tuple[int, int] = (4, 4)
    depth: tuple[int, int] = (1, 6)
    width: tuple[int, int] = (32, 1024)
    growth: tuple[int, int] = (8, 48)
    kernels: tuple[int, ...] = (3,)
    halvings: tuple[Halving, ...] = ("first-conv", "last-conv")
    activations: tuple[Activation, ...] = ("relu",)
    norm_share: float = 1.0
    heads: tuple[Head, ...] = ("linear",)
    classes: tuple[int, ...] = (1000,)
    tokens: tuple[int, int] = (16, 128)
    sequence_width: tuple[int, int] = (32, 512)
    sequence_depth: tuple[int, int] = (1, 6)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    batches_per_architecture: tuple[int, int] = (9, 9)
    most_flops: float | None = None

    def check(self) -> None:
        """Checks the values.

        Raises:
            UsageError: an invalid value.
        """
        for name in ("stages", "depth", "width", "growth", "tokens", "sequence_width",
                     "sequence_depth", "batches_per_architecture"):  # fmt: skip
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise UsageError(
                    f"space: {name} is [{low}, {high}], expected minimum and maximum, from 1 up"
                )
        for name in ("resolutions", "stem_widths", "stem_kernels", "stem_strides", "kernels",
                     "classes", "batches"):  # fmt: skip
            values = getattr(self, name)
            if not values or min(values) < 1:
                raise UsageError(f"space: {name} is {list(values)}, expected values from 1 up")
        if len(set(self.batches)) != len(self.batches):
            raise UsageError(f"space: batches is {list(self.batches)}, expected different values")
        for name in ("halvings", "activations", "heads"):
            if not getattr(self, name):
                raise UsageError(f"space: {name} is empty, expected at least one")
        if any(kernel % 2 == 0 for kernel in (*self.kernels, *self.stem_kernels)):
            raise UsageError(
                f"space: kernels {list(self.kernels)} and stem_kernels "
                f"{list(self.stem_kernels)}, expected odd values"
            )
        if not set(self.stem_strides) <= {1, 2}:
            raise UsageError(f"space: stem_strides is {list(self.stem_strides)}, expected 1 and 2")
        shares = (self.transformer_share, self.mlp_share, self.stem_pool_share, self.norm_share)
        if not all(0 <= share <= 1 for share in (*shares, shares[0] + shares[1])):
            raise UsageError(
                f"space: shares {list(shares)}, expected 0 to 1 each and for transformers and "
                "perceptrons together"
            )
        if self.batches_per_architecture[0] > len(self.batches):
            raise UsageError(
                f"space: batches_per_architecture is {list(self.batches_per_architecture)} of "
                f"{len(self.batches)} batches; give more batches or request fewer"
            )
        if self.most_flops is not None and not self.most_flops > 0:
            raise UsageError(f"space: most_flops is {self.most_flops}, expected above 0")


@dataclass(frozen=True)
class GeneratedNetwork:
    """An architecture with its batch sizes.

    Attributes:
        spec: the architecture.
        batches: batch sizes.
        flops: number of operations of one inference of one sample.
    """

    spec: ArchitectureSpec
    batches: tuple[int, ...]
    flops: float


def generate(
    space: SearchSpace,
    count: int,
    *,
    seed: int = 0,
    known: Sequence[GeneratedNetwork] = (),
    flops_of: Callable[[ArchitectureSpec], float] | None = None,
) -> Iterator[GeneratedNetwork]:
    """Yields unique architectures; a smaller `count` yields a prefix of a larger one.

    Args:
        space: the search space.
        count: number of architectures.
        seed: the same seed gives the same architectures.
        known: first architectures, from an earlier call with the same space and seed.
        flops_of: returns the number of operations of one inference of one sample; None = from the
            operator graph.

    Raises:
        UsageError: the search space is invalid, or has too few different architectures below
            `most_flops`.
    """
    space.check()
    flops_of = flops_of or graph_flops
    seen = {network.spec.architecture_id for network in known}
    yield from known[:count]
    for index in range(len(known), count):
        for attempt in range(_MOST_DRAWS):
            rng = np.random.default_rng([seed, index, attempt])
            spec = draw_architecture(space, rng)
            if spec is None or spec.architecture_id in seen:
                continue
            flops = flops_of(spec)
            batches = _draw_batches(space, flops, rng)
            if batches:
                break
        else:
            raise UsageError(
                f"space: no {index + 1}. new architecture in {_MOST_DRAWS} draws that fits its "
                f"resolution and stays below most_flops ({space.most_flops}) at "
                f"{space.batches_per_architecture[0]} batches; widen the space or request fewer "
                "architectures"
            )
        seen.add(spec.architecture_id)
        yield GeneratedNetwork(spec, batches, flops)


def graph_flops(spec: ArchitectureSpec) -> float:
    """Returns the number of operations of one inference of one sample."""
    from cdmpp.networks.architectures.generated_graph import generated_graph

    return float(generated_graph(spec, batch=1).flops.sum())


def draw_architecture(space: SearchSpace, rng: np.random.Generator) -> ArchitectureSpec | None:
    """Returns a random architecture; None if the draw is invalid, e.g. for its resolution."""
    family = rng.random()
    if family < space.transformer_share:
        return _draw_transformer(space, rng)
    if family < space.transformer_share + space.mlp_share:
        return ArchitectureSpec(mlp=_draw_mlp(space, rng))
    resolution = _choose(rng, space.resolutions)
    cnn = _draw_cnn(space, rng)
    # Batch normalisation cannot be trained with one value per channel.
    if resolution >> cnn.halvings < 2:
        return None
    return ArchitectureSpec(resolution=resolution, cnn=cnn)


def _draw_batches(space: SearchSpace, flops: float, rng: np.random.Generator) -> tuple[int, ...]:
    """Returns the batch sizes in ascending order; empty if too few are below the limit."""
    limit = space.most_flops
    allowed = [size for size in space.batches if limit is None or size * flops <= limit]
    fewest, most = space.batches_per_architecture
    if len(allowed) < fewest:
        return ()
    count = int(rng.integers(fewest, min(most, len(allowed)) + 1))
    return tuple(sorted(int(size) for size in rng.choice(allowed, count, replace=False)))


def _draw_cnn(space: SearchSpace, rng: np.random.Generator) -> CnnSpec:
    # One maximum width per network, so that narrow networks are drawn as often as wide ones.
    low, high = space.width
    ceiling = _log_uniform(rng, min(2 * low, high), high)
    channels = stem_width = _choose(rng, space.stem_widths)
    stages = []
    for _ in range(int(rng.integers(space.stages[0], space.stages[1] + 1))):
        width = _channels(_log_uniform(rng, low, ceiling))
        stages.append(_draw_stage(space, rng, channels, width))
        channels = width
    return CnnSpec(
        stem_width=stem_width,
        stem_kernel=_choose(rng, space.stem_kernels),
        stem_stride=_choose(rng, space.stem_strides),
        has_stem_pool=bool(rng.random() < space.stem_pool_share),
        stages=tuple(stages),
        activation=_choose(rng, space.activations),
        has_norm=bool(rng.random() < space.norm_share),
        head=_choose(rng, space.heads),
        classes=_choose(rng, space.classes),
    )


def _draw_stage(
    space: SearchSpace, rng: np.random.Generator, channels: int, width: int
) -> StageSpec:
    style = _choose(rng, _STYLES)
    depth = int(rng.integers(space.depth[0], space.depth[1] + 1))
    halving = _choose(rng, space.halvings)
    kernel = _choose(rng, space.kernels)
    if depth == 1 and style != "dense" and halving == "last-conv":
        halving = "first-conv"  # the same block, under one name
    if style == "inception":
        squeezed = bool(rng.random() < 0.3)
        branches = int(rng.integers(2, 4 if squeezed else 5))
        return StageSpec(
            style, depth, width, halving, kernel, branches=branches, has_shared_squeeze=squeezed
        )
    if style == "residual":
        expansion = _choose(rng, (0, 0, 2, 4))
        inner = width // expansion if expansion else width
        groups = _choose(rng, [g for g in (1, 1, 2, 4, 8, 16, 32) if inner % g == 0])
        return StageSpec(style, depth, width, halving, kernel, groups=groups, expansion=expansion)
    if style == "dense":
        growth = _channels(_log_uniform(rng, *space.growth))
        expansion = _choose(rng, (0, 2, 4))
        return StageSpec(style, depth, width, halving, kernel, growth=growth, expansion=expansion)
    if style == "separable":
        expansion = _choose(rng, (0, 1, 2, 4, 6))
        # MobileNets do not expand wide inputs further.
        expansion = min(expansion, max(0, 1536 // channels))
        return StageSpec(style, depth, width, halving, max(kernel, 3), expansion=expansion)
    return StageSpec(style, depth, width, halving, kernel)


def _draw_transformer(space: SearchSpace, rng: np.random.Generator) -> ArchitectureSpec | None:
    heads = _choose(rng, (1, 2, 4, 8))
    head_width = _choose(rng, (16, 32, 64))
    width = heads * head_width
    low, high = space.sequence_width
    if not low <= width <= high:
        return None
    resolution, patch, vocabulary = None, 0, 0
    if rng.random() < 0.5:
        vocabulary = _choose(rng, (512, 1000, 4000))
        tokens = round(_log_uniform(rng, *space.tokens))
    else:
        resolution, patch = _choose(rng, space.resolutions), _choose(rng, (4, 8, 16, 32))
        tokens = (resolution // patch) ** 2
        if resolution % patch or not space.tokens[0] <= tokens <= space.tokens[1]:
            return None
    return ArchitectureSpec(
        resolution=resolution,
        transformer=TransformerSpec(
            source="patches" if patch else "tokens",
            tokens=tokens,
            width=width,
            depth=int(rng.integers(space.sequence_depth[0], space.sequence_depth[1] + 1)),
            heads=heads,
            mlp_ratio=_choose(rng, (2, 4)),
            activation=_choose(rng, ("relu", "gelu")),
            is_attention_fused=bool(rng.random() < 0.3),
            is_norm_first=bool(rng.random() < 0.5),
            vocabulary=vocabulary,
            patch=patch,
            classes=_choose(rng, space.classes),
        ),
    )


def _draw_mlp(space: SearchSpace, rng: np.random.Generator) -> MlpSpec:
    low, high = space.sequence_width
    depth = int(rng.integers(space.sequence_depth[0], space.sequence_depth[1] + 1))
    return MlpSpec(
        features=_channels(_log_uniform(rng, low, 4 * high)),
        width=_channels(_log_uniform(rng, low, 4 * high)),
        depth=depth,
        activation=_choose(rng, ("relu", "gelu", "silu")),
        has_norm=bool(rng.random() < 0.3),
        is_residual=bool(depth > 1 and rng.random() < 0.4),
        classes=_choose(rng, space.classes),
    )


def _choose(rng: np.random.Generator, options: Sequence[Choice]) -> Choice:
    if not options:
        raise DataError("nothing to choose from; expected at least one option")
    return options[int(rng.integers(len(options)))]


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _channels(value: float) -> int:
    """Returns the nearest multiple of eight, at least eight."""
    return max(_CHANNEL_STEP, round(value / _CHANNEL_STEP) * _CHANNEL_STEP)
