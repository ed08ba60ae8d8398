"""A reader of programs without TVM: a text says what becomes of it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from cdmpp.processes.serve import serve
from cdmpp.serve.leaf_table import encode_asts
from tests.serve.serving import programs


def read(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    rows, asts = [], []
    for number, entry in enumerate(request["entries"]):
        word, _, value = entry.get("tvmscript", "refuse").partition(" ")
        if word == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif word == "sleep":
            time.sleep(float(value))
        for device in request["devices"]:
            row = {"entry": number, "name": word, "operator": "", "device": device["name"]}
            if word == "refuse":
                rows.append({**row, "reason": "refused on purpose"})
                continue
            own = {
                "program_id": "1",
                "task": "task|llvm",
                "schedule": None,
                "is_scheduled": True,
                "measured_s": None,
            }
            rows.append({**row, "reason": None, **own})
            asts += programs(1, seed=len(word))
    return {"asked": rows, "leaves": encode_asts(asts)}


def network(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    text = Path(request["path"]).read_text("utf-8", errors="replace")
    return {"networks": [{"network": request["name"], "device": device["name"], "text": text}
                         for device in request["devices"]]}  # fmt: skip


def explain(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    asked = read(request, begin)["asked"]
    return {"explained": [{**row, "model": request["folder"]} for row in asked]}


if __name__ == "__main__":
    serve({"read": read, "explain": explain, "network": network}, lambda: None)
