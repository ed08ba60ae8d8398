"""Kinds of cost models by name; a kind's module is imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib

from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel

#: kind -> (module, class). Everything else finds models through this table.
MODEL_CLASSES = {
    "cdmpp-paper": ("cdmpp.models.peers.cdmpp_paper", "CdmppPaperCostModel"),
    "constant": ("cdmpp.models.constant", "ConstantCostModel"),
    "ensemble": ("cdmpp.models.ensemble", "EnsembleCostModel"),
    "gbdt": ("cdmpp.models.gbdt", "GbdtCostModel"),
    "gbdt-rank": ("cdmpp.models.gbdt", "GbdtRankCostModel"),
    "recursive-lstm": ("cdmpp.models.peers.recursive_lstm", "RecursiveLstmCostModel"),
    "roofline": ("cdmpp.models.roofline", "RooflineCostModel"),
    "segment-mlp": ("cdmpp.models.peers.segment_mlp", "SegmentMlpCostModel"),
    "tlp": ("cdmpp.models.peers.tlp", "TlpCostModel"),
    "tlp-rank": ("cdmpp.models.peers.tlp", "TlpRankCostModel"),
    "transformer": ("cdmpp.models.transformer", "TransformerCostModel"),
}


def model_class(kind: str) -> type[CostModel]:
    """Returns the class registered under `kind`.

    Raises:
        UsageError: there is no such kind.
    """
    if kind not in MODEL_CLASSES:
        near = difflib.get_close_matches(kind, MODEL_CLASSES, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"unknown model {kind!r}; expected one of {', '.join(sorted(MODEL_CLASSES))}{guess}"
        )
    module, name = MODEL_CLASSES[kind]
    found: type[CostModel] = getattr(importlib.import_module(module), name)
    return found
