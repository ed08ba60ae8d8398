"""The contract tests for plug-in authors: ours keep them, broken ones are told which they break."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.kernels.times import KernelCall, KernelTimes
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.sources import extract_any
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import DataError
from cdmpp.models.constant import ConstantCostModel
from cdmpp.models.roofline import RooflineCostModel
from cdmpp.testing import check_analytic_kernel, check_cost_model, check_reader
from tests.datasets.tiny import fake_featurise


class _Milliseconds(RooflineCostModel):
    def predict(self, samples):
        return 1e6 * super().predict(samples)


class _Peeking(RooflineCostModel):
    def predict(self, samples):
        return np.where(np.isfinite(samples.latency_s), samples.latency_s, super().predict(samples))


class _Untrained(ConstantCostModel):
    def predict(self, samples):
        return np.full(len(samples), 1e-3)


class _Forgetful(RooflineCostModel):
    @classmethod
    def load(cls, directory, state):
        found = super().load(directory, state)
        found.predict = lambda samples: np.full(len(samples), 1e-3)
        return found


class _Negative(RooflineCostModel):
    def predict(self, samples):
        return -super().predict(samples)


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        (_Untrained, "an untrained model raises an error"),
        (_Negative, "positive finite seconds"),
        (_Milliseconds, "seconds of the samples' scale"),
        (_Peeking, "never reads measured latencies"),
        (_Forgetful, "a loaded model predicts the same"),
    ],
)
def test_a_broken_model_is_told_what_it_breaks(broken, text):
    with pytest.raises(AssertionError, match=text):
        check_cost_model(broken)


def _tenset(records: Path, out: Path):
    return extract(TensetRecords(records, None, fake_featurise), out, jobs=1)


def test_our_reader_of_tenset_keeps_the_contract(tiny_dataset):
    check_reader(lambda records, out: extract_any(records, out, jobs=1), tiny_dataset)


def test_a_reader_in_wrong_units_is_told_so(tiny_dataset):
    for path in (tiny_dataset / "measure_records").rglob("*.json"):
        path.write_text(path.read_text().replace('"r": [[', '"r": [[1e9, '))  # nanoseconds, say
    with pytest.raises(AssertionError, match="latencies are seconds"):
        check_reader(_tenset, tiny_dataset)


def test_a_reader_that_takes_what_is_not_there_is_told_so(tiny_dataset):
    with pytest.raises(AssertionError, match="missing records are rejected"):
        check_reader(lambda records, out: None, tiny_dataset)


SIZES = {
    "gemm": {"m": 512, "n": 512, "k": 512},
    "softmax": {"rows": 4096, "cols": 1024},
    "layer-norm": {"rows": 4096, "cols": 1024},
    "batch-norm": {"elements": 1e7},
    "relu": {"elements": 1e7},
    "transpose": {"batch": 64, "m": 512, "n": 512},
}


@pytest.mark.parametrize("name", SIZES)
def test_our_kernels_keep_the_contract(name):
    check_analytic_kernel(
        lambda sizes, device: KernelTimes(device).latency_s(KernelCall(name, sizes)), SIZES[name]
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (lambda elements, device: 1e-9, "no kernel is faster than the smallest"),
        (lambda elements, device: 1e3 / elements, "takes no less time"),
        (lambda elements, device: 1e-3, "more work takes longer"),
        (lambda elements, device: elements * device.mem_bandwidth_bytes_per_s, "times the rates"),
        (lambda elements, device: float("nan"), "positive finite seconds"),
    ],
)
def test_a_broken_kernel_is_told_what_it_breaks(seconds, text):
    def kernel(sizes, device):
        if "elements" not in sizes:
            raise DataError("elements are missing")
        return seconds(sizes["elements"], device)

    with pytest.raises(AssertionError, match=text):
        check_analytic_kernel(kernel, {"elements": 1e6})


def test_a_kernel_that_takes_any_sizes_is_told_so():
    with pytest.raises(AssertionError, match="a call without elements is rejected"):
        check_analytic_kernel(
            lambda sizes, device: (
                sizes.get("elements", 1.0) / (device.mem_bandwidth_bytes_per_s or 1e9) + 1e-5
            ),
            {"elements": 1e6},
        )


def test_a_stranger_without_an_answer_is_told_so():
    def kernel(sizes, device):
        if "elements" not in sizes:
            raise DataError("elements are missing")
        return (
            sizes["elements"]
            / (device.mem_bandwidth_bytes_per_s or 0.001)
            * float("inf" if device.name == "nothing-known" else 1)
            + 1e-5
        )

    with pytest.raises(AssertionError, match="without known values"):
        check_analytic_kernel(kernel, {"elements": 1e6})
