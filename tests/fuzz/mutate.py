"""Mutations of record lines, JSON values and pickles."""

from __future__ import annotations

import json
import random
from typing import Any

#: Values that have broken parsers before.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**400, 0.0, -0.0, 1e308, 1e-320,
    float("nan"), float("inf"), -float("inf"), "", " ", "\x00", "\ud800", "é" * 50, "$", "[", "{}",
    "auto_unroll_max_step$-1", "auto_unroll_max_step$x", [], {}, [[]], {"a": float("nan")},
)  # fmt: skip
_STEP_CODES = (
    "AN", "FU", "PR", "RE", "SP", "FSP", "FFSP", "SA", "CA", "CI", "CR", "CHR", "CHW", "RF", "XX",
)  # fmt: skip
_OPCODES = (
    b"(.0123NIJKMGFSTUVXcbdeghijlopqrstu}])\x80\x81\x82\x85\x86\x87\x88\x89"
    b"\x8a\x8c\x8d\x8e\x90\x92\x93\x94\x95\x97"
)


def mutate_line(rng: random.Random, line: str) -> bytes:
    """Returns the bytes of a record line with one to three mutations of text or of structure.

    Half of the structural ones go to the steps, a fifth to the result.
    """
    if rng.random() < 0.4:
        return mutate_bytes(rng, line.encode())
    value = json.loads(line)
    part = rng.random()
    for _ in range(rng.randint(1, 3)):
        if part < 0.5:
            value["i"][1][1] = mutate_value(rng, value["i"][1][1])
        elif part < 0.7:
            value["r"] = mutate_value(rng, value["r"])
        else:
            value = mutate_value(rng, value)
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        text = "[" * 5000
    return text.encode("utf-8", "surrogatepass")


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Returns the data with one to eight bytes changed, cut out, doubled or put in."""
    mutant = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if not mutant:
            return bytes(mutant)
        place = rng.randrange(len(mutant))
        kind = rng.randrange(7)
        if kind == 0:
            mutant[place] = rng.randrange(256)
        elif kind == 1:
            del mutant[place : place + rng.randint(1, 30)]
        elif kind == 2:
            mutant[place:place] = mutant[place : place + rng.randint(1, 60)]
        elif kind == 3:
            mutant[place:place] = rng.choice(
                (b"[", b"]", b"{", b'"', b"\\", b",", b"\n", b"\xff", b"\xed\xa0\x80", b"-", b"e99")
            )
        elif kind == 4:
            del mutant[place:]
        elif kind == 5:
            mutant[place] ^= 1 << rng.randrange(8)
        else:
            mutant[place : place + 1] = str(rng.choice((0, 7, 10**30, -3, 99999))).encode()
    return bytes(mutant)


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Returns a JSON value of which one part, at a random depth, has been changed."""
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = rng.randrange(len(value))
        kind = rng.randrange(8)
        if kind < 5:
            return [*value[:place], mutate_value(rng, value[place]), *value[place + 1 :]]
        if kind == 5:
            return [*value[:place], *value[place + 1 :]]
        if kind == 6:
            return [*value, *value[place : place + 1] * rng.randint(1, 40)]
        return rng.sample(value, len(value))
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: mutate_value(rng, value[name])}
    return _replacement(rng, value)


def _replacement(rng: random.Random, value: Any) -> Any:
    kind = rng.randrange(4)
    if kind == 0 and type(value) is int:
        return value + rng.choice((-1, 1, 7, 1000, -(2**40)))
    if kind == 1 and isinstance(value, str):
        return rng.choice(_STEP_CODES) if len(value) < 5 else value[: rng.randrange(len(value))]
    if kind == 2:
        nested: Any = 0
        for _ in range(rng.choice((1, 3, 60, 700))):
            nested = [nested]
        return nested
    return rng.choice(ODD_VALUES)


def mutate_pickle(rng: random.Random, data: bytes, evil: bytes) -> bytes:
    """Returns a pickle with bytes, operations or names changed, or with `evil` inside."""
    kind = rng.randrange(6)
    if kind == 0:
        return mutate_bytes(rng, data)
    mutant = bytearray(data)
    place = rng.randrange(len(mutant))
    if kind == 1:
        for _ in range(rng.randint(1, 6)):
            mutant[rng.randrange(len(mutant))] = rng.choice(_OPCODES)
    elif kind == 2:
        names = (
            b"tvm.runtime.object",
            b"_new_object",
            b"SearchTask",
            b"tvm.target.target",
            b"String",
        )
        old = rng.choice(names)
        new = rng.choice(
            (b"os", b"builtins", b"posix", b"subprocess", b"system", b"eval", b"getattr")
        )
        at = mutant.find(old)
        if at > 0 and mutant[at - 1] == len(old):  # a short text carries its length
            mutant[at - 1 : at + len(old)] = bytes([len(new)]) + new
        else:
            mutant = mutant.replace(old, new)
    elif kind == 3:
        mutant[place:place] = evil
    elif kind == 4:
        mutant = bytearray(evil) + mutant
    else:
        mutant[place:place] = bytes(rng.choice(_OPCODES) for _ in range(rng.randint(1, 20)))
    return bytes(mutant)
