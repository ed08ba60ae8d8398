"""Order and marks of the tests; data and models that several folders share."""

from __future__ import annotations

import gc
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

import cdmpp
from tests.paths import ROOT

# The garbage collector is off until all tests are collected: imports and rewritten asserts leave
# almost no garbage.
gc.disable()

# Errors name options of the command line, whatever part of `cdmpp` earlier tests have used.
cdmpp.speak_python = lambda: None

COSTLY = ("slow", "training")
#: Fixtures that train a model.
_TRAINING_FIXTURES = {"trained", "packaged", "added"}
_SKIPS_WITHOUT_TVM = re.compile(r'^(\w+ = )?pytest\.importorskip\("tvm"', re.MULTILINE)


@cache
def _needs_tvm(path: Path) -> bool:
    return bool(_SKIPS_WITHOUT_TVM.search(path.read_text("utf-8")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need TVM or train a model; puts files with the most slow tests first."""
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
    """Collects garbage again, but rarely, which saves a tenth of the time."""
    gc.set_threshold(50_000, 20, 100)
    gc.enable()
    _share_packaged_models()


def _share_packaged_models() -> None:
    """Reads each packaged model once per process; the default one takes over a second."""
    from cdmpp.pretrained import PRETRAINED, find_pretrained

    def once(load: Any, packaged: Any) -> Any:
        known = cache(load)
        return lambda place, **rest: (known if str(place) == packaged else load)(place, **rest)

    if estimates := cast(Any, sys.modules.get("cdmpp.predict.estimates")):
        folder = str(find_pretrained())
        estimates.load_model = once(estimates.load_model, folder)
        for part in (estimates.TrainingTasks, estimates.CodeModel, estimates.DistilledModel):
            part.load = once(part.load, folder)
    for name, model in (
        ("cdmpp.analytic.gpu_kernels.model", "GpuKernels"),
        ("cdmpp.analytic.operators.model", "OperatorModel"),
    ):
        if module := sys.modules.get(name):
            kind = getattr(module, model)
            kind.at = once(kind.at, PRETRAINED)


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Undoes the level that the command line sets with `-q` or `-v`."""
    yield
    logging.getLogger("cdmpp").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shipped() -> Path:
    """The shipped default dataset."""
    return ROOT / "data" / "tenset-cpu"


@pytest.fixture
def tiny_dataset(tmp_path: Path) -> Path:
    """Six tasks of three networks, three programs each, on two devices; text, no errors."""
    from tests.datasets.tiny import write_tiny_dataset

    return write_tiny_dataset(tmp_path / "tiny")
