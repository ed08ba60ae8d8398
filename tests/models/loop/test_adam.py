"""Adam and AdamW: torch's own numbers, without torch's compiler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cdmpp.models.loop.adam import adamw, plain_adam


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))


def train(model: nn.Module, optimiser, steps: int, *, start: int = 0) -> None:
    """Steps on random batches; the last bias is frozen at first, and learns from step 2 on."""
    for step in range(start, start + steps):
        model[2].bias.requires_grad_(step >= 2)
        optimiser.zero_grad()
        x = torch.randn(16, 5, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        optimiser.step()


def torchs(model: nn.Module, kind: str):
    if kind == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1)
    matrices = [value for value in model.parameters() if value.ndim >= 2]
    others = [value for value in model.parameters() if value.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01, fused=kind == "fused adamw")


def ours(model: nn.Module, kind: str):
    if kind == "adam":
        return plain_adam(model, 0.01, 0.1)
    return adamw(model, 0.01, 0.1, is_fused=kind == "fused adamw")


@pytest.mark.parametrize("kind", ["adam", "adamw", "fused adamw"])
def test_the_weights_are_those_of_torchs_optimiser_also_after_a_resume(kind):
    expected, found = network(), network()
    theirs, optimiser = torchs(expected, kind), ours(found, kind)
    train(expected, theirs, 6)
    train(found, optimiser, 4)
    resumed = ours(found, kind)
    resumed.load({number: dict(moments) for number, moments in optimiser.moments.items()})
    train(found, resumed, 2, start=4)
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other)
    state = theirs.state_dict()["state"]
    assert state.keys() == resumed.moments.keys()
    for number, moments in state.items():
        for name, value in resumed.moments[number].items():
            assert torch.equal(moments[name], value)
