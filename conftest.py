"""Which tests run first and what they are marked with; the data that several folders use."""

from __future__ import annotations

import gc
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import cdmpp
from tests.paths import ROOT

# Until all tests are collected no garbage is looked for: next to nothing of what is imported, and
# of the asserts that are rewritten, ever becomes garbage.
gc.disable()

# Errors name options as of a command, whatever of `cdmpp` a test has used before.
cdmpp.speak_python = lambda: None

COSTLY = ("slow", "training")
#: What trains a model for the tests of a file.
_TRAINING_FIXTURES = {"trained", "packaged", "added"}
_SKIPS_WITHOUT_TVM = re.compile(r'^(\w+ = )?pytest\.importorskip\("tvm"', re.MULTILINE)


@cache
def _needs_tvm(path: Path) -> bool:
    return bool(_SKIPS_WITHOUT_TVM.search(path.read_text("utf-8")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs TVM or trains a model; puts the files with most costly tests first."""
    for item in items:
        if _needs_tvm(item.path):
            item.add_marker("tvm")
        if not _TRAINING_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("training")
    costly = Counter(
        item.path for item in items for name in COSTLY if item.get_closest_marker(name)
    )
    items.sort(key=lambda item: -costly[item.path])


def pytest_collection_finish() -> None:
    """Lets garbage be looked for again, but seldom: a tenth less time."""
    gc.set_threshold(50_000, 20, 100)
    gc.enable()


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The shipped default dataset."""
    return ROOT / "data" / "tenset-cpu"


@pytest.fixture
def tiny_dataset(tmp_path: Path) -> Path:
    """Six tasks of three networks, three programs each, on two devices; text, no errors."""
    from tests.datasets.tiny import write_tiny_dataset

    return write_tiny_dataset(tmp_path / "tiny")
