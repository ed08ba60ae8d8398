"""A worker that answers at once with made-up values; for the campaign's own logic."""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    answer = {
        "outcome": "ok", "time_s": 0.01, "low_s": 0.009, "high_s": 0.011, "times_s": [0.01],
        "memory_bytes": 1e6, "allocated_bytes": 9e5, "process_bytes": 2e6, "utilisation": 1.0,
    }  # fmt: skip
    print(json.dumps({"ready": True, "torch_version": os.environ.get("FAKE_TORCH", "1.0")}))
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "probe":
            print(json.dumps({"outcome": "ok", "gpu": None}))
        elif os.environ.get("FAKE_DIES") == request["sample"]["mode"]:
            os._exit(3)
        else:
            time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
            print(json.dumps(answer | json.loads(os.environ.get("FAKE_ANSWER", "{}"))))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
