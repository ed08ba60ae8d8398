"""Writes the operator graphs of the preset networks of `cdmpp compare`'s page, and the sample
networks of the page as ONNX files whose weights are inputs.

    python scripts/page/samples.py
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from cdmpp.comparison.known_networks import BATCHES, KNOWN_NETWORKS
from cdmpp.files.atomic import write_bytes
from cdmpp.files.stored import to_json
from cdmpp.networks.predict import NetworkPredictor
from examples.networks import bert_large, resnet50

_ROOT = Path(__file__).parents[2] / "cdmpp"
GRAPHS = _ROOT / "comparison/networks"
SAMPLES = _ROOT / "serve/page/gallery"


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        parts = self.query_key_value(self.first(x)).chunk(3, dim=-1)
        query, key, value = (part.view(split).transpose(1, 2) for part in parts)
        scores = torch.softmax(query @ key.transpose(-2, -1) * split[-1] ** -0.5, dim=-1)
        x = x + self.out((scores @ value).transpose(1, 2).reshape(batch, length, width))
        found: Tensor = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return found


class _Vit(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.layers = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patches(x).flatten(2).transpose(1, 2))
        found: Tensor = self.head(self.norm(x).mean(1))
        return found


def vit_b() -> nn.Module:
    """Returns ViT-B/16 (Dosovitskiy et al., 2020), with mean pooling instead of a class token."""
    return _Vit(12, 768, 12)


FACTORIES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "resnet50": (resnet50, (3, 224, 224), torch.float32),
    "vit_b": (vit_b, (3, 224, 224), torch.float32),
    "bert_large": (bert_large, (384,), torch.int64),
}


class _Onnx:
    """Builder of an ONNX file; weights are inputs, so that the file is small."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.nodes: list[Any] = []
        self.inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        self.last = "x"

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node; its default input is the output of the last node."""
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs) or [self.last], [name], **attributes))
        self.last = name
        return name

    def convolution(self, ci: int, co: int, kernel: int, stride: int = 1, of: str = "") -> str:
        """Adds a convolution with a bias (a batch norm folds into it)."""
        pads = [kernel // 2] * 4
        weights = self.weight(co, ci, kernel, kernel), self.weight(co)
        return self.add("Conv", of or self.last, *weights, pads=pads, strides=[stride, stride])

    def linear(self, width: int, wide: int, of: str = "") -> str:
        product = self.add("MatMul", of or self.last, self.weight(width, wide))
        return self.add("Add", product, self.weight(wide))

    def write(self, path: Path, shape: Sequence[int]) -> None:
        """Writes the file."""
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        write_bytes(path, model.SerializeToString())


def resnet18(path: Path) -> None:
    """Writes ResNet-18 (He et al., 2015)."""
    net = _Onnx([1, 3, 224, 224])
    net.convolution(3, 64, 7, 2)
    net.add("Relu")
    net.add("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ci = 64
    for co in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and co > 64 else 1
            start = net.last
            net.convolution(ci, co, 3, stride)
            net.add("Relu")
            body = net.convolution(co, co, 3)
            short = start if stride == 1 and ci == co else net.convolution(ci, co, 1, stride, start)
            net.add("Add", body, short)
            net.add("Relu")
            ci = co
    net.add("GlobalAveragePool")
    net.add("Flatten")
    net.linear(512, 1000)
    net.write(path, [1, 1000])


def encoder_layer(path: Path) -> None:
    """Writes a layer of BERT-base over 128 tokens."""
    width, heads, length = 768, 12, 128
    net = _Onnx([1, length, width])
    shape = _constant(net, "split", [1, length, heads, width // heads])
    query, key, value = (
        net.add("Transpose", net.add("Reshape", net.linear(width, width, "x"), shape), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    net.add("Mul", net.add("MatMul", query, key), net.weight(1))
    weights = net.add("Softmax", axis=-1)
    net.add("Transpose", net.add("MatMul", weights, value), perm=[0, 2, 1, 3])
    net.add("Reshape", net.last, _constant(net, "join", [1, length, width]))
    net.add("Add", net.linear(width, width), "x")
    middle = net.add("LayerNormalization", net.last, net.weight(width), net.weight(width))
    up = net.linear(width, 4 * width)
    net.add("Mul", up, net.add("Sigmoid", net.add("Mul", up, net.weight(1))))
    net.add("Add", net.linear(4 * width, width), middle)
    net.add("LayerNormalization", net.last, net.weight(width), net.weight(width))
    net.write(path, [1, length, width])


def _constant(net: _Onnx, name: str, values: Sequence[int]) -> str:
    tensor = helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values))
    net.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
    return name


def main() -> None:
    """Writes the graphs and the ONNX files."""
    resnet18(SAMPLES / "resnet-18.onnx")
    encoder_layer(SAMPLES / "bert-layer.onnx")
    predictor = NetworkPredictor.load()
    for name, file in KNOWN_NETWORKS.items():
        factory, shape, dtype = FACTORIES[file]
        for graph in predictor.graphs(factory, [shape], BATCHES, name=name, dtypes=[dtype]):
            text = json.dumps(to_json(graph), separators=(",", ":"))
            data = gzip.compress(text.encode(), mtime=0)
            write_bytes(GRAPHS / f"{file}-{graph.batch}.json.gz", data)


if __name__ == "__main__":
    main()
