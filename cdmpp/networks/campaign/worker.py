"""Worker process of a campaign: it loads torch once and forks for every sample.

It serves requests (`cdmpp.processes.serve`). It ends with its parent, and a running sample ends
with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from cdmpp.config import from_dict
from cdmpp.networks.architectures.spec import ArchitectureSpec
from cdmpp.processes.pipe import ending
from cdmpp.processes.serve import serve

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 4000


def main() -> None:
    """Serves requests until the campaign ends."""
    end_with_parent()
    serve({"sample": _sample, "probe": _probe}, _prepare, has_thread=False)


def _prepare() -> dict[str, Any]:
    import torch

    from cdmpp.networks.campaign.sample import prepare_process

    prepare_process()
    return {"torch_version": torch.__version__}


def in_fork(work: Callable[[], dict[str, Any]], *, timeout_s: float) -> dict[str, Any]:
    """Runs `work` in a fork of this process.

    Returns:
        The result of `work`. On failure, `outcome` is `timeout`, `crashed` or `out-of-memory`
        (from its last output), and `note` is the reason.
    """
    with tempfile.TemporaryFile() as words:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _run_child(work, writing, words)
        os.close(writing)
        try:
            data = _read_until(reading, time.monotonic() + timeout_s)
        finally:
            os.close(reading)
        if data is None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if data is None:
            return {"outcome": "timeout", "note": f"killed after {timeout_s:g} s"}
        if data:
            answer: dict[str, Any] = json.loads(data)
            return answer
        return _last_words(os.waitstatus_to_exitcode(status), words)


def end_with_parent() -> None:
    """Makes the system kill this process when its parent ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def _run_child(work: Callable[[], dict[str, Any]], writing: int, words: IO[bytes]) -> None:
    """Runs `work`, writes its result and exits."""
    code = 1
    try:
        end_with_parent()
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
        answer = json.dumps(work()).encode("ascii")
        done = 0
        while done < len(answer):
            done += os.write(writing, answer[done:])
        code = 0
    except BaseException as error:  # the fork must not return into the server's loop
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def _read_until(file: int, deadline: float) -> bytes | None:
    """Returns all bytes until the other end is closed; None after the deadline."""
    data = b""
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(file, 1 << 16)
            if not piece:
                return data
            data += piece


def _last_words(code: int, words: IO[bytes]) -> dict[str, Any]:
    words.seek(0, os.SEEK_END)
    words.seek(max(0, words.tell() - _TAIL_BYTES))
    lines = words.read().decode("utf-8", "replace").strip().splitlines()
    said = lines[-1][:300] if lines else ""
    how = ending(code)
    is_memory = "bad_alloc" in said or said.startswith("MemoryError")
    return {
        "outcome": "out-of-memory" if is_memory else "crashed",
        "note": f"{how}: {said}" if said else how,
    }


def _sample(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    """Returns the values of all parts of a sample, or those of the first failed part."""
    from cdmpp.networks.campaign.labels import NetworkTiming
    from cdmpp.networks.campaign.sample import parts_of, run_part
    from cdmpp.networks.campaign.sample_step import SampleRequest

    begin()
    values = dict(request["sample"])
    sample = SampleRequest(
        spec=ArchitectureSpec.from_text(values.pop("spec")),
        timing=from_dict(NetworkTiming, values.pop("timing")),
        **values,
    )
    result: dict[str, Any] = {}
    for part in parts_of(sample.kind):
        answer = in_fork(partial(run_part, sample, part), timeout_s=request["timeout_s"])
        if answer["outcome"] != "ok":
            return answer
        result |= answer
    return result


def _probe(request: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
    """Returns the GPU's name or None, found in a fork so that this process does not use CUDA."""
    begin()
    return in_fork(_gpu_name, timeout_s=request["timeout_s"])


def _gpu_name() -> dict[str, Any]:
    import torch

    has_gpu = torch.cuda.is_available()
    return {"outcome": "ok", "gpu": torch.cuda.get_device_name() if has_gpu else None}


if __name__ == "__main__":
    main()
