"""The positional encoding, the original's formula and the effect of the choice."""

from __future__ import annotations

import math

import pytest
import torch

from cdmpp.models.nets.positional import encode_position


def test_sinusoidal_pairs_share_a_frequency():
    code = encode_position(torch.tensor([7]), 8, kind="sinusoidal")[0]
    for j in range(4):
        angle = 7 / 10000 ** (2 * j / 8)
        assert code[2 * j] == pytest.approx(math.sin(angle), abs=1e-6)
        assert code[2 * j + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_original_doubles_the_exponent():
    code = encode_position(torch.tensor([7]), 8, kind="original")[0]
    for i in range(8):
        angle = 7 / 10000 ** (2 * i / 8)
        expected = math.sin(angle) if i % 2 == 0 else math.cos(angle)
        assert code[i] == pytest.approx(expected, abs=1e-6)


def test_none_is_zero_and_shapes_follow():
    assert torch.count_nonzero(encode_position(torch.tensor([[1, 2]]), 6, kind="none")) == 0
    assert encode_position(torch.tensor([[1, 2], [3, 4]]), 6, kind="sinusoidal").shape == (2, 2, 6)
