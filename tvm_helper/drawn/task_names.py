"""Names of random tasks: common kinds of kernels with log-uniform sizes."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from cdmpp.datasets.splits import uniform_draw

#: Share of all tasks that only test campaigns draw, and the seed of the hash that selects them.
_HELD_OUT, _HELD_OUT_SEED = 1 / 16, 2029
#: Number of draws of sizes for each task: the one closest to the drawn work is used.
_TRIES = 16
_FLOATS = ("float32", "float32", "float32", "float64", "float16")
_ANY = (*_FLOATS, "int8", "int16", "int32")
_PRODUCTS = ("float32", "float32", "float32", "float32", "float64", "float16", "bfloat16", "int8",
             "int8", "int16")  # fmt: skip
_TYPES = {"floats": _FLOATS, "any": _ANY, "products": _PRODUCTS, "float32": ("float32",)}
#: Columns: share, kind, ranges of sizes, sizes whose product is the work, log2 of the maximum work,
#: data types. The largest tensors exceed any cache.
_TABLE = """
    4 matmul           m=1..4096 n=1..4096 k=1..4096                         m,n,k         28 products
    3 dense            m=1..2048 n=8..4096 k=8..4096 relu=0..1               m,n,k         28 products
    2 batch_matmul     b=1..64 m=1..1024 n=1..1024 k=8..512                  b,m,n,k       28 products
    3 matvec           m=16..16384 k=16..16384                               m,k           26 products
    4 conv2d           n=1..8 ci=1..512 h=4..224 co=1..512 k=1..7 s=1..2 relu=0..1  n,ci,h,h,co,k,k  28 products
    2 depthwise_conv2d n=1..8 c=1..1024 h=4..224 k=3..7 s=1..2 relu=0..1     n,c,h,h,k,k   26 products
    1 conv1d           n=1..8 ci=1..512 w=16..8192 co=1..512 k=1..9 relu=0..1  n,ci,w,co,k  28 products
    1 conv3d           n=1..2 ci=1..64 t=2..32 h=4..112 co=1..64 k=1..3      n,ci,t,h,h,co,k,k,k  28 float32
    1 conv2d_transpose n=1..4 ci=1..256 h=2..64 co=1..256 k=2..4             n,ci,h,h,co,k,k  26 float32
    3 attention        b=1..64 m=1..1024 n=8..1024 d=16..128                 b,m,n,d       27 floats
    3 softmax          m=1..16384 n=8..65536                                 m,n           25 floats
    3 layer_norm       m=1..16384 n=8..16384                                 m,n           25 float32
    2 rms_norm         m=1..16384 n=8..16384                                 m,n           25 floats
    2 cumsum           m=1..16384 n=8..65536                                 m,n           25 any
    3 gather           rows=16..500000 n=1..1024 m=1..65536                  m,n           24 any
    3 transpose        b=1..64 m=8..4096 n=8..4096                           b,m,n         26 any
    4 chain            m=1..16384 n=8..65536 steps=2..12                     m,n,steps     27 any
    2 axpy             n=64..67108864                                        n             26 any
    2 add              m=1..16384 n=8..65536                                 m,n           26 any
    1 relu             m=1..16384 n=8..65536                                 m,n           26 any
    1 tanh             m=1..16384 n=8..65536                                 m,n           25 floats
    1 sigmoid          m=1..16384 n=8..65536                                 m,n           25 floats
    1 erf              m=1..16384 n=8..65536                                 m,n           25 float32
    2 reduce_sum       m=1..16384 n=8..65536                                 m,n           26 any
    1 reduce_max       m=1..16384 n=8..65536                                 m,n           26 any
    2 column_sum       m=8..65536 n=1..16384                                 m,n           26 any
    1 whole_sum        m=1..16384 n=8..65536                                 m,n           26 any
    1 argmax           m=1..16384 n=8..65536                                 m,n           26 any
    1 max_pool2d       n=1..8 c=1..512 h=4..224 k=2..3 s=1..2                n,c,h,h,k,k   26 any
    1 avg_pool2d       n=1..8 c=1..512 h=4..224 k=2..3 s=1..2                n,c,h,h,k,k   26 floats
    1 pad              n=1..8 c=1..512 h=4..224 p=1..3                       n,c,h,h       26 any
    1 concatenate      m=1..16384 n=8..65536                                 m,n           25 any
"""  # noqa: E501
_LEAST_WORK = 10


@dataclass(frozen=True)
class _Kind:
    share: int
    name: str
    ranges: dict[str, tuple[int, int]]
    work: tuple[str, ...]
    most: int
    types: tuple[str, ...]

    def draw(self, chance: random.Random) -> str:
        """Returns the name of a task."""
        work = chance.uniform(_LEAST_WORK, self.most)
        drawn = [self._sizes(chance) for _ in range(_TRIES)]
        sizes = min(drawn, key=lambda one: abs(self._log_work(one) - work))
        if "h" in sizes:
            sizes["w"] = sizes["h"]
        if "conv" in self.name and "k" in sizes and self.name != "conv2d_transpose":
            sizes["p"] = sizes["k"] // 2
        told = [f"{name}={size}" for name, size in sizes.items()]
        dtype = chance.choice(self.types)
        told += [] if dtype == "float32" else [f"dtype={dtype}"]
        return f"{self.name}:{','.join(told)}"

    def _sizes(self, chance: random.Random) -> dict[str, int]:
        return {name: _size(chance, *ends) for name, ends in self.ranges.items()}

    def _log_work(self, sizes: dict[str, int]) -> float:
        return sum(math.log2(sizes[axis]) for axis in self.work)


def _size(chance: random.Random, low: int, high: int) -> int:
    """Returns a log-uniform size in the range, often a power of two or a multiple of 8."""
    size = int(math.exp(chance.uniform(math.log(low + 1), math.log(high + 2)))) - 1
    roundness = chance.random()
    if roundness < 0.5 and size > 3:
        size = 1 << round(math.log2(size))
    elif roundness < 0.85 and size > 16:
        size -= size % 8
    return min(max(size, low), high)


def _kinds() -> list[_Kind]:
    kinds = []
    for line in filter(None, map(str.strip, _TABLE.splitlines())):
        share, name, *ranges, work, most, types = line.split()
        ends: dict[str, tuple[int, int]] = {}
        for size, _, both in (one.partition("=") for one in ranges):
            low, _, high = both.partition("..")
            ends[size] = (int(low), int(high))
        kinds.append(
            _Kind(int(share), name, ends, tuple(work.split(",")), int(most), _TYPES[types])
        )
    return kinds


def is_held_out(name: str) -> bool:
    """Returns whether only test campaigns draw the task."""
    return uniform_draw(name, _HELD_OUT_SEED) < _HELD_OUT


def drawn_names(count: int, seed: int, *, held_out: bool = False) -> list[str]:
    """Returns distinct names of tasks.

    Args:
        count: number of names.
        seed: seed of the draws; a larger `count` keeps the first names.
        held_out: whether to draw held-out tasks, which other campaigns never draw with any seed.
    """
    chance = random.Random(f"tasks|{seed}")
    kinds = _kinds()
    shares = [kind.share for kind in kinds]
    found: dict[str, None] = {}
    while len(found) < count:
        (kind,) = chance.choices(kinds, shares)
        name = kind.draw(chance)
        if is_held_out(name) == held_out:
            found[name] = None
    return list(found)
