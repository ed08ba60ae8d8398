"""Arguments of wrong types are errors in one sentence, before anything is read or run."""

from __future__ import annotations

from pathlib import Path

import pytest

import cdmpp
from cdmpp.errors import UsageError

LLAMA = "meta-llama/Llama-3.1-8B"
DATA = cdmpp.Dataset(Path("no-such-folder"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cdmpp.Dataset.read(5), "place is 5, expected a folder or file, or None"),
        (lambda: cdmpp.Dataset.read(None, 5), "device is 5, expected a label, or a list of these"),
        (lambda: cdmpp.Dataset.read(None, ["t4", 5]), "device is 5, expected a label"),
        (lambda: cdmpp.Dataset.read(None, None), "device is None, expected a label"),
        (lambda: cdmpp.Dataset.read(network_info=5), "network_info is 5, expected a folder"),
        (lambda: cdmpp.Dataset.read(cache_dir=None), "cache_dir is None, expected a folder"),
        (
            lambda: cdmpp.Dataset.read(None, "t4", jobs="2"),
            "jobs is '2', expected a whole number or None",
        ),
        (lambda: DATA.split(seed="a"), "seed is 'a', expected a whole number"),
        (lambda: cdmpp.train(5), "dataset is 5, expected a Dataset, a folder or file, or None"),
        (lambda: cdmpp.train(device=5, out="no-such-folder"), "device is 5, expected a label"),
        (lambda: cdmpp.train(out=[1]), r"out is \[1\], expected a folder or None"),
        (lambda: cdmpp.train(settings=[1]), r"settings is \[1\], expected a mapping of names"),
        (
            lambda: cdmpp.train("no-such-folder", from_nothing="no"),
            "from_nothing is 'no', expected True or False",
        ),
        (lambda: cdmpp.train("no-such-folder", cache_dir=5), "cache_dir is 5, expected a folder"),
        (lambda: cdmpp.finetune(device=5), "device is 5, expected a label"),
        (lambda: cdmpp.finetune(dataset=5), "dataset is 5, expected a Dataset"),
        (lambda: cdmpp.finetune(device="t4", out=5), "out is 5, expected a folder or None"),
        (lambda: cdmpp.finetune(settings=5), "settings is 5, expected a mapping"),
        (lambda: cdmpp.compare(LLAMA, "h100", prices=5), "prices is 5, expected a price file"),
        (lambda: cdmpp.compare(LLAMA, "h100", scale=5), "scale is 5, expected a mapping"),
        (lambda: cdmpp.compare(LLAMA, "h100", measured=5), "measured is 5, expected a file"),
        (lambda: cdmpp.compare(LLAMA, "h100", provider=5), "provider is 5, expected a provider"),
        (lambda: cdmpp.compare(LLAMA, "h100", compiled="no"), "compiled is 'no', expected True or"),
        (
            lambda: cdmpp.compare(LLAMA, "h100", concurrency=1, input_tokens="a", output_tokens=8),
            "input_tokens is 'a', expected a whole number",
        ),
        (lambda: cdmpp.runs(5), "folder is 5, expected a folder"),
        (lambda: cdmpp.load().records(5), "path is 5, expected a file of records"),
    ],
)
def test_wrong_types_are_one_sentence(call, text):
    with pytest.raises(UsageError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cdmpp.measure(5, "t4"), "out is 5, expected a folder"),
        (lambda: cdmpp.measure(".", "t4", sample=5), "sample is 5, expected a task or file"),
        (lambda: cdmpp.measure(".", "t4", network=[5]), "network is 5, expected a file"),
        (lambda: cdmpp.search(None, "."), "what is None, expected a network, a file with"),
        (lambda: cdmpp.search("dense:m=8,n=8,k=8", 5), "out is 5, expected a folder"),
    ],
)
def test_wrong_types_of_a_measurement_are_one_sentence(call, text):
    pytest.importorskip("tvm", reason="apache-tvm is not installed")
    with pytest.raises(UsageError, match=text):
        call()


@pytest.mark.parametrize("method", ["predict", "programs", "records", "network", "explain"])
def test_machine_code_is_true_false_or_none(method):
    with pytest.raises(UsageError, match="machine_code is 'yes', expected True, False or None"):
        getattr(cdmpp.load(), method)("kernel.py", "epyc-avx2-1c", machine_code="yes")
