"""Tenset's segment-sum perceptron as a cost model."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from cdmpp.datasets.samples import Samples
from cdmpp.models.baselines.base import TorchPeer
from cdmpp.models.nets.segment_mlp import SegmentMlp
from cdmpp.models.options import SegmentMlpOptions
from cdmpp.models.parts.leaf_coder import LeafCoder, LeafInputs


class SegmentMlpCostModel(TorchPeer[SegmentMlpOptions]):
    """A perceptron on each leaf, a sum over leaves, and a perceptron on the sum and the device.

    Source: Zheng et al., TenSet: A Large-scale Program Performance Dataset for Learned Tensor
    Compilers, NeurIPS Datasets 2021.

    Differs from the paper: it predicts seconds (standardised log) where the original predicts
    throughput relative to the task's best; leaves are stores instead of buffers; the device vector
    and the added leaf columns are inputs; columns are standardised.
    """

    kind: ClassVar[str] = "segment-mlp"
    options_class = SegmentMlpOptions
    coder_class = LeafCoder

    def _asked(self, samples: Samples) -> LeafInputs:
        return LeafInputs(samples, self._coder, alike=True)

    def _new_network(self) -> nn.Module:
        return SegmentMlp(
            self._options.hidden,
            feature_count=len(self._coder.leaf.mean),
            device_feature_count=len(self._coder.device.mean),
        )
