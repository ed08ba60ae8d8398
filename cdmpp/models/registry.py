"""Kinds of cost models by name; a kind's module is imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib

from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel

#: kind -> (module, class). Everything else finds models through this table.
MODEL_CLASSES = {
    "cdmpp-paper": ("cdmpp.models.baselines.cdmpp_paper", "CdmppPaperCostModel"),
    "constant": ("cdmpp.models.constant", "ConstantCostModel"),
    "ensemble": ("cdmpp.models.ensemble", "EnsembleCostModel"),
    "gbdt": ("cdmpp.models.gbdt", "GbdtCostModel"),
    "gbdt-rank": ("cdmpp.models.gbdt", "GbdtRankCostModel"),
    "recursive-lstm": ("cdmpp.models.baselines.recursive_lstm", "RecursiveLstmCostModel"),
    "roofline": ("cdmpp.models.roofline", "RooflineCostModel"),
    "segment-mlp": ("cdmpp.models.baselines.segment_mlp", "SegmentMlpCostModel"),
    "tlp": ("cdmpp.models.baselines.tlp", "TlpCostModel"),
    "tlp-rank": ("cdmpp.models.baselines.tlp", "TlpRankCostModel"),
    "transformer": ("cdmpp.models.transformer", "TransformerCostModel"),
}

#: Likewise, kinds that are no training's: they are only saved and loaded.
_MADE_CLASSES = {"adapted": ("cdmpp.models.adapted", "AdaptedCostModel")}


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
    return _imported(*MODEL_CLASSES[kind])


def saved_model_class(kind: str) -> type[CostModel]:
    """Returns the class of a saved model, which may be of a kind that cannot be trained.

    Raises:
        UsageError: there is no such kind.
    """
    return _imported(*_MADE_CLASSES[kind]) if kind in _MADE_CLASSES else model_class(kind)


def _imported(module: str, name: str) -> type[CostModel]:
    found: type[CostModel] = getattr(importlib.import_module(module), name)
    return found
