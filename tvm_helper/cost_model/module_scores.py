"""Predictions of a trained model for TVM modules on one device."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.datasets.samples import Samples
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import ReplayError
from cdmpp.models.assemble import AskedProgram, assemble_samples, batch_samples
from cdmpp.models.base import CostModel
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, CompactAst
from cdmpp.programs.native.binding import NativeBatch, Status
from tvm_helper.compat import Target
from tvm_helper.tir.features import featurise_batch


@dataclass(frozen=True)
class ModuleSamples:
    """Samples of modules on one device. Modules without features have no sample.

    Attributes:
        samples: one sample per supported module, by number of leaves, so that the models need not
            reorder them.
        supported: int64 [S], index of each sample's module.
        unsupported: reason -> number of the other modules.
        seconds: time of lowering and featurising.
    """

    samples: Samples
    supported: IntArray
    unsupported: Counter[str]
    seconds: float

    def ast(self, row: int) -> CompactAst:
        """Returns the compact AST of a sample; its arrays are views."""
        programs = self.samples.programs
        leaves = slice(*programs.leaf_offset[row : row + 2])
        return CompactAst(
            leaf_features=programs.leaf_features[leaves],
            leaf_extra=programs.leaf_extra[leaves],
            leaf_position=programs.leaf_position[leaves],
            tree=programs.tree[slice(*programs.tree_offset[row : row + 2])],
        )


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
    read = featurise_batch(modules, target, threads=threads, version=version)
    if isinstance(read, NativeBatch):
        found = _of_batch(read, task, device)
    else:
        found = _of_asts(read, task, device)
    return replace(found, seconds=time.perf_counter() - started)


def predict_modules(model: CostModel, found: ModuleSamples, count: int) -> FloatArray:
    """Returns float64 [count], predicted seconds; NaN for modules without features.

    Args:
        found: samples of `count` modules.
    """
    seconds = np.full(count, np.nan)
    if len(found.supported):
        seconds[found.supported] = model.predict(found.samples)
    return seconds


def _of_batch(batch: NativeBatch, task: str, device: DeviceSpec) -> ModuleSamples:
    """Returns the samples of modules; `seconds` is 0."""
    leaves = np.diff(batch.leaf_offset)
    reasons = [
        _unsupported_reason(reason, count, is_failed=is_failed)
        for reason, count, is_failed in zip(
            batch.reasons, leaves.tolist(), (batch.status == Status.FAILED).tolist(), strict=True
        )
    ]
    order = np.argsort(leaves, kind="stable")
    supported = order[~np.array([bool(reason) for reason in reasons])[order]]
    return ModuleSamples(
        batch_samples(batch, supported, task, device),
        supported,
        Counter(filter(None, reasons)),
        0.0,
    )


def _of_asts(
    asts: Sequence[CompactAst | ReplayError], task: str, device: DeviceSpec
) -> ModuleSamples:
    """Returns the samples of modules; `seconds` is 0."""
    supported: list[tuple[int, int, CompactAst]] = []
    unsupported: Counter[str] = Counter()
    for place, ast in enumerate(asts):
        is_failed = isinstance(ast, ReplayError)
        reason = ast.reason if isinstance(ast, ReplayError) else ast.reject_reason or ""
        leaves = 0 if isinstance(ast, ReplayError) else len(ast.leaf_features)
        if reason := _unsupported_reason(reason, leaves, is_failed=is_failed):
            unsupported[reason] += 1
            continue
        assert isinstance(ast, CompactAst)
        supported.append((leaves, place, ast))
    supported.sort(key=itemgetter(0))
    asked = [AskedProgram(str(place), task, ast, device) for _, place, ast in supported]
    places = np.array([place for _, place, _ in supported], np.int64)
    return ModuleSamples(assemble_samples(asked), places, unsupported, 0.0)


def _unsupported_reason(reason: str, leaves: int, *, is_failed: bool) -> str:
    """Returns why a program cannot be predicted; empty if it can."""
    if is_failed:
        return reason
    if leaves == 0:
        return "program without stores"
    return reason.partition(":")[0] if reason.startswith("extent") else ""
