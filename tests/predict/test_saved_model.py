"""What the card of a saved model says of devices."""

from __future__ import annotations

from dataclasses import replace

from cdmpp.devices.registry import get_device
from cdmpp.predict.saved_model import ModelCard


def test_devices_are_told_as_the_weights_know_them():
    trained = replace(get_device("epyc-avx512-1c"), l3_bytes=None)
    described = replace(get_device("xeon-avx512-1c"), name="described", mem_bytes=2**34)
    own = replace(trained, name="own", l3_bytes=2**25)
    card = ModelCard(
        "constant", {}, "", {}, (trained, own), frozenset(), {},
        described=(described,), adapted=frozenset({"own"}),
    )  # fmt: skip
    # As it was when the model was trained, not as the registry describes it today.
    assert card.told(get_device("epyc-avx512-1c")) == trained
    assert card.told(described) == described
    # One that the model was adapted to, and one that it never saw.
    assert card.told(own).l3_bytes is None
    assert card.told(replace(own, name="other")).l3_bytes is None
    assert card.told(get_device("a100")) == get_device("a100")
