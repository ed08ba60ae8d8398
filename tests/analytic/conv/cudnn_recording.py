"""A stand-in for libcudnn and libcudart: answers of every call, by layer and algorithm.

It is written by hand after the header files; no GPU was at hand when it was made. It checks what a
real library would: descriptors are set before use, buffers are large enough, everything is freed.
"""

from __future__ import annotations

import ctypes
from typing import Any

NOT_SUPPORTED = 3000
OUT_OF_MEMORY = 2


class Recording:
    """Both libraries in one object.

    Args:
        times_ms: (layer as batch, cin, width, cout, kernel, stride, padding) -> algorithm ->
            milliseconds; algorithms that are not there are refused.
        choice: algorithm that the heuristic puts first.
        workspace_bytes: of every algorithm.
        memory_bytes: of the device.
    """

    def __init__(
        self,
        times_ms: dict[tuple[int, ...], dict[int, float]],
        *,
        choice: int = 1,
        workspace_bytes: int = 4096,
        memory_bytes: int = 16 << 30,
    ) -> None:
        self.times_ms = times_ms
        self.choice = choice
        self.workspace_bytes = workspace_bytes
        self.memory_bytes = memory_bytes
        self.calls: list[str] = []
        self.alive: dict[int, Any] = {}
        self.math_types: list[int] = []
        self.forwards: list[int] = []
        self.filled: dict[int, int] = {}
        self.last_error = 0
        self._next = 1000
        self._elapsed = 0.0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cud"):
            raise AttributeError(name)
        answer = getattr(self, f"answer_{name}", None)
        if answer is None and name.startswith(("cudnnCreate", "cudaEventCreate")):
            answer = self._create
        if answer is None and name.startswith(("cudnnDestroy", "cudaEventDestroy")):
            answer = self._destroy
        assert answer is not None, f"unexpected call {name}"

        class Function:
            restype: Any = None

            def __call__(_, *arguments: Any) -> Any:  # noqa: N805
                self.calls.append(name)
                return answer(*arguments)

        return Function()

    def _create(self, target: Any) -> int:
        self._next += 1
        target._obj.value = self._next
        self.alive[self._next] = None
        return 0

    def _destroy(self, handle: ctypes.c_void_p) -> int:
        del self.alive[handle.value]
        return 0

    def answer_cudaMalloc(self, target: Any, size: ctypes.c_size_t) -> int:  # noqa: N802
        held = sum(value for value in self.alive.values() if isinstance(value, int))
        if held + size.value > self.memory_bytes:
            self.last_error = OUT_OF_MEMORY
            return OUT_OF_MEMORY
        self._create(target)
        self.alive[target._obj.value] = size.value
        return 0

    def answer_cudaFree(self, buffer: ctypes.c_void_p) -> int:  # noqa: N802
        return self._destroy(buffer)

    def answer_cudaMemset(self, buffer: ctypes.c_void_p, value: int, size: Any) -> int:  # noqa: N802
        assert self.alive[buffer.value] == size.value
        return 0

    def answer_cudaMemcpyAsync(  # noqa: N802
        self, target: Any, source: Any, size: ctypes.c_size_t, kind: int, stream: Any
    ) -> int:
        assert self.alive[target.value] == self.alive[source.value] == size.value
        assert kind == 3
        return 0

    def answer_cudaMemcpy(  # noqa: N802
        self, target: Any, source: Any, size: ctypes.c_size_t, kind: int
    ) -> int:
        if kind == 1:
            self.filled[target.value] = size.value
            return 0
        # The next part of a buffer is a copy of its beginning.
        assert target.value == source.value + self.filled[source.value]
        assert size.value <= self.filled[source.value]
        self.filled[source.value] += size.value
        assert self.filled[source.value] <= self.alive[source.value]
        return 0

    def answer_cudaGetLastError(self) -> int:  # noqa: N802
        error, self.last_error = self.last_error, 0
        return error

    def answer_cudaEventRecord(self, event: ctypes.c_void_p, stream: Any) -> int:  # noqa: N802
        assert event.value in self.alive
        return 0

    def answer_cudaEventSynchronize(self, event: ctypes.c_void_p) -> int:  # noqa: N802
        assert event.value in self.alive
        return 0

    def answer_cudaEventElapsedTime(self, target: Any, start: Any, stop: Any) -> int:  # noqa: N802
        target._obj.value = self._elapsed
        return 0

    def answer_cudnnSetTensor4dDescriptor(self, made: Any, *values: int) -> int:  # noqa: N802
        self.alive[made.value] = ("tensor", values)
        assert values[:2] == (0, 0)
        return 0

    def answer_cudnnSetFilter4dDescriptor(self, made: Any, *values: int) -> int:  # noqa: N802
        self.alive[made.value] = ("filter", values)
        return 0

    def answer_cudnnSetConvolution2dDescriptor(self, made: Any, *values: int) -> int:  # noqa: N802
        self.alive[made.value] = ("layer", values)
        assert values[4:] == (1, 1, 1, 0)
        return 0

    def answer_cudnnSetConvolutionMathType(self, made: Any, kind: int) -> int:  # noqa: N802
        self.math_types.append(kind)
        return 0

    def layer(self, data: Any, weights: Any, layer: Any, output: Any) -> tuple[int, ...]:
        """Returns the layer that the descriptors describe."""
        _, (_, _, n, cin, width, _) = self.alive[data.value]
        _, (_, _, cout, filter_cin, kernel, _) = self.alive[weights.value]
        _, (padding, _, stride, *_) = self.alive[layer.value]
        _, (_, _, out_n, out_cout, out_width, _) = self.alive[output.value]
        assert (filter_cin, out_n, out_cout) == (cin, n, cout)
        assert out_width == (width + 2 * padding - kernel) // stride + 1
        return n, cin, width, cout, kernel, stride, padding

    def answer_cudnnGetConvolutionForwardWorkspaceSize(  # noqa: N802
        self,
        handle: Any,
        data: Any,
        weights: Any,
        layer: Any,
        output: Any,
        algorithm: int,
        size: Any,
    ) -> int:
        if algorithm not in self.times_ms[self.layer(data, weights, layer, output)]:
            return NOT_SUPPORTED
        size._obj.value = self.workspace_bytes
        return 0

    def answer_cudnnGetConvolutionForwardAlgorithm_v7(  # noqa: N802
        self, handle: Any, data: Any, weights: Any, layer: Any, output: Any, asked: int,
        returned: Any, choices: Any,
    ) -> int:  # fmt: skip
        assert self.last_error == 0
        assert self.layer(data, weights, layer, output) in self.times_ms
        returned._obj.value = 2
        choices[0].algorithm, choices[0].status = 5, NOT_SUPPORTED
        choices[1].algorithm, choices[1].status = self.choice, 0
        return 0

    def answer_cudnnConvolutionForward(  # noqa: N802
        self, handle: Any, one: Any, data: Any, data_buffer: Any, weights: Any, weight_buffer: Any,
        layer: Any, algorithm: int, workspace: Any, size: Any, zero: Any, output: Any,
        output_buffer: Any,
    ) -> int:  # fmt: skip
        assert (one._obj.value, zero._obj.value) == (1.0, 0.0)
        assert self.last_error == 0
        key = self.layer(data, weights, layer, output)
        n, cin, width, cout, kernel, *_ = key
        assert self.alive[data_buffer.value] == 4 * n * cin * width * width
        assert self.alive[weight_buffer.value] == 4 * cin * cout * kernel * kernel
        assert all(
            self.filled[b.value] == self.alive[b.value] for b in (data_buffer, weight_buffer)
        )
        assert size.value == self.workspace_bytes
        assert not size.value or self.alive[workspace.value] == size.value
        self.forwards.append(algorithm)
        # The first runs are slower, as they are on a GPU.
        self._elapsed = self.times_ms[key][algorithm] * (5.0 if len(self.forwards) < 3 else 1.0)
        return 0

    def answer_cudnnGetErrorString(self, status: int) -> bytes:  # noqa: N802
        return b"CUDNN_STATUS_NOT_SUPPORTED"

    def answer_cudaGetErrorString(self, status: int) -> bytes:  # noqa: N802
        return b"out of memory"

    def answer_cudnnGetVersion(self) -> int:  # noqa: N802
        return 91002
