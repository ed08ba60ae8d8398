"""A worker that answers at once with made-up values; for the campaign's own logic."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from cdmpp.processes.serve import serve

ANSWER = {
    "outcome": "ok", "time_s": 0.01, "low_s": 0.009, "high_s": 0.011, "times_s": [0.01],
    "memory_bytes": 1e6, "allocated_bytes": 9e5, "process_bytes": 2e6, "utilisation": 1.0,
}  # fmt: skip


def sample(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    if os.environ.get("FAKE_DIES") == request["sample"]["mode"]:
        os._exit(3)
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
    return ANSWER | json.loads(os.environ.get("FAKE_ANSWER", "{}"))


def probe(request: dict[str, Any], begin: Any) -> dict[str, Any]:
    begin()
    return {"outcome": "ok", "gpu": None}


if __name__ == "__main__":
    facts = {"torch_version": os.environ.get("FAKE_TORCH", "1.0")}
    serve({"sample": sample, "probe": probe}, lambda: facts)
