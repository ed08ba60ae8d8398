"""Commands in a world that is small and always the same: `python -m tests.faults.small WORDS`.

Searches and added devices have the tests' workers, whose programs take a fixed time; a device is
added with the tests' small models. A full disk is one that is full, not one with a little left. A
server is asked once, writes the answer into the folder of its `--runs` and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any


def _measure() -> None:
    from tvm_helper.measure.campaign import Campaign

    assert Campaign.__init__.__kwdefaults__ is not None
    Campaign.__init__.__kwdefaults__["least_free_bytes"] = 0


def _search() -> None:
    from tests.tvm_helper.search.search_runs import FAKE_WORKER, few_are_drawn
    from tvm_helper.search import run

    few_are_drawn().__enter__()
    run.run_search = partial(
        run.run_search, command=FAKE_WORKER, final_command=FAKE_WORKER, least_free_bytes=0
    )


def _device() -> None:
    from tests.tvm_helper.device_add.child import small_site
    from tvm_helper.device_add import run

    _measure()
    setting = Path(sys.argv[sys.argv.index("--from") + 1]).parent
    run.add_device = partial(run.add_device, site=small_site(setting, setattr))


def _serve() -> None:
    from cdmpp.serve import run

    out = Path(sys.argv[sys.argv.index("--runs") + 1])
    run_server = run.run_server

    def asked(options: Any, command: Any, *, has_tvm: bool, on_ready: Any) -> None:
        def ready(url: str) -> None:
            on_ready(url)
            threading.Thread(target=_ask, args=(url, out), daemon=True).start()

        reader = [sys.executable, "-m", "tests.serve.fake_reader"]
        run_server(options, reader, on_ready=ready)

    run.run_server = asked


def _ask(url: str, out: Path) -> None:
    from cdmpp.errors import CdmppError
    from cdmpp.files.atomic import write_json
    from cdmpp.serve.client import Client
    from tests.serve.serving import DEVICE, leaves

    client = Client(url, timeout_s=20.0)
    texts = [{"tvmscript": "sleep 0.3"}, {"tvmscript": "quick"}]
    try:
        answers = [client.predict(one, devices=[DEVICE]) for one in ([leaves(2)], texts)]
        write_json(out / "answer.json", answers)
    except CdmppError as error:
        print(error, file=sys.stderr)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


_WORLDS = {"measure": _measure, "search": _search, "device": _device, "serve": _serve}


def main() -> int:
    """Makes the world, which an interrupt ends as it ends a command, and runs the command."""
    try:
        _WORLDS[sys.argv[1]]()
        from cdmpp.cli.main import main as run
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return run()


if __name__ == "__main__":
    sys.exit(main())
