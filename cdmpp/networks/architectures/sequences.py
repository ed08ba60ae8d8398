"""Generated transformers and perceptrons."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from cdmpp.networks.architectures.blocks import make_activation
from cdmpp.networks.architectures.spec import MlpSpec, TransformerSpec

_IMAGE_CHANNELS = 3


class Transformer(nn.Module):
    """Embedding, encoder layers, classifier on the mean token.

    Input: [batch, token] integers or [batch, 3, height, width]; output: [batch, classes].
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.takes_patches = spec.source == "patches"
        self.embed: nn.Module = (
            nn.Conv2d(_IMAGE_CHANNELS, spec.width, spec.patch, stride=spec.patch)
            if self.takes_patches
            else nn.Embedding(spec.vocabulary, spec.width)
        )
        self.position = nn.Parameter(torch.zeros(1, spec.tokens, spec.width))
        self.layers = nn.Sequential(*(EncoderLayer(spec) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.width)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        embedded = self.embed(inputs)
        if self.takes_patches:
            embedded = embedded.flatten(2).transpose(1, 2)
        tokens = self.norm(self.layers(embedded + self.position))
        outputs: torch.Tensor = self.head(tokens.mean(1))
        return outputs


class EncoderLayer(nn.Module):
    """Attention and perceptron, each added to its input. [batch, token, width]."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.attention = Attention(spec)
        self.mlp = nn.Sequential(
            nn.Linear(spec.width, spec.width * spec.mlp_ratio), make_activation(spec.activation),
            nn.Linear(spec.width * spec.mlp_ratio, spec.width),
        )  # fmt: skip
        self.norm_1 = nn.LayerNorm(spec.width)
        self.norm_2 = nn.LayerNorm(spec.width)
        self.is_norm_first = spec.is_norm_first

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.is_norm_first:
            tokens = tokens + self.attention(self.norm_1(tokens))
            outputs: torch.Tensor = tokens + self.mlp(self.norm_2(tokens))
            return outputs
        tokens = self.norm_1(tokens + self.attention(tokens))
        outputs = self.norm_2(tokens + self.mlp(tokens))
        return outputs


class Attention(nn.Module):
    """Self-attention of several heads. [batch, token, width]."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.query = nn.Linear(spec.width, spec.width)
        self.key = nn.Linear(spec.width, spec.width)
        self.value = nn.Linear(spec.width, spec.width)
        self.project = nn.Linear(spec.width, spec.width)
        self.heads = spec.heads
        self.is_fused = spec.is_attention_fused
        self.scale = 1.0 / math.sqrt(spec.width // spec.heads)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query = self.query(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        key = self.key(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        value = self.value(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)
        if self.is_fused:
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            weights = torch.matmul(query, key.transpose(2, 3)) * self.scale
            mixed = torch.matmul(torch.softmax(weights, dim=-1), value)
        outputs: torch.Tensor = self.project(mixed.transpose(1, 2).flatten(2))
        return outputs


class Mlp(nn.Module):
    """Fully connected layers. Input [batch, feature], output [batch, classes]."""

    def __init__(self, spec: MlpSpec) -> None:
        super().__init__()
        self.first = _hidden_layer(spec, spec.features)
        self.others = nn.ModuleList(_hidden_layer(spec, spec.width) for _ in range(spec.depth - 1))
        self.head = nn.Linear(spec.width, spec.classes)
        self.is_residual = spec.is_residual

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs)
        for layer in self.others:
            hidden = hidden + layer(hidden) if self.is_residual else layer(hidden)
        outputs: torch.Tensor = self.head(hidden)
        return outputs


def _hidden_layer(spec: MlpSpec, features: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(features, spec.width)]
    if spec.has_norm:
        layers.append(nn.LayerNorm(spec.width))
    return nn.Sequential(*layers, make_activation(spec.activation))
