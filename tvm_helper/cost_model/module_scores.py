"""Predictions of a trained model for TVM modules on one device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ReplayError
from cdmpp.models.assemble import AskedProgram, assemble_samples
from cdmpp.models.base import CostModel
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, CompactAst
from tvm_helper.compat import Target
from tvm_helper.tir.features import featurise_modules


@dataclass(frozen=True)
class ModuleSamples:
    """Samples of modules on one device. Modules without features have no sample.

    Attributes:
        samples: one sample per supported module, by number of leaves, so that the models need not
            reorder them.
        supported: int64 [S], index of each sample's module.
        asts: compact ASTs of the supported modules.
        unsupported: reason -> number of the other modules.
        seconds: time of lowering and featurising.
    """

    samples: Samples
    supported: IntArray
    asts: list[CompactAst]
    unsupported: Counter[str]
    seconds: float


def module_samples(
    modules: Sequence[Any],
    target: Target | None,
    device: DeviceSpec,
    *,
    task: str = "",
    threads: int = 1,
    version: int = LEAF_EXTRA_SCHEMA_VERSION,
) -> ModuleSamples:
    """Returns the samples of modules.

    A module that exceeds a limit of the target has a sample too: TVM's search verifies its modules.

    Args:
        modules: `IRModule`s with one function `main`, scheduled or not.
        target: target of the modules, see `featurise_modules`.
        device: device of the samples.
        task: name of the modules' task.
        threads: number of native threads for lowering and featurising.
        version: see `featurise_modules`.
    """
    started = time.perf_counter()
    supported: list[tuple[int, int, CompactAst]] = []
    unsupported: Counter[str] = Counter()
    for place, ast in enumerate(
        featurise_modules(modules, target, threads=threads, version=version)
    ):
        reason = _unsupported_reason(ast)
        if reason is not None:
            unsupported[reason] += 1
            continue
        assert isinstance(ast, CompactAst)
        supported.append((len(ast.leaf_features), place, ast))
    supported.sort(key=itemgetter(0))
    asked = [AskedProgram(str(place), task, ast, device) for _, place, ast in supported]
    return ModuleSamples(
        samples=assemble_samples(asked),
        supported=np.array([place for _, place, _ in supported], np.int64),
        asts=[program.ast for program in asked],
        unsupported=unsupported,
        seconds=time.perf_counter() - started,
    )


def predict_modules(model: CostModel, found: ModuleSamples, count: int) -> FloatArray:
    """Returns float64 [count], predicted seconds; NaN for modules without features.

    Args:
        found: samples of `count` modules.
    """
    seconds = np.full(count, np.nan)
    if len(found.supported):
        seconds[found.supported] = model.predict(found.samples)
    return seconds


def _unsupported_reason(ast: CompactAst | ReplayError) -> str | None:
    """Returns why a program cannot be predicted; None if it can."""
    if isinstance(ast, ReplayError):
        return ast.reason
    if len(ast.leaf_features) == 0:
        return "program without stores"
    reason = ast.reject_reason or ""
    return reason.partition(":")[0] if reason.startswith("extent") else None
