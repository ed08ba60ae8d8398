"""NVIDIA's runtime compiler: compiles CUDA source to machine code without a GPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from cdmpp.errors import DeviceError, ReplayError
from cdmpp.extras import require

_LIBRARY = "lib/libnvrtc.so.12"


def cubin_of(source: str, architecture: str) -> bytes:
    """Returns the CUBIN of a CUDA source without includes.

    Args:
        architecture: e.g. `sm_70`.

    Raises:
        UsageError: the package is not installed.
        DeviceError: the package's library cannot be loaded.
        ReplayError: the source does not compile.
    """
    library, program, size = load_compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"", 0, None, None)
    options = [f"--gpu-architecture={architecture}".encode(), b"--disable-warnings"]
    try:
        count = len(options)
        if library.nvrtcCompileProgram(program, count, (ctypes.c_char_p * count)(*options)):
            log = _content(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            lines = log.rstrip(b"\0").decode(errors="replace").splitlines()
            said = next((line for line in lines if "error" in line), "no reason given")
            raise ReplayError("NVRTC refuses the source", said.strip()[:160])
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        return _content(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _content(
    get_size: ctypes._NamedFuncPointer, get: ctypes._NamedFuncPointer, program: ctypes.c_void_p
) -> bytes:
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    get(program, content)
    return content.raw


@cache
def load_compiler() -> ctypes.CDLL:
    """Returns the compiler's library.

    Raises:
        UsageError: the package is not installed.
        DeviceError: the package's library cannot be loaded.
    """
    package = require(
        "nvidia.cuda_nvrtc", extra="nvrtc", purpose="compiling GPU programs without a GPU"
    )
    paths = [Path(folder) / _LIBRARY for folder in package.__path__]
    try:
        return ctypes.CDLL(str(next((path for path in paths if path.is_file()), paths[0])))
    except OSError as error:
        raise DeviceError(
            f"NVIDIA's compiler cannot be loaded ({error}); expected the library of "
            "nvidia-cuda-nvrtc-cu12 for this machine: pip install 'cdmpp[nvrtc]'"
        ) from None
