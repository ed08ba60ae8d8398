"""Requests that no honest client sends, and what may come back."""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.serve.attack_networks import NetworkAttack
from tests.serve.serving import connect, leaves, said

#: What the server may answer: never 500, and no answer at all only to what is no HTTP.
ALLOWED = frozenset({200, 400, 401, 404, 405, 408, 411, 413, 414, 415, 421, 422, 431, 503, 504})
_NASTY: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**400, 1e308, "", "\x00", "\u202e", "\ud800", "A" * 70_000, [], {},
    [[]], {"$ref": "#"}, "__import__('os').system('true')", "../../etc/passwd", "%s%n", "\r\nX: y",
)  # fmt: skip
_TOKENS = (
    "T", "I", "(", ")", "[", "]", ":", ",", "=", "@", "**", "lambda", "open", "eval", "range",
    "T.float32", "T.max", "T.axis", "A", "16", "-1", "0", "9" * 30, '"x"', "\n", "    ", "vi",
)  # fmt: skip
_METHODS = ("GET", "POST", "PUT", "TRACE", "G\x00T", "", "PRI", "A" * 9000)
_PATHS = (
    "/v1/rank", "/healthz", "/", "//", "/static/../app.py", "/%00", "*", "/?" * 99,
    "/static/%2e%2e/app.py", "http://evil/", "/" + "a" * 9000, "/é",
)  # fmt: skip
_VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "", "\x16\x03\x01")
_HEADERS = (
    "Host", "Content-Length", "Transfer-Encoding", "X-Request-Id", "Upgrade", "Content-Type",
    "Expect", "Authorization", "Connection", "é", "",
)  # fmt: skip
_VALUES = (
    "", "localhost", "-1", "9" * 30, "chunked", "100-continue", "\x00", "a, b", "websocket",
    "A" * 9000, "5", "Bearer x", "text/plain",
)  # fmt: skip
_SIZES = (0, 1, 7, 2**31, 2**40, 10**30, -1)
_FACTORS = (1e-3, 0.5, 2.0, 30.0, 1000.0, 1e-320, 1e6, -1.0)
_DTYPES = ("bf16", "fp8", "fp32", "int4", "float64", "\u202e", "")
#: Numbers that are none, where JSON has no word for them.
_NO_NUMBERS = re.compile(rb"[:\[, ](NaN|-?Infinity)\b")
SCRIPT = """@T.prim_func(s_tir=True)
def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.sblock("b"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] + T.float32(1)
"""


@dataclass
class Outcome:
    """What came of an attack.

    Attributes:
        statuses: kind of request -> status -> count; 0 = the connection was closed.
        wrong: answers that must not be.
        slowest_s: kind of request -> longest wait for an answer.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    slowest_s: dict[str, float] = field(default_factory=dict)

    def note(self, kind: str, answer: bytes, seconds: float, *, may_be_silent: bool) -> None:
        status = _status(answer)
        self.statuses.setdefault(kind, Counter())[status] += 1
        self.slowest_s[kind] = max(seconds, self.slowest_s.get(kind, 0.0))
        is_allowed = status in ALLOWED or (status == 0 and may_be_silent)
        says_code = b"Traceback" in answer or b'File "' in answer
        if not is_allowed or says_code or _NO_NUMBERS.search(answer):
            self.wrong.append(f"{kind}: {answer[:300]!r}")


def attack(
    url: str,
    count: int,
    *,
    device: str,
    seed: int,
    tir_json: Sequence[str] = (),
    scripts: bool = True,
    folder: Path | None = None,
) -> Outcome:
    """Sends fuzzed requests, one after the other.

    Args:
        device: that is asked about.
        tir_json: programs as TIR JSON, to be damaged; none = none are sent.
        scripts: whether the server reads TVMScript.
        folder: for files with networks; None = none are sent.
    """
    rng = random.Random(seed)
    kinds: dict[str, Callable[[], bytes]] = {
        "bytes": lambda: _damaged_bytes(device, rng),
        "json": lambda: _damaged_json(device, rng),
        "http": lambda: _damaged_http(rng),
        "leaves": lambda: _post([_damaged_leaves(rng)], device, rng),
        "compare": lambda: _damaged_comparison(rng),
        "explain": lambda: _damaged_question(device, rng, tir_json),
    }
    weights = [26, 26, 18, 10, 6, 4]
    if scripts:
        kinds["script"] = lambda: _post([{"tvmscript": damaged_text(SCRIPT, rng)}], device, rng)
        weights.append(8)
    if tir_json:
        kinds["tir json"] = lambda: _post(
            [{"tir_json": _damaged_graph(rng.choice(tir_json), rng)}], device, rng
        )
        weights.append(2)
    networks = None
    if folder is not None:
        networks = found = NetworkAttack(folder, device, rng)
        kinds["network files"] = lambda: _message(*found.file())
        kinds["networks"] = lambda: _message(*found.question())
        weights += [12, 4]
    outcome = Outcome()
    for kind in rng.choices(list(kinds), weights, k=count):
        request = kinds[kind]()
        began = time.monotonic()
        answer = exchange(url, request, is_whole=kind != "http")
        seconds = time.monotonic() - began
        outcome.note(kind, answer, seconds, may_be_silent=kind == "http")
        if networks is not None and networks.was_run:
            outcome.wrong.append(f"{kind}: a file was run")
            break
    return outcome


def exchange(url: str, request: bytes, *, is_whole: bool) -> bytes:
    """Returns what a server answers to bytes.

    Args:
        is_whole: whether they are a whole request; else this side closes its end after them.
    """
    with connect(url, timeout_s=120) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request)
            if not is_whole:
                connection.shutdown(socket.SHUT_WR)
        return said(connection)


def slow_connections(url: str, count: int) -> list[socket.socket]:
    """Returns connections that have begun to say something, half of them a body."""
    found = []
    for number in range(count):
        connection = connect(url)
        if number % 2:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        else:
            connection.sendall(
                b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b'Content-Length: 1000\r\n\r\n{"pro'
            )
        found.append(connection)
    return found


def _post(programs: Sequence[Any], device: str, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return _message(_bytes({"programs": programs, "device": device}), "/v1/rank")
    return _message(_bytes({"programs": programs, "devices": [device]}), "/v1/predict")


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode("ascii")


def _damaged_question(device: str, rng: random.Random, tir_json: Sequence[str]) -> bytes:
    """Asks why a program takes its time: one that is damaged, or in a request that is."""
    if tir_json and rng.random() < 0.3:
        entry = {"tir_json": _damaged_graph(rng.choice(tir_json), rng)}
    else:
        entry = {"tvmscript": damaged_text(SCRIPT, rng) if rng.random() < 0.8 else SCRIPT}
    value = {"programs": [entry], "devices": [device] * rng.randint(1, 3), "model": None}
    if rng.random() < 0.3:
        _replace_any(value, rng)
    return _message(_bytes(value), "/v1/explain")


def _message(body: bytes, path: str = "/v1/rank", kind: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def _valid(device: str, rng: random.Random) -> tuple[str, dict[str, Any]]:
    entries = [leaves(rng.randint(1, 3), seed=rng.randint(0, 9)), {"tvmscript": SCRIPT}]
    programs = rng.sample(entries, rng.randint(1, 2))
    if rng.random() < 0.5:
        return "/v1/rank", {"programs": programs, "device": device, "model": None}
    return "/v1/predict", {"programs": programs, "devices": [device] * rng.randint(1, 3)}


def _damaged_bytes(device: str, rng: random.Random) -> bytes:
    path, value = _valid(device, rng)
    body = bytearray(_bytes(value))
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(body))
        deed = rng.randrange(4)
        if deed == 0:
            body[place] = rng.randrange(256)
        elif deed == 1:
            del body[place : place + rng.randint(1, 50)]
        elif deed == 2:
            body[place:place] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 20)))
        else:
            body[place:place] = b"[" * rng.randint(1, 3000)
    return _message(bytes(body), path)


def _damaged_json(device: str, rng: random.Random) -> bytes:
    path, value = _valid(device, rng)
    for _ in range(rng.randint(1, 3)):
        _replace_any(value, rng)
    return _message(_bytes(value), path)


def _damaged_comparison(rng: random.Random) -> bytes:
    shape = "layers=2,width=64,heads=4,kv_heads=2,ffn=128,vocab=99,dtype=bf16"
    value = {
        "transformers": [shape], "prefill": [9], "decode_at": [9], "batch": [1, 8],
        "tensor_parallel": [1, 2], "devices": ["h100", "t4"], "scale": {"peak": 2.0},
        "objective": "cost",
    }  # fmt: skip
    deed = rng.randrange(4)
    if deed == 0:
        value["transformers"] = [re.sub(r"\d+", lambda _: str(rng.choice(_SIZES)), shape)]
        value["prefill"] = [rng.choice(_SIZES)]
    elif deed == 1:  # each number by itself may be asked
        value |= {
            name: [rng.choice((1, 2, 8, 64, 2**20, 2**40)) for _ in range(rng.randint(1, 3))]
            for name in ("prefill", "decode_at", "batch", "tensor_parallel")
        }
        value["scale"] = {"peak": rng.choice(_FACTORS), "bandwidth": rng.choice(_FACTORS)}
        value["objective"] = rng.choice(("latency", "cost", "throughput", "\x1b[2J"))
    elif deed == 2:
        value["transformers"] = [
            f"name={rng.choice(_NASTY)},{shape}".replace("bf16", rng.choice(_DTYPES)),
            damaged_text(shape, rng),
        ]
    else:
        _replace_any(value, rng)
    return _message(_bytes(value), "/v1/compare")


def _replace_any(value: Any, rng: random.Random) -> None:
    """Replaces or adds something somewhere in a JSON value."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
            value = value[key]
        elif isinstance(value, dict) and rng.random() < 0.2:
            value[rng.choice(("extra", "programs", "", "__class__"))] = copy.deepcopy(
                rng.choice(_NASTY)
            )
            return
        else:
            value[key] = copy.deepcopy(rng.choice(_NASTY))
            return


def _damaged_http(rng: random.Random) -> bytes:
    lines = [f"{rng.choice(_METHODS)} {rng.choice(_PATHS)} {rng.choice(_VERSIONS)}"]
    for _ in range(rng.randint(0, 6)):
        name, what = rng.choice(_HEADERS), rng.choice(_VALUES)
        lines.append(f"{name}: {what}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8") + rng.randbytes(rng.choice((0, 5, 400)))


def _damaged_leaves(rng: random.Random) -> dict[str, Any]:
    """Leaf tables whose numbers are nonsense."""
    entry = leaves(rng.randint(1, 4), seed=rng.randint(0, 9))
    tables = entry["leaves"]
    name = rng.choice([key for key in tables if key != "schema"])
    if isinstance(tables[name], list):
        place = rng.randrange(len(tables[name]))
        tables[name][place] = rng.choice((-1, 0, 2**31, 2**62, tables[name][place] + 1))
    else:
        text = list(tables[name])
        for _ in range(rng.randint(1, 6)):
            text[rng.randrange(len(text))] = rng.choice("ABCzyx/+901=")
        tables[name] = "".join(text)
    return entry


def _damaged_graph(text: str, rng: random.Random) -> str:
    """Returns a node graph as JSON that is no text any more, or whose nodes are others."""
    if rng.random() < 0.2:
        return damaged_text(text, rng)
    graph = json.loads(text)
    nodes = graph["nodes"]
    for _ in range(rng.randint(1, 3)):
        node, other = rng.choice(nodes), rng.choice(nodes)
        deed = rng.randrange(4)
        if deed == 0:
            node["type"] = other["type"]
        elif deed == 1 and "data" in node:
            node["data"] = copy.deepcopy(other.get("data", rng.randint(-2, 2**40)))
        elif deed == 2 and isinstance(node.get("data"), dict) and node["data"]:
            node["data"][rng.choice(list(node["data"]))] = rng.randint(-2, len(nodes) + 2)
        else:
            _replace_any(node, rng)
    return json.dumps(graph)


def damaged_text(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(text))
        stop = place + rng.choice((0, 0, 1, 3, 10))
        text = text[:place] + rng.choice(_TOKENS) + text[stop:]
    return text


def _status(answer: bytes) -> int:
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
