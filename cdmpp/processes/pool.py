"""Runs calls in worker processes that never outlive their parent.

Workers are spawned, not forked: a forked child would inherit the compiler's threads and locks in an
undefined state. A spawned worker loads the compiler once and then runs many calls. It runs the main
script of its parent again only if a call needs a name from there, so that scripts need no
`if __name__ == "__main__"`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any, TypeVar

from cdmpp.errors import DataError

Result = TypeVar("Result")

_log = logging.getLogger("cdmpp")

#: Number of worker deaths after which a run still continues.
WORKER_DEATHS = 3
#: Calls handed to the workers ahead of time, per process.
_CALLS_PER_JOB = 2


def run_in_processes(
    function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], *, jobs: int
) -> Iterator[tuple[int, Result]]:
    """Yields (position in `calls`, result) as the calls finish.

    When a worker dies (killed, out of memory, crashed in native code), new workers repeat the
    unfinished calls, at most `WORKER_DEATHS` times.

    Args:
        function: picklable, module-level.
        calls: arguments of each call.
        jobs: number of processes; 1 = run the calls in this process, in order.

    Raises:
        DataError: workers died more than `WORKER_DEATHS` times.
    """
    if jobs == 1:
        for position, arguments in enumerate(calls):
            yield position, function(*arguments)
        return
    left = dict(enumerate(calls))
    deaths = 0
    while left:
        try:
            for position, result in _run_in_pool(function, list(left.items()), jobs):
                del left[position]
                yield position, result
        except BrokenProcessPool:
            deaths += 1
            if deaths > WORKER_DEATHS:
                raise DataError(
                    f"worker processes died {deaths} times, with {len(calls) - len(left)} of "
                    f"{len(calls)} parts finished (out of memory, killed, or a crash in native "
                    "code). Finished work is kept: rerun the same command, with --jobs 1 to "
                    "find the cause"
                ) from None
            _log.warning("a worker process died; another worker repeats its part")


def _run_in_pool(
    function: Callable[..., Result], calls: Sequence[tuple[int, tuple[Any, ...]]], jobs: int
) -> Iterator[tuple[int, Result]]:
    """Yields (position, result) until a worker dies, which raises `BrokenProcessPool`."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    starting = nullcontext if _needs_main(function, calls) else _without_main
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    waiting = iter(calls)
    running: dict[Future[Result], int] = {}
    try:
        while True:
            while len(running) < jobs * _CALLS_PER_JOB and (call := next(waiting, None)):
                with starting():  # `submit` starts the workers
                    running[executor.submit(function, *call[1])] = call[0]
            if not running:
                break
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            # Results that finished before a worker died come first.
            for future in sorted(finished, key=lambda future: future.exception() is not None):
                yield running.pop(future), future.result()
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    executor.shutdown()


def _needs_main(function: Callable[..., Any], calls: Sequence[Any]) -> bool:
    try:
        return b"__main__" in pickle.dumps((function, calls))
    except Exception:  # the executor reports it
        return True


@contextmanager
def _without_main() -> Iterator[None]:
    """Hides the main module, which spawned processes would otherwise import."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_worker() -> None:
    """Ignores interrupts, which the parent handles, and ends this worker with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Ends this process when its `multiprocessing` parent ends, for whatever reason."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
