"""Random kernels of moderate size, of the kinds that networks have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

#: A random schedule of a larger kernel can run for seconds.
_MOST_FLOPS = 5e8
#: Loops as they are can take 8 ns for each multiply-add.
_MOST_LAYER_FLOPS = 10**8
_SIDES = (7, 8, 10, 14, 20, 28, 40, 56, 80, 112)


def kernel_names(seed: int) -> Iterator[str]:
    """Yields names for `cdmpp measure --task` without end: each kind in turn, at random sizes."""
    rng = random.Random(seed)
    while True:
        for kind in _KINDS:
            yield kind(rng)


def _size(rng: random.Random, low: int, high: int, step: int) -> int:
    """Returns a multiple of `step`, drawn log-uniformly."""
    drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(step, step * round(drawn / step))


def _side(rng: random.Random, flops_a_point: float) -> int:
    """Returns a random side of an image, such that the kernel has at most `_MOST_FLOPS`."""
    fitting = [side for side in _SIDES if flops_a_point * side**2 <= _MOST_FLOPS]
    return rng.choice(fitting or _SIDES[:1])


def _conv2d(rng: random.Random, kernel: int) -> str:
    ci, co = _size(rng, 16, 320, 8), _size(rng, 16, 320, 8)
    side = _side(rng, 2 * ci * co * kernel**2)
    return (f"conv2d:ci={ci},co={co},h={side},w={side},k={kernel},s=1,p={kernel // 2},"
            f"relu={rng.randrange(2)}")  # fmt: skip


def _depthwise(rng: random.Random) -> str:
    side, stride = rng.choice(_SIDES), rng.choice((1, 2))
    return f"depthwise_conv2d:c={_size(rng, 16, 320, 8)},h={side},w={side},k=3,s={stride},p=1"


def _group_conv2d(rng: random.Random) -> str:
    ci, co, groups = _size(rng, 16, 320, 8), _size(rng, 16, 320, 8), rng.choice((2, 4, 8))
    side = _side(rng, 18 * ci * co / groups)
    return f"group_conv2d:ci={ci},co={co},h={side},w={side},k=3,s=1,p=1,g={groups}"


def _conv2d_transpose(rng: random.Random) -> str:
    ci, co, side = _size(rng, 16, 256, 8), _size(rng, 16, 64, 8), rng.choice((7, 8, 14))
    return f"conv2d_transpose:ci={ci},co={co},h={side},w={side},k=4,s=2,p=1"


def _conv1d(rng: random.Random) -> str:
    ci, co, width = _size(rng, 16, 320, 8), _size(rng, 16, 320, 8), _size(rng, 64, 512, 8)
    return f"conv1d:ci={ci},w={width},co={co},k=3,s=1,p=1"


def _dense(rng: random.Random) -> str:
    m, n, k = _size(rng, 1, 256, 1), _size(rng, 64, 1024, 8), _size(rng, 64, 1024, 8)
    return f"dense:m={m},n={n},k={k},relu={rng.randrange(2)}"


def _batch_matmul(rng: random.Random) -> str:
    b, m = _size(rng, 2, 16, 1), _size(rng, 16, 256, 8)
    n, k = _size(rng, 16, 256, 8), _size(rng, 16, 128, 8)
    return f"batch_matmul:b={b},m={m},n={n},k={k}"


def _matmul(rng: random.Random) -> str:
    m, n, k = (_size(rng, 16, 512, 8) for _ in range(3))
    return f"matmul:m={m},n={n},k={k}"


def _layer(rng: random.Random) -> str:
    """Weights of up to 64 MiB; loops as they are read a column of them at a time."""
    n, k = _width(rng), _width(rng)
    return f"matmul:m={_size(rng, 1, max(1, _MOST_LAYER_FLOPS // (2 * n * k)), 1)},n={n},k={k}"


def _width(rng: random.Random) -> int:
    """Returns a layer's width, often a power of two: such rows share the sets of a cache."""
    drawn = _size(rng, 256, 4096, 8)
    return 2 ** round(math.log2(drawn)) if rng.random() < 0.4 else drawn


def _rows(rng: random.Random, *kinds: str) -> str:
    kind = rng.choice(kinds)
    return f"{kind}:m={_size(rng, 64, 1536, 8)},n={_size(rng, 64, 1536, 8)}"


def _pool(rng: random.Random) -> str:
    kind, side = rng.choice(("max_pool2d", "avg_pool2d")), rng.choice((14, 28, 56))
    return f"{kind}:c={_size(rng, 16, 320, 8)},h={side},w={side},k=3,s=2,p=1"


def _transpose(rng: random.Random) -> str:
    b, m, n = _size(rng, 2, 16, 1), _size(rng, 16, 256, 8), _size(rng, 16, 256, 8)
    return f"transpose:b={b},m={m},n={n}"


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: _conv2d(rng, 3),
    _dense,
    _depthwise,
    lambda rng: _rows(rng, "softmax"),
    lambda rng: _conv2d(rng, 1),
    _batch_matmul,
    _layer,
    _pool,
    lambda rng: _rows(rng, "add", "relu", "tanh", "sigmoid", "erf"),
    _group_conv2d,
    _matmul,
    lambda rng: _rows(rng, "layer_norm"),
    _conv2d_transpose,
    _layer,
    lambda rng: _rows(rng, "reduce_sum", "reduce_max"),
    _conv1d,
    _transpose,
)
