"""Runs calls in worker processes that never outlive their parent.

Workers are spawned, not forked: the compiler keeps threads and locks that a forked child would
inherit half-way. A spawned worker loads the compiler once and then works through many calls.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from cdmpp.errors import DataError

Result = TypeVar("Result")


def run_in_processes(
    function: Callable[..., Result], calls: Sequence[tuple[Any, ...]], *, jobs: int
) -> Iterator[tuple[int, Result]]:
    """Yields (position in `calls`, result) as the calls finish.

    Args:
        function: picklable, module-level.
        calls: arguments of each call.
        jobs: processes; with 1, the calls run here, in order.

    Raises:
        DataError: a worker died (killed, out of memory, crashed in native code).
    """
    if jobs == 1:
        for position, arguments in enumerate(calls):
            yield position, function(*arguments)
        return
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker)
    try:
        futures = {
            executor.submit(function, *arguments): position
            for position, arguments in enumerate(calls)
        }
        for done, future in enumerate(as_completed(futures)):
            try:
                result = future.result()
            except BrokenProcessPool:
                raise DataError(
                    f"a worker process died after {done} of {len(calls)} parts (out of memory, "
                    "killed, or a crash in the compiler); what is finished is kept: run the same "
                    "command again, with --jobs 1 to see where it dies"
                ) from None
            yield futures[future], result
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    executor.shutdown()


def _start_worker() -> None:
    """Leaves interrupts to the parent, and ends this worker when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
