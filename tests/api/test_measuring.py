"""`cdmpp.measure` and `cdmpp.search`, on the CPU at hand."""

from __future__ import annotations

import pytest

import cdmpp
from cdmpp.errors import UsageError

pytest.importorskip("tvm", reason="apache-tvm is not installed")

TASK = "dense:m=16,n=16,k=16"
QUICK = {"threads": 1, "force": True, "timing": {"min_repeats": 1, "max_repeats": 1}}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_measured_programs_are_a_dataset(tmp_path):
    told = []
    data = cdmpp.measure(
        tmp_path / "data", "epyc-avx2-1c", sample=TASK, per_task=2, on_progress=told.append, **QUICK
    )
    assert data.devices == ("epyc-avx2-1c",)
    assert len(data) == 2
    assert told


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_search_is_a_row_a_task(tmp_path):
    found = cdmpp.search(TASK, tmp_path / "search", "epyc-avx2-1c", trials=2, **QUICK)
    assert [one["name"] for one in found] == [f"{TASK},relu=0"]
    assert found[0]["best_s"] > 0
    assert (found.folder / "module.so").is_file()
    assert found.notes[0].startswith("2 of 2 trials on epyc-avx2-1c")
    assert found.table()[1][3] == "2"
    assert found.plot().get_xlabel() == "latency"
    assert repr(found).startswith("<Search ")


def test_options_are_those_of_the_commands(tmp_path):
    with pytest.raises(UsageError, match="unknown setting trial, did you mean 'trials'"):
        cdmpp.search(TASK, tmp_path, trial=2)
    with pytest.raises(UsageError, match="no device label"):
        cdmpp.measure(tmp_path, "", sample=TASK)
