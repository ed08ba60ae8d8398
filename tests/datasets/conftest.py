"""Stand-ins of what datasets are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdmpp.datasets.samples import Samples
from cdmpp.errors import ReplayError
from cdmpp.programs.compact_ast import CompactAst
from tests.datasets.tiny import build_samples, fake_featurise


@pytest.fixture
def featurise() -> Callable[..., list[CompactAst | ReplayError]]:
    """The stand-in featuriser."""
    return fake_featurise


@pytest.fixture
def make_samples() -> Callable[..., Samples]:
    """Makes samples of tasks with given networks, all programs on every device."""
    return build_samples
