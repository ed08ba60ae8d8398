"""The memory of this process as Linux counts it."""

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
        OSError: no such file on this system.
    """
    text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.M)
    if found is None:
        raise OSError(f"/proc/self/status has no {name}")
    return int(found.group(1)) * 1024


def settle_memory() -> int:
    """Brings memory to a state from which growth can be measured; returns the resident bytes.

    A forked process has the code of its libraries mapped but not resident: without this, the code
    that runs for the first time would count as memory of the network. Free pages of the heap are
    given back, so that using them counts.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    _map_file_pages(library)
    trim = getattr(library, "malloc_trim", None)
    if trim is not None:
        trim(0)
    with contextlib.suppress(OSError):  # then the peak is that of the whole process
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    return status_bytes("VmRSS")


def return_freed_memory() -> None:
    """Makes the C library give large freed blocks back at once, where it can be told.

    By default glibc keeps them, the more the larger they were, and what it keeps depends on the
    history of the heap: the same network then peaks up to twice as high, differently every time.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_MMAP_THRESHOLD, _LARGE_BYTES)


def limit_growth(most_bytes: int) -> None:
    """Lets this process grow by so many bytes of address space; more is refused to it."""
    most = status_bytes("VmSize") + most_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _map_file_pages(library: ctypes.CDLL) -> None:
    """Makes the pages of all mapped files resident, where the system can do that."""
    advise = library.madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/") and parts[1].startswith("r"):
            start, end = (int(text, 16) for text in parts[0].split("-"))
            advise(start, end - start, _POPULATE_READ)
