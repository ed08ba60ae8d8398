"""Memory of a forked process, against allocations of a known size."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from cdmpp.networks.campaign.process_memory import (
    limit_growth,
    return_freed_memory,
    settle_memory,
    status_bytes,
)
from cdmpp.networks.campaign.worker import in_fork
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MIB = 1 << 20


def peak_of_blocks(count: int) -> dict[str, Any]:
    baseline = settle_memory()
    return_freed_memory()
    blocks = [bytearray(b"\1") * (4 * MIB) for _ in range(count)]
    del blocks
    block = bytearray(b"\1") * (3 * MIB)
    return {"outcome": "ok", "peak": status_bytes("VmHWM") - baseline,
            "now": status_bytes("VmRSS") - baseline, "kept": len(block)}  # fmt: skip


def answer_of_blocks(count: int) -> dict[str, Any]:
    """Forks from a process whose heap has no holes: glibc would put blocks there for good."""
    ballast = bytearray(b"\1") * (64 * MIB)  # of the parent: no memory of the fork's own
    answer = in_fork(lambda: peak_of_blocks(count), timeout_s=60)
    assert len(ballast) == 64 * MIB
    return answer


@pytest.mark.parametrize("count", [4, 16])
def test_the_peak_is_what_was_allocated_at_once(count: int) -> None:
    program = (
        "import json; from tests.networks.campaign.test_process_memory import answer_of_blocks; "
        f"print(json.dumps(answer_of_blocks({count})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    answer = json.loads(done.stdout)
    assert answer["peak"] == pytest.approx(count * 4 * MIB, abs=1.5 * MIB)
    assert answer["now"] == pytest.approx(3 * MIB, abs=1.5 * MIB)


def test_a_limit_refuses_memory() -> None:
    def greedy() -> dict[str, Any]:
        limit_growth(64 * MIB)
        try:  # not from the free part of a big heap
            mmap.mmap(-1, 256 * MIB)
        except OSError:
            return {"outcome": "out-of-memory"}
        return {"outcome": "ok"}

    assert in_fork(greedy, timeout_s=60) == {"outcome": "out-of-memory"}


def test_a_fork_that_dies_hangs_or_raises_is_told_apart() -> None:
    def crash() -> dict[str, Any]:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    def hang() -> dict[str, Any]:
        time.sleep(60)
        return {}

    def fail() -> dict[str, Any]:
        raise KeyError("here")

    def no_memory() -> dict[str, Any]:
        raise MemoryError

    assert in_fork(crash, timeout_s=60) == {"outcome": "crashed", "note": "killed by SIGSEGV"}
    late = in_fork(hang, timeout_s=0.2)
    assert late == {"outcome": "timeout", "note": "killed after 0.2 s"}
    assert in_fork(fail, timeout_s=60)["note"] == "ended with code 1: KeyError: 'here'"
    assert in_fork(no_memory, timeout_s=60)["outcome"] == "out-of-memory"
