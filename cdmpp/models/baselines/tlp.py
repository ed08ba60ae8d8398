"""TLP as a cost model: schedule steps instead of lowered programs."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from cdmpp.models.baselines.base import TorchPeer
from cdmpp.models.baselines.step_coder import StepCoder
from cdmpp.models.nets.step_transformer import StepTransformer
from cdmpp.models.options import TlpOptions


class TlpCostModel(TorchPeer[TlpOptions]):
    """A transformer over Ansor's transform steps, trained on seconds.

    Only programs of Tenset records have these steps; others raise `NotApplicableError`.

    Source: Zhai et al., TLP: A Deep Learning-based Cost Model for Tensor Program Tuning, ASPLOS
    2023.

    Differs from the paper: it predicts seconds (standardised log) where the original predicts
    throughput relative to the task's best; the device vector and the pooled added leaf columns are
    inputs of the head; CPU and GPU programs share one table of step codes; numbers are log-scaled
    and standardised; ranks are compared within a task on a device, not over a whole batch.
    """

    kind: ClassVar[str] = "tlp"
    options_class = TlpOptions
    coder_class = StepCoder

    def _new_network(self) -> nn.Module:
        coder = self._coder
        return StepTransformer(
            self._options.hidden,
            self._options.heads,
            feature_count=len(coder.step.mean),
            context_count=len(coder.context.mean),
            device_feature_count=len(coder.device.mean),
        )


class TlpRankCostModel(TlpCostModel):
    """TLP trained with the ranking loss, as its authors do."""

    kind: ClassVar[str] = "tlp-rank"

    @classmethod
    def default_options(cls) -> TlpOptions:
        """Returns the options with the ranking loss."""
        return TlpOptions(loss="lambda_rank")
