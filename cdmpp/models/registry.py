"""Registry of model kinds by name; their modules are imported lazily."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from cdmpp.errors import UsageError
from cdmpp.models.base import CostModel

#: kind -> (module, class) of the trainable cost models.
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

#: Baselines that only predict recognised programs; a run cannot train them as its model.
PARTIAL_CLASSES = {
    "conv": ("cdmpp.models.recognised", "ConvBaseline"),
    "embedding": ("cdmpp.models.recognised", "EmbeddingBaseline"),
}

#: Kind of network model -> (module, class), in the order of result tables.
NETWORK_CLASSES = {
    "residual": ("cdmpp.networks.models.residual", "ResidualModel"),
    "seernet": ("cdmpp.networks.models.seernet", "SeerNetModel"),
    "seernet-multi": ("cdmpp.networks.models.seernet", "SeerNetMultiModel"),
    "trees": ("cdmpp.networks.models.baselines", "GraphTrees"),
    "mlp": ("cdmpp.networks.models.mlp", "GraphMlp"),
    "operator-linear": ("cdmpp.networks.models.baselines", "OperatorLinear"),
    "roofline": ("cdmpp.networks.models.baselines", "RooflineFactor"),
    "constant": ("cdmpp.networks.models.baselines", "ConstantLine"),
}

#: Kinds that `cdmpp train` cannot create; they are only saved and loaded.
_MADE_CLASSES = {"adapted": ("cdmpp.models.adapted", "AdaptedCostModel")}


def model_class(kind: str) -> type[CostModel]:
    """Returns the class registered under `kind`.

    Raises:
        UsageError: the kind is unknown, or only predicts recognised programs.
    """
    if kind in PARTIAL_CLASSES:
        raise UsageError(
            f"model {kind!r} only predicts programs that it recognises; expected one of "
            f"{', '.join(sorted(MODEL_CLASSES))}; add it as a baseline "
            f'with --set "baselines=[{kind},constant]"'
        )
    found: type[CostModel] = _class(kind, MODEL_CLASSES, sorted(MODEL_CLASSES))
    return found


def baseline_class(kind: str) -> type[CostModel]:
    """Returns the class of a baseline: a model, or one that only predicts recognised programs.

    Raises:
        UsageError: the kind is unknown.
    """
    classes = {**MODEL_CLASSES, **PARTIAL_CLASSES}
    found: type[CostModel] = _class(kind, classes, sorted(classes))
    return found


def judged_baselines(kinds: Sequence[str]) -> tuple[str, ...]:
    """Returns baselines, with `constant` added if one of them only predicts recognised programs.

    The constant baseline shows how much the recognised samples vary.
    """
    needs_constant = any(kind in PARTIAL_CLASSES for kind in kinds)
    return tuple(dict.fromkeys([*kinds, *(["constant"] if needs_constant else [])]))


def saved_model_class(kind: str) -> type[CostModel]:
    """Returns the class of a saved model, including kinds that `cdmpp train` cannot create.

    Raises:
        UsageError: the kind is unknown.
    """
    classes = {**MODEL_CLASSES, **_MADE_CLASSES}
    found: type[CostModel] = _class(kind, classes, sorted(MODEL_CLASSES))
    return found


def network_model_class(kind: str) -> Any:
    """Returns the class of a model of whole networks (`cdmpp.networks.models.base.NetworkModel`).

    Raises:
        UsageError: the kind is unknown.
    """
    return _class(kind, NETWORK_CLASSES, list(NETWORK_CLASSES))


def _class(kind: str, classes: Mapping[str, tuple[str, str]], known: Sequence[str]) -> Any:
    if kind not in classes:
        near = difflib.get_close_matches(kind, known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"unknown model {kind!r}; expected one of {', '.join(known)}{guess}")
    module, name = classes[kind]
    return getattr(importlib.import_module(module), name)
