"""Reads registers, shared memory, instructions and loops of the kernels in a CUBIN.

No NVIDIA tools are needed. From compute capability 7.0 on, an instruction has 16 bytes: bits 0 to 8
are the opcode, 9 to 11 the form of its operands, 12 to 15 its predicate, 16 to 23 and 24 to 31 two
registers, 32 to 63 a constant or the distance of a jump, 73 to 75 the width of a memory access, 81
to 83 the predicate that a comparison writes. NVIDIA does not document this encoding. The numbers
below were derived from the output of `nvdisasm` 12.8 and are equal for 7.0, 7.5, 8.0, 8.6 and 8.9.
From 9.0 on, jumps, registers and shared memory are encoded elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError

_NUMBERS: dict[str, tuple[int, ...]] = {
    "multiply_add": (0x23,),  # FFMA
    "float": (0x08, 0x09, 0x0B, 0x20, 0x21, 0x102),  # FSEL FMNMX FSETP FMUL FADD FCHK
    "double": (0x28, 0x29, 0x2A, 0x2B),  # DMUL DADD DSETP DFMA
    "half": (0x30, 0x31, 0x32, 0x35),  # HADD2 HFMA2 HMUL2 HFMA2.MMA
    "tensor": (0x37, 0x3C),  # IMMA HMMA
    "special": (0x108,),  # MUFU
    "integer_multiply": (0x24, 0x25, 0x26, 0x27),  # IMAD IMAD.WIDE IDP IMAD.HI
    "integer": (  # SEL ISETP IADD3 LEA LOP3 IABS PRMT IMNMX SHF PLOP3 VIADD VIADDMNMX VIMNMX ...
        0x07, 0x0C, 0x10, 0x11, 0x12, 0x13, 0x16, 0x17, 0x19, 0x1C, 0x36, 0x46, 0x48,
        0x90, 0x91, 0xBD, 0x100, 0x101, 0x109,
    ),
    "move": (0x02, 0x03, 0x05, 0x82, 0x119, 0x1C3),  # MOV P2R CS2R UMOV S2R S2UR
    "convert": (0x3E, 0x45, 0x104, 0x105, 0x106, 0x107, 0x110, 0x111, 0x112),
    "load_global": (0x181, 0x1AE),  # LDG LDGSTS
    "store_global": (0x186,),  # STG
    "load_shared": (0x184, 0x3B),  # LDS LDSM
    "store_shared": (0x188,),  # STS
    "load_local": (0x183,),  # LDL
    "store_local": (0x187,),  # STL
    "load_constant": (0x182, 0xB9),  # LDC ULDC
    "atomic": (0x18D, 0x18E, 0x1A3, 0x1A8, 0x1A9, 0x1C4),
    "shuffle": (0x06, 0x86, 0x189),  # VOTE VOTEU SHFL
    "barrier": (0x11A, 0x11D, 0x192, 0x1AF),  # DEPBAR BAR MEMBAR LDGDEPBAR
    "branch": (0x141, 0x142, 0x144, 0x145, 0x147, 0x148, 0x149, 0x14D, 0x150, 0x155),
}  # fmt: skip
#: Kinds of instructions.
KINDS = (*_NUMBERS, "other")
#: Kind -> its index in `KINDS`.
KIND: dict[str, int] = {name: place for place, name in enumerate(KINDS)}

_KIND_OF = np.full(512, KIND["other"], np.int64)
for _name, _operations in _NUMBERS.items():
    _KIND_OF[list(_operations)] = KIND[_name]
_MEMORY = [
    KIND[f"{verb}_{where}"] for where in ("global", "shared", "local") for verb in ("load", "store")
]
_WIDTHS = np.array([1, 1, 2, 2, 4, 8, 16, 16])  # bytes

_BYTES = 16
_NOP, _BRA, _ISETP, _IADD3, _MOV = 0x118, 0x147, 0x0C, 0x10, 0x02
_CONSTANT = 4  # form of the operands: the third is a constant
_ALWAYS, _NEVER, _ZERO = 7, 15, 255  # two predicates, and the zero register
_BEFORE = 200  # number of instructions before a loop that are searched for its counter's start
_NO_CONTENT = 8  # type of a section without content in the file


@dataclass(frozen=True)
class CodeLoop:
    """Instructions [first, last] repeated by a jump at the end; `trips` is None if unknown."""

    first: int
    last: int
    trips: float | None


@dataclass(frozen=True)
class KernelCode:
    """Machine code of a kernel without padding instructions.

    Attributes:
        name: name of the function.
        registers: registers per thread.
        shared_bytes: static shared memory of a block.
        kind: int64 [N], index in `KINDS` of each instruction.
        width: int64 [N], bytes moved from or to memory by each instruction.
        is_conditional: bool [N], whether an instruction has a predicate.
        loops: loops, sorted by their first instruction.
    """

    name: str
    registers: int
    shared_bytes: int
    kind: NDArray[np.int64]
    width: NDArray[np.int64]
    is_conditional: NDArray[np.bool_]
    loops: tuple[CodeLoop, ...]


def read_cubin(cubin: bytes) -> list[KernelCode]:
    """Returns the kernels in the order of TVM's numbering.

    Raises:
        DataError: the bytes are not a CUBIN, are damaged, or contain no kernel.
    """
    try:
        sections = {name: (info, content) for name, info, content in _sections(cubin)}
    except (struct.error, IndexError, ValueError) as error:
        raise DataError(f"{len(cubin)} bytes are not a CUBIN ({error}); compile it again") from None
    names = [name.removeprefix(".text.") for name in sections if name.startswith(".text.")]
    if not names:
        raise DataError(f"a CUBIN of {len(cubin)} bytes has no kernel; expected at least one")
    kernels = []
    for name in sorted(names, key=lambda name: (len(name), name)):
        info, code = sections[f".text.{name}"]
        _, shared = sections.get(f".nv.shared.{name}", (0, b""))
        kernels.append(_kernel(name, info >> 24, len(shared), code))
    return kernels


def _sections(elf: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yields name, info and content of the sections of a 64-bit ELF file."""
    if elf[:5] != b"\x7fELF\x02":
        raise ValueError("it does not begin as a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQII", elf, table + size * place) for place in range(count)]
    text = headers[names][4]
    for name, kind, _, _, offset, length, _, info in headers:
        end = elf.index(b"\0", text + name)
        content = bytes(length) if kind == _NO_CONTENT else elf[offset : offset + length]
        yield elf[text + name : end].decode("ascii"), info, content


def _kernel(name: str, registers: int, shared_bytes: int, code: bytes) -> KernelCode:
    words = np.frombuffer(code[: len(code) // _BYTES * _BYTES], "<u8").reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    operation = (low & 0x1FF).astype(np.int64)
    kept = (operation != _NOP) & ((low >> 12) & 15 != _NEVER)
    kind = _KIND_OF[operation]
    width = np.where(np.isin(kind, _MEMORY), _WIDTHS[((high >> 9) & 7).astype(np.int64)], 0)
    place = np.cumsum(kept) - 1
    loops = [
        CodeLoop(int(place[first]), int(place[last]), _trips(low.tolist(), high, first, last))
        for first, last in _jumps_back(low)
    ]
    conditional = (low >> 12) & 7 != _ALWAYS
    return KernelCode(
        name, registers, shared_bytes, kind[kept], width[kept], conditional[kept], tuple(loops)
    )


def _jumps_back(low: NDArray[np.uint64]) -> list[tuple[int, int]]:
    """Returns (first, last) of each loop; of several jumps to one target, the last one counts.

    The jump to itself after the end of every kernel is not a loop.
    """
    last: dict[int, int] = {}
    for place in np.flatnonzero(low & 0x1FF == _BRA).tolist():
        target = place + 1 + _constant(int(low[place])) // _BYTES
        if 0 <= target < place:
            last[target] = place
    return sorted(last.items())


def _trips(low: list[int], high: NDArray[np.uint64], first: int, last: int) -> float | None:
    """Returns the trip count of a loop; None if constants do not determine it."""
    guards = [word >> 12 & 7 for word in low[max(first, last - 1) : last + 1]]
    predicate = guards[-1] if guards[-1] != _ALWAYS else guards[0]  # or a jump out, just before
    for place in range(last - 1, first - 1, -1):
        word = low[place]
        if word & 0x1FF != _ISETP or int(high[place]) >> 17 & 7 != predicate:
            continue
        if word >> 9 & 7 == _CONSTANT:
            bound = _constant(word)
        elif word >> 32 & 0xFF == _ZERO:
            bound = 0
        else:
            return None
        counter = word >> 24 & 0xFF
        step = _step(low[first : last + 1], counter)
        start = _start(low[max(0, first - _BEFORE) : first], counter)
        trips = (bound - start) / step if step else 0.0
        return trips if trips >= 1 else None
    return None


def _step(instructions: list[int], counter: int) -> int:
    """Returns the constant that an iteration adds to a register; 0 if there is none."""
    for word in instructions:
        is_sum = word & 0x1FF == _IADD3 and word >> 9 & 7 == _CONSTANT
        if is_sum and counter in (word >> 16 & 0xFF, word >> 24 & 0xFF):
            return _constant(word)
    return 0


def _start(instructions: list[int], counter: int) -> int:
    """Returns the last constant assigned to a register; 0 if there is none."""
    for word in reversed(instructions):
        if word & 0x1FF == _MOV and word >> 16 & 0xFF == counter:
            return _constant(word) if word >> 9 & 7 == _CONSTANT else 0
    return 0


def _constant(word: int) -> int:
    """Returns the signed constant of an instruction."""
    value = word >> 32 & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
