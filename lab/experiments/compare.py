"""Predictions of `cdmpp compare` for whole transformers that NeuSight measured on GPUs.

Float32 inference in eager torch on one GPU. The measured totals are those of NeuSight's
`peers/models.csv`; no model here was fitted to them. Each chip is predicted by the shipped model
and by a model fitted without the chip.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cdmpp.analytic.operators.intervals import JudgedOperators, packaged_operators
from cdmpp.comparison.eager import eager_cells
from cdmpp.devices.registry import get_device
from cdmpp.networks.gpu_operators import OPERATORS, network_sums
from cdmpp.networks.graph.execution import Running
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.live_memory import roofline_seconds
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.text import markdown_table, percent_text
from lab.experiments.kernel_intervals import card, instance_errors, models_without, unseen_errors
from lab.pages import sections, write_page
from lab.paths import SHARED_DATA
from lab.stamp import stamp

LABELS = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA L4": "l4",
    "Tesla P100-PCIE-16GB": "p100", "Tesla P4": "p4", "Tesla T4": "t4",
    "Tesla V100-PCIE-32GB": "v100-32gb", "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}  # fmt: skip
LEFT_OUT = "operator models without the chip"


@dataclass(frozen=True)
class Shape:
    """A transformer as in NeuSight's traces.

    `vocab`: output tokens of its head, 0 without a head. `activation`: between the two products of
    the feed-forward part. `adds_mask`: whether attention adds a mask.
    """

    layers: int
    width: int
    heads: int
    vocab: int
    activation: Callable[[Tensor], Tensor]
    adds_mask: bool


def _new_gelu(x: Tensor) -> Tensor:
    """GELU as GPT-2's code computes it."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


SHAPES = {
    "bert_large": Shape(24, 1024, 16, 0, nn.functional.gelu, True),
    "gpt2_large": Shape(36, 1280, 20, 50257, _new_gelu, False),
    "gpt3_xl": Shape(24, 3072, 24, 50257, _new_gelu, False),
    "gpt3_27": Shape(32, 2560, 32, 50257, _new_gelu, False),
    "opt_13": Shape(24, 2048, 32, 50272, nn.functional.relu, True),
}


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.shape = shape
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.qkv = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Returns the layer's output tokens."""
        batch, length, width = x.shape
        heads = self.shape.heads
        y = self.first(x)
        if self.shape.adds_mask:
            parts = [self.query(y), self.key(y), self.value(y)]
        else:
            parts = list(self.qkv(y).chunk(3, dim=-1))
        size = (batch, length, heads, width // heads)
        query, key, value = (part.view(size).transpose(1, 2) for part in parts)
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // heads)
        if self.shape.adds_mask:
            scores = scores + mask
        shares = torch.softmax(scores, dim=-1)
        attended = (shares @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        found: Tensor = x + self.down(self.shape.activation(self.up(self.second(x))))
        return found


class _Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab or 30522, shape.width)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False) if shape.vocab else None

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Returns the last layer's tokens, or logits if there is a head."""
        x: Tensor = self.tokens(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        if self.head is not None:
            x = self.head(x)
        return x


@dataclass(frozen=True)
class Judged:
    """One measured model on one GPU; times in seconds."""

    device: str
    model: str
    batch: int
    length: int
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float
    roofline_s: float
    neusight_s: float | None
    method: str

    @property
    def error(self) -> float:
        """Absolute percentage error, as a fraction."""
        return abs(self.predicted_s / self.measured_s - 1.0)


def graph_of(model: str, batch: int, length: int) -> NetworkGraph:
    """Returns the operator graph of one of `SHAPES`."""
    return torch_graph(
        lambda: _Model(SHAPES[model]), [(length,), (1, 1, length)], batch=batch, name=model,
        dtypes=[torch.int64, torch.float32],
    )  # fmt: skip


def judge(
    folder: Path, devices: Sequence[str] = (), models: Sequence[str] = tuple(SHAPES)
) -> list[Judged]:
    """Returns all measured inferences of these models on registered GPUs that can be predicted.

    Args:
        devices: labels; empty for all.
        models: names of `SHAPES`.
    """
    predictor = NetworkPredictor.load()
    with (folder / "peers" / "models.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["phase"] == "inference"]
    graphs: dict[tuple[str, int, int], NetworkGraph] = {}
    found = []
    for row in rows:
        label = LABELS.get(row["device"])
        if row["option"] or row["model"] not in models or label is None:
            continue
        spec = get_device(label)
        if devices and label not in devices:
            continue
        key = row["model"], int(row["batch"]), int(row["seq"])
        if key not in graphs:
            graphs[key] = graph_of(*key)
        (cell,) = eager_cells(predictor, [graphs[key]], [spec], Running())
        if cell.latency_s is None or cell.low_s is None or cell.high_s is None:
            continue
        neusight = float(row["neusight_ms"]) / 1e3 if row["neusight_ms"] else None
        found.append(
            Judged(
                label, *key, float(row["measured_ms"]) / 1e3, cell.latency_s, cell.low_s,
                cell.high_s, roofline_seconds(graphs[key], spec, "infer"), neusight, cell.method,
            )
        )  # fmt: skip
    return found


def judge_left_out(folder: Path, rows: Sequence[Judged]) -> list[Judged]:
    """Returns the rows of the operator models, predicted by models that were fitted without the
    chip. Their intervals are calibrated on the errors of the other chips when held out.
    """
    models = dict(models_without(folder))
    seen = instance_errors(packaged_operators().model, folder, is_seen=True)
    unseen = unseen_errors(models.items(), folder)
    graphs = {key: graph_of(*key) for key in {(row.model, row.batch, row.length) for row in rows}}
    found = []
    for chip, model in models.items():
        others = {labels: errors for labels, errors in unseen.items() if labels != chip}
        operators = JudgedOperators(model, card(seen, others))
        for row in rows:
            if row.device in chip and row.method == OPERATORS:
                graph = graphs[row.model, row.batch, row.length]
                sums = network_sums(graph, get_device(row.device), operators)
                value, low, high = sums.total()
                found.append(
                    replace(row, predicted_s=value, low_s=low, high_s=high, method=LEFT_OUT)
                )
    return found


def _line(name: str, rows: Sequence[Judged]) -> list[str]:
    errors = np.array([row.error for row in rows])
    held = float(np.mean([row.low_s <= row.measured_s <= row.high_s for row in rows]))
    roofline = np.array([abs(row.roofline_s / row.measured_s - 1) for row in rows])
    peers = [abs(row.neusight_s / row.measured_s - 1) for row in rows if row.neusight_s is not None]
    return [
        name, str(len(rows)), f"{100 * errors.mean():.1f} / {100 * np.median(errors):.1f}",
        percent_text(held, 0), f"{100 * roofline.mean():.1f}", f"{100 * np.mean(peers):.1f}",
    ]  # fmt: skip


def page(rows: Sequence[Judged]) -> str:
    """Returns the Markdown page."""
    titles = ["GPU", "models", "error, mean / median (%)", "in the 90 % interval", "roofline (%)",
              "NeuSight (%)"]  # fmt: skip
    lines = []
    for method in dict.fromkeys((OPERATORS, LEFT_OUT, *(row.method for row in rows))):
        own = [row for row in rows if row.method == method]
        lines.append(_line(f"**{method}**", own))
        lines += [_line(label, _on(own, label)) for label in sorted({row.device for row in own})]
    return sections("compare", table=markdown_table(titles, lines, "lr"))


def _on(rows: Sequence[Judged], label: str) -> list[Judged]:
    return [row for row in rows if row.device == label]


def experiment(neusight: Path = SHARED_DATA / "neusight") -> None:
    """Predicts the measured models and writes the page."""
    rows = judge(neusight)
    rows += judge_left_out(neusight, rows)
    models = [f"pretrained:{name}" for name in ("gpu_kernels", "networks", "operators")]
    found = stamp("python -m lab run compare", models=models)
    print(write_page("compare", page(rows), {"rows": [asdict(row) for row in rows]}, found))
