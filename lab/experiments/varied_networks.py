"""Random networks whose kernels a campaign measures.

Drawn with a seed: convolutional networks, transformers and perceptrons of the generator (`cdmpp
networks`), image generators of transposed convolutions, recommenders with embedding tables, and
single products of all sizes. No test network of searches or replays is among them.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.files.atomic import make_folder, write_atomic
from cdmpp.networks.architectures.build import build_module, make_inputs
from cdmpp.networks.architectures.generator import SearchSpace, generate

_SPACE = SearchSpace(
    transformer_share=0.15, mlp_share=0.05, resolutions=(64, 80, 96, 128, 160, 192, 208, 240),
    stem_widths=(16, 24, 32, 48, 64), stem_kernels=(3, 5, 7), stem_strides=(1, 2, 2),
    stem_pool_share=0.5, stages=(2, 4), depth=(1, 2), width=(16, 512), kernels=(3, 3, 3, 5, 7),
    halvings=("first-conv", "last-conv", "max-pool", "average-pool"),
    activations=("relu", "relu", "relu6", "silu", "gelu"), heads=("linear", "hidden", "conv"),
    classes=(10, 100, 1000), tokens=(16, 192), sequence_width=(64, 512), sequence_depth=(1, 2),
    batches_per_architecture=(1, 1),
)  # fmt: skip

#: Sizes of networks in common use.
_WIDE_SPACE = dataclasses.replace(
    _SPACE, resolutions=(112, 128, 160, 192, 208, 240, 256), width=(16, 1280),
    tokens=(16, 256), sequence_width=(64, 1024), stages=(3, 5), transformer_share=0.2,
)  # fmt: skip

_MOST_OF_CONVOLUTION = 4e8


class _Recommender(nn.Module):
    """Concatenation or pairwise products of embeddings and a perceptron's output; a perceptron."""

    def __init__(self, rows: int, tables: int, width: int, hidden: int, features: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU()
        )
        self.is_paired = tables % 2 == 0
        joined = (tables + 1) ** 2 if self.is_paired else (tables + 1) * width
        self.top = nn.Sequential(
            nn.Linear(joined, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Sigmoid()
        )

    def forward(self, dense: Tensor, indices: Tensor) -> Tensor:
        """Returns [batch, 1]."""
        found = [table(indices[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([self.bottom(dense), *found], 1)
        if self.is_paired:
            vectors = torch.matmul(vectors, vectors.transpose(1, 2))
        result: Tensor = self.top(vectors.flatten(1))
        return result


def networks(
    count: int, seed: int, batches: tuple[int, ...], most_flops: float, is_wide: bool
) -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """Yields (name, network, inputs)."""
    space = _WIDE_SPACE if is_wide else _SPACE
    space = dataclasses.replace(space, batches=batches, most_flops=most_flops)
    for number, drawn in enumerate(generate(space, count, seed=seed)):
        inputs = make_inputs(drawn.spec, drawn.batches[0])
        yield f"generated-{number:03d}", build_module(drawn.spec), inputs
    rng = np.random.default_rng(seed)
    for number in range(count // 5):
        yield f"recommender-{number:03d}", *_recommender(rng)
    for number in range(count // 10):
        yield f"image-generator-{number:03d}", *_image_generator(rng, batches, is_wide)


def experiment(
    out: Path,
    count: int = 60,
    seed: int = 0,
    batches: tuple[int, ...] = (1, 2, 4),
    most_flops: float = 2e9,
    wide: bool = False,
    products: int = 0,
    convolutions: int = 0,
    step: int = 1,
    rows: tuple[int, ...] = (1, 256),
    most_multiply_adds: float = 1.5e8,
    widths: tuple[int, ...] = (),
) -> None:
    """Writes the exported networks.

    Args:
        count: number of generated networks.
        batches: candidates for the batch.
        most_flops: maximum of a generated network.
        wide: whether to draw more channels and larger images.
        products: number of networks with one product.
        convolutions: number of networks with one convolution.
        step: of the products' widths that are no powers of two.
        rows: fewest and most rows of a product.
        most_multiply_adds: of a product; naive loops take 0.2 to 8 ns for each.
        widths: of the products, if they are not drawn.
    """
    make_folder(out, what="networks")
    torch.manual_seed(seed)
    for name, network, inputs in networks(count, seed, batches, most_flops, wide):
        export(network.eval(), inputs, out / f"{name}.pt2")
    rng = np.random.default_rng(seed)
    for number in range(products):
        layer = _product(rng, step, rows, most_multiply_adds, widths)
        export(*layer, out / f"product-{number:03d}.pt2")
    for number in range(convolutions):
        export(*_convolution(rng), out / f"convolution-{number:03d}.pt2")


def export(network: nn.Module, inputs: tuple[Tensor, ...], path: Path) -> None:
    """Writes an exported network."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, inputs)
    write_atomic(path, partial(_save, program))


def _recommender(rng: np.random.Generator) -> tuple[nn.Module, tuple[Tensor, ...]]:
    batch, tables = int(rng.choice([1, 16, 64, 200, 400, 1000])), int(rng.integers(3, 13))
    width, hidden = int(rng.choice([16, 32, 48, 96])), int(rng.choice([48, 96, 200, 400, 640]))
    features = int(rng.integers(4, 33))
    module = _Recommender(int(rng.choice([500, 5000, 30000])), tables, width, hidden, features)
    return module, (torch.zeros(batch, features), torch.zeros(batch, tables, dtype=torch.int64))


def _image_generator(
    rng: np.random.Generator, batches: tuple[int, ...], is_wide: bool
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    widths = [192, 320, 640] if is_wide else [96, 160, 320]
    ci, co = int(rng.choice([48, 80, 128])), int(rng.choice(widths))
    layers: list[nn.Module] = [nn.ConvTranspose2d(ci, co, 4, 1, 0), nn.ReLU()]
    batch = int(rng.choice(batches))
    for _ in range(int(rng.integers(2, 4))):
        layers += [
            nn.ConvTranspose2d(co, co // 2, 4, 2, 1, bias=False), nn.BatchNorm2d(co // 2), nn.ReLU()
        ]  # fmt: skip
        co //= 2
    layers += [nn.Conv2d(co, 3, 5, 1, 2), nn.Tanh()]
    return nn.Sequential(*layers), (torch.zeros(batch, ci, 1, 1),)


def _product(
    rng: np.random.Generator,
    step: int,
    rows: tuple[int, ...],
    most_multiply_adds: float,
    candidates: tuple[int, ...],
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a linear layer: sizes log-uniform, half of its widths powers of two.

    With candidates, both widths are among them.
    """
    while True:
        low, high = np.log([rows[0], 48, 48]), np.log([rows[1], 4096, 4096])
        count, inputs, outputs = np.exp(rng.uniform(low, high))
        widths = [
            2 ** round(np.log2(one)) if rng.random() < 0.5 else max(1, int(one) // step) * step
            for one in (inputs, outputs)
        ]
        if candidates:
            widths = rng.choice(candidates, 2).tolist()
        if count * widths[0] * widths[1] < most_multiply_adds:
            break
    linear = nn.Linear(widths[0], widths[1], bias=bool(rng.random() < 0.7))
    activation = (nn.Identity(), nn.ReLU(), nn.GELU())[rng.integers(3)]
    return nn.Sequential(linear, activation).eval(), (torch.zeros(int(count), widths[0]),)


def _convolution(rng: np.random.Generator) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a convolution: sizes log-uniform, half powers of two."""
    kernel = int(rng.choice([1, 1, 3, 5]))
    while True:
        low, high = np.log([1, 14, 3, 16]), np.log([4.5, 272, 640, 640])
        batch, side, ci, co = np.exp(rng.uniform(low, high))
        batch = int(batch)
        side, ci, co = (
            2 ** round(np.log2(one)) if rng.random() < 0.5 else int(one) // 8 * 8 or int(one)
            for one in (side, ci, co)
        )
        stride = int(rng.choice([1, 1, 2]))
        depthwise = kernel > 1 and rng.random() < 0.25
        if depthwise:
            co = ci
        points = batch * (side // stride) ** 2
        multiply_adds = points * co * kernel**2 * (1 if depthwise else ci)
        if 1e6 < multiply_adds < _MOST_OF_CONVOLUTION:
            break
    layer = nn.Conv2d(
        ci, co, kernel, stride, kernel // 2, groups=ci if depthwise else 1,
        bias=bool(rng.random() < 0.9),
    )  # fmt: skip
    activation = (nn.Identity(), nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.GELU())[rng.integers(5)]
    return nn.Sequential(layer, activation).eval(), (torch.zeros(batch, ci, side, side),)


def _save(program: torch.export.ExportedProgram, path: Path) -> None:
    with path.open("wb") as stream:  # torch wants another suffix of a path
        torch.export.save(program, stream)
