"""What is told of the machine."""

from __future__ import annotations

import json
import os

import pytest

from cdmpp.errors import UsageError
from cdmpp.machine import (
    allowed_cpus,
    caches,
    check_threads,
    machine,
    measuring_machine,
    read_text,
    thread_environment,
)


def test_what_is_told_is_json():
    facts = json.loads(json.dumps([machine(), measuring_machine()]))
    assert facts[0]["cores"] == str(os.cpu_count())
    assert 1 <= facts[1]["allowed_cpus"] <= facts[1]["cpu_count"]


def test_caches_carry_the_names_of_the_system(tmp_path):
    for number, (level, kind, size) in enumerate([("1", "Data", "48K"), ("3", "Unified", "32M")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{text}\n")
    assert caches(tmp_path) == {"L1 data": "48K", "L3 unified": "32M"}
    assert caches(tmp_path / "none") == {}
    assert read_text(tmp_path / "none") is None


def test_a_label_has_no_more_threads_than_cpus_that_may_be_used():
    cpus = allowed_cpus() or 1
    check_threads("here", cpus)
    with pytest.raises(UsageError, match=rf"here uses {cpus + 1} threads"):
        check_threads("here", cpus + 1)


def test_a_vector_width_is_told_to_torch():
    assert thread_environment(3, None) == dict.fromkeys(
        ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"], "3"
    )
    assert thread_environment(1, 256)["ATEN_CPU_CAPABILITY"] == "avx2"
