"""A worker without TVM whose programs do what `CDMPP_FAKE` (program id -> deed) says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from cdmpp.processes.serve import ProgramError, serve

PLAN: dict[str, str] = json.loads(os.environ.get("CDMPP_FAKE", "{}"))
COST_S = 1e-3


def do(deed: str) -> None:
    """Does what a program may do to its process."""
    if deed == "crash":
        print("about to fall over", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif deed == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif deed == "exit":
        print("fatal error: out of tensors", file=sys.stderr, flush=True)
        os._exit(7)
    elif deed == "loop":
        while True:
            pass
    elif deed == "fail":
        raise ProgramError(4, "Traceback\n  File x\nRuntimeError: misaligned tensor\n  more")
    elif deed == "full":
        raise ProgramError(2, "ld: cannot write: No space left on device")


def build(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    program = Path(request["artifact"]).stem
    do(PLAN.get(program, "").removeprefix("build-"))
    Path(request["artifact"]).write_text(program, encoding="utf-8")
    answer: dict[str, Any] = {"arguments": [["float32", [2, 2]]]}
    if request.get("machine_code"):
        from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES  # starts numpy

        answer["machine_code"] = [1.0] * len(MACHINE_CODE_NAMES)
    return answer


def run(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    if request.get("target_kind") == "cuda":
        return run_on_gpu(request, begin)
    if PLAN.get("queue"):
        time.sleep(float(PLAN["queue"]))
    begin()
    program = Path(request["artifact"]).read_text(encoding="utf-8")
    if pause := float(PLAN.get("pause", "0")):
        time.sleep(pause)
    do(PLAN.get(program, "").removeprefix("run-"))
    assert os.environ["TVM_NUM_THREADS"] == "2"
    return {"costs_s": [COST_S, 1.1 * COST_S, 0.9 * COST_S]}


def run_on_gpu(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    """An error stays in the process, as CUDA's do."""
    begin()
    if Path(request["artifact"]).read_text(encoding="utf-8") in PLAN:
        PLAN["broken"] = "yes"
    if "broken" in PLAN:
        raise ProgramError(4, "CUDA: an illegal memory access was encountered")
    return {"costs_s": [COST_S]}


if __name__ == "__main__":
    serve({"build": build, "run": run}, lambda: None)
