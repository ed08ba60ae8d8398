"""Samples of a search's modules."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.devices.registry import load_registry
from cdmpp.programs.native.binding import NativeBatch
from tests.tvm_helper.sampled import WORKLOADS, sample_schedules, sample_target
from tvm_helper.compat import tirx, tvm
from tvm_helper.cost_model import module_scores
from tvm_helper.cost_model.module_scores import module_samples
from tvm_helper.tasks.sampling import TargetKind
from tvm_helper.tir.features import featurise_batch, featurise_modules


@pytest.mark.parametrize(("target", "device"), [("llvm", "epyc-avx2-2c"), ("cuda", "t4")])
@pytest.mark.parametrize("version", [3, 5])
def test_samples_of_a_batch_are_those_of_its_asts(
    target: TargetKind, device: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tvm.IRModule({"main": tirx.PrimFunc([], tirx.Evaluate(tirx.const(0, "int32")))})
    sampled = [
        schedule.mod
        for name in ("softmax", "matmul")
        for schedule in sample_schedules(WORKLOADS[name](), target, 6)
    ]
    modules = [*sampled[:5], empty, *sampled[5:]]
    kind, spec = sample_target(target), load_registry()[device]
    assert isinstance(featurise_batch(modules, kind, version=version), NativeBatch)
    found = module_samples(modules, kind, spec, task="a|llvm", version=version)
    monkeypatch.setattr(module_scores, "featurise_batch", featurise_modules)
    expected = module_samples(modules, kind, spec, task="a|llvm", version=version)

    assert found.unsupported == expected.unsupported == {"program without stores": 1}
    np.testing.assert_array_equal(found.supported, expected.supported)
    assert len(set(found.supported.tolist()) | {5}) == len(modules)
    for name in ("program", "device", "latency_s", "latency_std_s"):
        np.testing.assert_array_equal(getattr(found.samples, name), getattr(expected.samples, name))
    assert found.samples.devices == expected.samples.devices
    for field in fields(found.samples.programs):
        ours, theirs = (getattr(one.samples.programs, field.name) for one in (found, expected))
        np.testing.assert_array_equal(ours, theirs, err_msg=field.name)
    asts = featurise_modules(modules, kind, version=version)
    for row, place in enumerate(found.supported.tolist()):
        for name in ("leaf_features", "leaf_extra", "leaf_position", "tree"):
            np.testing.assert_array_equal(
                getattr(found.ast(row), name), getattr(asts[place], name), err_msg=name
            )
