"""A worker without TVM for searches: trials do what `CDMPP_FAKE` says, modules are empty files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdmpp.processes.serve import serve
from tests.tvm_helper.measure.fake_worker import build, do, run

TUNED_S, UNTUNED_S = 1e-3, 2e-3


def compile_tasks(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    Path(request["artifact"]).write_text("module", encoding="utf-8")
    return {"arguments": {task["symbol"]: [["float32", [2, 2]]] for task in request["tasks"]}}


def compare(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    do("")
    costs_s = (TUNED_S, UNTUNED_S)[: len(request["modules"])]
    return {"costs_s": [[cost_s] * request["repeats"] for cost_s in costs_s]}


if __name__ == "__main__":
    serve({"build": build, "run": run, "tasks": compile_tasks, "compare": compare}, lambda: None)
