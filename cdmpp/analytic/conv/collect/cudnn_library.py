"""cuDNN and the CUDA runtime through ctypes, with the libraries that torch installs."""

from __future__ import annotations

import ctypes
import glob
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cdmpp.errors import DeviceError

MathType = Literal["default", "fma", "tensor"]

_NCHW = 0
_FLOAT = 0
_CROSS_CORRELATION = 1
#: cudnnMathType_t.
_MATH_TYPES: dict[MathType, int] = {"default": 0, "tensor": 1, "fma": 3}
_HOST_TO_DEVICE, _DEVICE_TO_DEVICE = 1, 3
_OK = 0
#: Size of the random bytes that fill larger buffers by repetition.
_PATTERN_BYTES = 4 << 20
#: Buffers of a layer: input, filter and output.
_LAYER_BUFFERS = 3


class ForwardChoice(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time_ms", ctypes.c_float),
        ("memory_bytes", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math_type", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


class CudnnError(DeviceError):
    """A failed call of cuDNN or the CUDA runtime.

    Attributes:
        function: name of the function.
        status: returned status.
    """

    def __init__(self, function: str, status: int, text: str) -> None:
        super().__init__(f"{function} failed with status {status} ({text})")
        self.function = function
        self.status = status


class CudnnLibrary:
    """The calls for timing forward convolutions.

    Every call is checked; a failure raises `CudnnError`.
    """

    def __init__(self, cudnn: Any, cudart: Any) -> None:
        """Creates a handle.

        Args:
            cudnn: `ctypes.CDLL` of libcudnn, or an object with its functions.
            cudart: the same for libcudart.
        """
        self._cudnn = cudnn
        self._cudart = cudart
        self._handle = ctypes.c_void_p()
        self._call("cudnnCreate", ctypes.byref(self._handle))

    def close(self) -> None:
        """Destroys the handle."""
        self._call("cudnnDestroy", self._handle)

    @property
    def version(self) -> int:
        """cuDNN's version number, e.g. 91002."""
        function = self._cudnn.cudnnGetVersion
        function.restype = ctypes.c_size_t
        return int(function())

    @contextmanager
    def convolution(
        self, sizes: tuple[int, int, int, int, int, int, int, int], math: MathType
    ) -> Iterator[Convolution]:
        """Yields a layer with its buffers on the device; all resources are freed afterwards.

        Args:
            sizes: batch, input channels, input width, output channels, output width, kernel,
                stride, padding.
            math: arithmetic of the products; `fma` = fp32 only.
        """
        made = Convolution(self, sizes, math)
        try:
            made.allocate()
            yield made
        finally:
            made.free()

    def _call(self, name: str, *arguments: Any) -> None:
        library = self._cudart if name.startswith("cuda") else self._cudnn
        status = int(getattr(library, name)(*arguments))
        if status != _OK:
            text = self._error_text(name, status)
            # The runtime keeps an error until it is read: cuDNN's next call would return it.
            self._cudart.cudaGetLastError()
            raise CudnnError(name, status, text)

    def _error_text(self, name: str, status: int) -> str:
        library, function = (
            (self._cudart, "cudaGetErrorString")
            if name.startswith("cuda")
            else (self._cudnn, "cudnnGetErrorString")
        )
        describe = getattr(library, function)
        describe.restype = ctypes.c_char_p
        text = describe(status)
        return text.decode() if text else "no description"


class Convolution:
    """One layer: descriptors, buffers and timed runs. Created by `CudnnLibrary.convolution`."""

    def __init__(
        self,
        library: CudnnLibrary,
        sizes: tuple[int, int, int, int, int, int, int, int],
        math: MathType,
    ) -> None:
        """Stores the arguments; see `allocate`."""
        self._call = library._call
        self._handle = library._handle
        self._sizes = sizes
        self._math = _MATH_TYPES[math]
        self._descriptors: list[tuple[str, ctypes.c_void_p]] = []
        self._buffers: list[ctypes.c_void_p] = []
        self._events: list[ctypes.c_void_p] = []

    def allocate(self) -> None:
        """Creates the descriptors, the buffers of input, filter and output, and two events."""
        n, cin, win, cout, wout, kernel, stride, padding = self._sizes
        self._input = self._tensor(n, cin, win)
        self._output = self._tensor(n, cout, wout)
        self._filter = self._descriptor("Filter")
        self._call(
            "cudnnSetFilter4dDescriptor", self._filter, _FLOAT, _NCHW, cout, cin, kernel, kernel
        )
        self._layer = self._descriptor("Convolution")
        self._call(
            "cudnnSetConvolution2dDescriptor", self._layer, padding, padding, stride, stride, 1, 1,
            _CROSS_CORRELATION, _FLOAT,
        )  # fmt: skip
        self._call("cudnnSetConvolutionMathType", self._layer, self._math)
        self._input_data = self._random(4 * n * cin * win * win)
        self._filter_data = self._random(4 * cout * cin * kernel * kernel)
        self._output_data = self._buffer(4 * n * cout * wout * wout)
        for _ in range(2):
            event = ctypes.c_void_p()
            self._call("cudaEventCreate", ctypes.byref(event))
            self._events.append(event)

    def choose(self) -> int:
        """Returns the first choice of cuDNN's heuristic."""
        returned = ctypes.c_int()
        choices = (ForwardChoice * 8)()
        self._call(
            "cudnnGetConvolutionForwardAlgorithm_v7", self._handle, self._input, self._filter,
            self._layer, self._output, len(choices), ctypes.byref(returned), choices,
        )  # fmt: skip
        for choice in choices[: returned.value]:
            if choice.status == _OK:
                return int(choice.algorithm)
        raise CudnnError("cudnnGetConvolutionForwardAlgorithm_v7", _OK, "it returned no algorithm")

    def workspace_bytes(self, algorithm: int) -> int:
        """Returns the bytes that an algorithm needs in addition to the layer's buffers.

        Raises:
            CudnnError: cuDNN does not support the algorithm for this layer.
        """
        size = ctypes.c_size_t()
        self._call(
            "cudnnGetConvolutionForwardWorkspaceSize", self._handle, self._input, self._filter,
            self._layer, self._output, algorithm, ctypes.byref(size),
        )  # fmt: skip
        return int(size.value)

    def time_ms(
        self, algorithm: int, *, repeats: int, warmups: int, flush_bytes: int = 0
    ) -> list[float]:
        """Returns the milliseconds of each timed run, by events around one call.

        Args:
            algorithm: cuDNN's number.
            repeats: number of timed runs.
            warmups: number of runs before them.
            flush_bytes: bytes copied before each timed run to evict the layer from the caches; 0 =
                no copy.

        Raises:
            CudnnError: cuDNN does not support the algorithm for this layer, or a run failed.
        """
        self._free_buffers(_LAYER_BUFFERS)  # those of the previous call
        workspace_bytes = self.workspace_bytes(algorithm)
        workspace = self._buffer(workspace_bytes) if workspace_bytes else ctypes.c_void_p()
        copies = [self._buffer(flush_bytes) for _ in range(2)] if flush_bytes else []
        start, stop = self._events
        times = []
        for index in range(warmups + repeats):
            if copies:
                self._call(
                    "cudaMemcpyAsync", *copies, ctypes.c_size_t(flush_bytes), _DEVICE_TO_DEVICE,
                    None,
                )  # fmt: skip
            self._call("cudaEventRecord", start, None)
            self._forward(algorithm, workspace, workspace_bytes)
            self._call("cudaEventRecord", stop, None)
            self._call("cudaEventSynchronize", stop)
            elapsed = ctypes.c_float()
            self._call("cudaEventElapsedTime", ctypes.byref(elapsed), start, stop)
            if index >= warmups:
                times.append(float(elapsed.value))
        return times

    def free(self) -> None:
        """Frees all resources, also after a failed `allocate`."""
        for event in self._events:
            self._call("cudaEventDestroy", event)
        self._free_buffers(0)
        for kind, descriptor in self._descriptors:
            self._call(f"cudnnDestroy{kind}Descriptor", descriptor)
        self._events, self._descriptors = [], []

    def _free_buffers(self, kept: int) -> None:
        """Frees all buffers after the first `kept`."""
        while len(self._buffers) > kept:
            self._call("cudaFree", self._buffers.pop())

    def _forward(self, algorithm: int, workspace: ctypes.c_void_p, size: int) -> None:
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        self._call(
            "cudnnConvolutionForward", self._handle, ctypes.byref(one), self._input,
            self._input_data, self._filter, self._filter_data, self._layer, algorithm, workspace,
            ctypes.c_size_t(size), ctypes.byref(zero), self._output, self._output_data,
        )  # fmt: skip

    def _tensor(self, images: int, channels: int, width: int) -> ctypes.c_void_p:
        made = self._descriptor("Tensor")
        self._call(
            "cudnnSetTensor4dDescriptor", made, _NCHW, _FLOAT, images, channels, width, width
        )
        return made

    def _descriptor(self, kind: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(f"cudnnCreate{kind}Descriptor", ctypes.byref(made))
        self._descriptors.append((kind, made))
        return made

    def _random(self, size: int) -> ctypes.c_void_p:
        """Returns device memory with normal random numbers. Zeros need less power, so a GPU at its
        power limit would multiply them faster.
        """
        made = self._buffer(size)
        assert made.value is not None
        numbers = np.random.default_rng(0).standard_normal(_PATTERN_BYTES // 4, np.float32)
        done = min(size, numbers.nbytes)
        self._copy(made, ctypes.c_void_p(numbers.ctypes.data), done, _HOST_TO_DEVICE)
        while done < size:
            more = min(done, size - done)
            self._copy(ctypes.c_void_p(made.value + done), made, more, _DEVICE_TO_DEVICE)
            done += more
        return made

    def _copy(self, to: ctypes.c_void_p, source: ctypes.c_void_p, size: int, kind: int) -> None:
        self._call("cudaMemcpy", to, source, ctypes.c_size_t(size), kind)

    def _buffer(self, size: int) -> ctypes.c_void_p:
        """Returns zeroed device memory."""
        made = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(made), ctypes.c_size_t(size))
        self._buffers.append(made)
        self._call("cudaMemset", made, 0, ctypes.c_size_t(size))
        return made


def open_cudnn() -> CudnnLibrary:
    """Loads cuDNN from the packages that torch installs or from the system.

    Raises:
        DeviceError: a library is missing, or there is no GPU.
    """
    cudart = _load("libcudart.so*")
    cudnn = _load("libcudnn.so*")
    count = ctypes.c_int()
    status = int(cudart.cudaGetDeviceCount(ctypes.byref(count)))
    if status != _OK or count.value < 1:
        raise DeviceError(
            f"no NVIDIA GPU found (cudaGetDeviceCount: status {status}, {count.value} devices); "
            "collect on a machine with a GPU, or read recorded tables"
        )
    return CudnnLibrary(cudnn, cudart)


def _load(pattern: str) -> Any:
    site = Path(sysconfig.get_paths()["purelib"])
    # Wheels of CUDA 12 have one folder per library, those of CUDA 13 one folder for all.
    found = sorted(glob.glob(str(site / "nvidia" / "*" / "lib" / pattern)), reverse=True)
    for name in [*found, pattern.rstrip("*")]:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise DeviceError(
        f"{pattern} not found in {site / 'nvidia'} or in the system's library path; install "
        "torch with CUDA on a machine with an NVIDIA GPU"
    )
