"""What the shipped model has learned from, for pages that judge it on an unknown label."""

from __future__ import annotations

from cdmpp.predict.saved_model import load_model
from cdmpp.pretrained import model_folder


def met_before(architecture: str) -> str:
    """Returns a clause that says whether the shipped model has met an architecture under other
    labels.
    """
    _, card = load_model(model_folder("pretrained"))
    labels = [f"`{spec.name}`" for spec in card.devices if spec.architecture == architecture]
    if not labels:
        return f"it has learned from no {architecture}"
    return f"it has learned from this architecture, {architecture}, as {', '.join(labels)}"
