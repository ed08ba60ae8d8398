"""The network of the original CDMPP: one encoder and one block for each number of leaves."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cdmpp.models.nets.options import CdmppPaperOptions


@dataclass(frozen=True)
class LeafCountBatch:
    """Programs grouped by their number of leaves, and their samples.

    Attributes:
        leaves: one float32 [program, leaf, feature] per group, scaled leaf vectors plus their
            positional encoding.
        place: int64 [batch], row of each program in the concatenated groups.
        program: int64 [sample], each sample's program in the batch.
        device: float32 [sample, device_feature], device vectors.
    """

    leaves: tuple[Tensor, ...]
    place: Tensor
    program: Tensor
    device: Tensor


class LeafCountNet(nn.Module):
    """Transformer encoder, a block per number of leaves, a device encoder and a decoder.

    The post-norm encoder reads the leaf vectors directly. The latent of the device is added to that
    of the program. All linear layers but the last have batch norm.
    """

    def __init__(
        self,
        options: CdmppPaperOptions,
        leaf_counts: Sequence[int],
        *,
        feature_count: int,
        device_feature_count: int,
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            feature_count,
            4 if feature_count % 4 == 0 else 5,
            dim_feedforward=options.feed_forward,
            dropout=options.dropout,
            batch_first=True,
        )
        self.encoder = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)
        inner = (options.input_layer, *options.embedded_layers, options.latent)
        self.blocks = nn.ModuleDict(
            {
                str(count): nn.Sequential(
                    nn.Linear(count * feature_count, options.input_layer),
                    nn.BatchNorm1d(options.input_layer),
                    _layers(inner),
                )
                for count in leaf_counts
            }
        )
        self.device = _layers((device_feature_count, *options.device_layers, options.latent))
        self.latent_norm = nn.BatchNorm1d(options.latent, affine=False)
        self.decoder = _layers((options.latent, *options.regression_layers))
        self.output = nn.Linear(options.regression_layers[-1], 1)
        self.leaf_counts = tuple(leaf_counts)

    def forward(self, batch: LeafCountBatch) -> Tensor:
        """Returns float32 [sample], normalised labels; NaN becomes 0."""
        latents = torch.cat([self._latent(leaves) for leaves in batch.leaves])
        latent = self.latent_norm(latents[batch.place[batch.program]])
        latent = latent + self.latent_norm(self.device(batch.device))
        result: Tensor = self.output(self.decoder(latent)).squeeze(1)
        return torch.nan_to_num(result, nan=0.0)

    def _latent(self, leaves: Tensor) -> Tensor:
        """Returns float32 [program, latent] of programs with the same number of leaves."""
        block = self.blocks[str(leaves.shape[1])]
        # A single row has no batch statistics, so the running ones are used.
        block.train(self.training and len(leaves) > 1)
        latent: Tensor = block(self.encoder(leaves).flatten(1))
        return latent


def _layers(widths: Sequence[int]) -> nn.Sequential:
    """Returns linear layers, each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers)
