"""Memory of this process on Linux."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
from pathlib import Path

_POPULATE_READ = 22  # MADV_POPULATE_READ
_RESET_PEAK = "5"
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_LARGE_BYTES = 128 * 1024  # glibc's own value at the start of a process


def status_bytes(name: str) -> int:
    """Returns a value of /proc/self/status in bytes, e.g. `VmRSS`, `VmHWM` (peak) or `VmSize`.

    Raises:
        OSError: this system has no such file or value.
    """
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.M)
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found.group(1)) * 1024


def settle_memory() -> int:
    """Prepares the process for measuring memory growth; returns the resident bytes.

    It makes mapped files resident, because a forked process maps its libraries without loading
    them, and code on its first run would count as memory of the network. It also returns free heap
    pages to the system, so that their reuse counts.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    _map_file_pages(library)
    trim = getattr(library, "malloc_trim", None)
    if trim is not None:
        trim(0)
    with contextlib.suppress(OSError):  # without a reset, the peak includes the process's past
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    return status_bytes("VmRSS")


def return_freed_memory() -> None:
    """Makes the C library return large freed blocks to the system at once, if it has `mallopt`.

    By default glibc keeps freed blocks, depending on their sizes and the history of the heap. The
    peak of the same network then varies and is up to twice as high.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_MMAP_THRESHOLD, _LARGE_BYTES)


def limit_growth(most_bytes: int) -> None:
    """Limits the growth of this process's address space to `most_bytes`."""
    most = status_bytes("VmSize") + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _map_file_pages(library: ctypes.CDLL) -> None:
    """Makes the pages of all mapped files resident, if the system supports it."""
    advise = library.madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/") and parts[1].startswith("r"):
            start, end = (int(text, 16) for text in parts[0].split("-"))
            advise(start, end - start, _POPULATE_READ)
