"""Runs the reference kernels with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdmpp.analytic.gpu_kernels.calls import DecodeAttention, Gemm, PrefillAttention
from cdmpp.analytic.sweep.calls import Fp32Operator, Move, SweepCall
from cdmpp.errors import DataError


class TorchLauncher:
    """Prepares functions that launch one call each.

    Args:
        torch: the module.
        device: device of the tensors: `cuda`, or `cpu` in tests.
    """

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device

    def prepare(self, call: SweepCall) -> Callable[[], Any]:
        """Returns a function that runs the call on operands that are already allocated.

        Raises:
            DataError: torch has no kernel for the call.
            RuntimeError: torch cannot run the call on this device, or memory is too small.
        """
        if isinstance(call, Gemm):
            return self._product(call)
        if isinstance(call, PrefillAttention | DecodeAttention):
            return self._attention(call)
        if isinstance(call, Fp32Operator):
            return self._operator(call)
        if isinstance(call, Move):
            source = self._torch.zeros(max(1, call.moved_bytes // 8), device=self._device)
            target = self._torch.empty_like(source)
            return lambda: target.copy_(source)
        raise DataError(f"torch cannot run {type(call).__name__} on one GPU")

    def _random(self, *shape: int, dtype: Any = None) -> Any:
        dtype = dtype or self._torch.float32
        return self._torch.randn(shape, device=self._device, dtype=dtype)

    def _product(self, call: Gemm) -> Callable[[], Any]:
        torch = self._torch
        if call.dtype in ("bfloat16", "float16"):
            dtype = getattr(torch, call.dtype)
            left, right = (self._random(rows, call.k, dtype=dtype) for rows in (call.m, call.n))
            out = torch.empty(call.m, call.n, device=self._device, dtype=dtype)
            return lambda: torch.mm(left, right.t(), out=out)
        if call.dtype not in ("fp8", "fp8_static"):
            raise DataError(f"torch has no kernel here for products in {call.dtype}")
        eight, wide = torch.float8_e4m3fn, torch.bfloat16
        left = self._random(call.m, call.k, dtype=wide)
        right = self._random(call.n, call.k, dtype=wide).to(eight)
        one = torch.ones((), device=self._device)
        scaled = left.to(eight)

        def product(factor: Any) -> Any:
            return torch._scaled_mm(factor, right.t(), scale_a=one, scale_b=one, out_dtype=wide)

        if call.dtype == "fp8_static":
            return lambda: product(scaled)
        return lambda: product((left * one).to(eight))  # this kernel scales its 16-bit input

    def _attention(self, call: PrefillAttention | DecodeAttention) -> Callable[[], Any]:
        if call.window or {call.dtype, call.kv_dtype} != {"bfloat16"}:
            raise DataError("torch's attention is only measured in bfloat16 and without a window")
        is_prefill = isinstance(call, PrefillAttention)
        if isinstance(call, PrefillAttention):
            if call.past:
                raise DataError("torch's prefill is only measured without earlier tokens")
            new, seen = call.length, call.length
        else:
            new, seen = 1, call.context
        wide = self._torch.bfloat16
        query = self._random(call.batch, call.heads, new, call.head_size, dtype=wide)
        key, value = (
            self._random(call.batch, call.kv_heads, seen, call.head_size, dtype=wide)
            for _ in range(2)
        )
        attention = self._torch.nn.functional.scaled_dot_product_attention
        is_grouped = call.heads != call.kv_heads
        return lambda: attention(
            query, key, value, is_causal=is_prefill and new > 1, enable_gqa=is_grouped
        )

    def _operator(self, call: Fp32Operator) -> Callable[[], Any]:
        torch, sizes = self._torch, call.sizes
        functional = torch.nn.functional
        if call.kind == "bmm":
            left = self._random(sizes["batch"], sizes["m"], sizes["k"])
            right = self._random(sizes["batch"], sizes["k"], sizes["n"])
            return lambda: torch.bmm(left, right)
        if call.kind == "linear":
            rows = self._random(sizes["batch"], sizes["m"], sizes["k"])
            weight, bias = self._random(sizes["n"], sizes["k"]), self._random(sizes["n"])
            return lambda: functional.linear(rows, weight, bias)
        first = self._random(sizes["rows"], sizes["cols"])
        if call.kind == "softmax":
            return lambda: functional.softmax(first, dim=-1)
        if call.kind == "ln":
            return lambda: functional.layer_norm(first, (sizes["cols"],))
        if call.kind in ("relu", "gelu"):
            run = getattr(functional, call.kind)
            return lambda: run(first)
        if call.kind == "tanh":
            return lambda: torch.tanh(first)
        operator = getattr(torch, call.kind.removesuffix("u"))
        second: Any = 1.5 if call.kind.endswith("u") else self._random(sizes["rows"], sizes["cols"])
        return lambda: operator(first, second)
