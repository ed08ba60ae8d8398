"""Files with networks that no honest client sends, and questions about them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from pathlib import Path
from typing import Any

from tests.files.exported_networks import GRAPH, TRAPS, packed, saved_network
from tests.fuzz.mutate import ODD_VALUES, mutate_bytes, mutate_value
from tests.serve.onnx_files import Node, write_onnx

_BYTES = "application/octet-stream"
_KINDS = (*[_BYTES] * 12, "application/json", "text/plain", "")
_LABELS = ("t4", "h100", "nothing", "", "\u202e", "x" * 70_000)
_COUNTS = (1, 1, 1, 2, 4, 5, 1000)


class NetworkAttack:
    """Requests to `/v1/networks` and `/v1/network`, the second ones about files of the first ones.

    Args:
        folder: for the networks that are damaged, and what one of them would make.
        device: that is asked about.
    """

    def __init__(self, folder: Path, device: str, rng: random.Random) -> None:
        import numpy as np

        nodes: list[Node] = [("MatMul", ["x", "w"], ["h"], {}), ("Relu", ["h"], ["y"], {})]
        weights = {"w": np.full((8, 4), 0.5, np.float32)}
        onnx = write_onnx(folder / "net.onnx", nodes, weights, x=(2, 8), y=(2, 4))
        self._onnx = onnx.read_bytes()
        self._exported = saved_network(folder / "net.pt2")
        self._trap, self._device, self._rng = folder / "trap", device, rng
        self._sent = ["0" * 64]

    @property
    def was_run(self) -> bool:
        """Whether a file was run."""
        return self._trap.exists()

    def file(self) -> tuple[bytes, str, str]:
        """Returns a body, its path and its type: a file, most of them damaged."""
        data, kind = self._damaged(), self._rng.choice(_KINDS)
        if kind == _BYTES:
            self._sent.append(hashlib.sha256(data).hexdigest())
        return data, "/v1/networks", kind

    def question(self) -> tuple[bytes, str, str]:
        """Returns a body, its path and its type: a question, a third of them damaged."""
        rng = self._rng
        devices = [self._device] * rng.choice(_COUNTS)
        value: Any = {"network": rng.choice(self._sent[-20:]), "name": "n", "devices": devices}
        if rng.random() < 0.1:
            value["devices"] = [rng.choice(_LABELS)]
        if rng.random() < 0.15:
            value |= {rng.choice(("network", "name", "model", "more")): rng.choice(ODD_VALUES)}
        if rng.random() < 0.1:
            value = mutate_value(rng, value)
        body = json.dumps(value).encode()
        if rng.random() < 0.05:
            body = mutate_bytes(rng, body)
        return body, "/v1/network", "application/json"

    def _damaged(self) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.1:
            return rng.choice((b"", b"PK\x03\x04", bytes(5_000_000), self._onnx))
        if kind < 0.35:
            return mutate_bytes(rng, self._onnx)
        if kind < 0.6:
            return self._other_onnx()
        files = dict(self._exported)
        if kind < 0.75:
            TRAPS[rng.choice(list(TRAPS))](files, self._trap)
            return packed(files)
        if kind < 0.9:
            graph = json.loads(files[GRAPH])
            for _ in range(rng.randint(1, 3)):
                graph = mutate_value(rng, graph)
            files[GRAPH] = json.dumps(graph).encode()
            return packed(files)
        name = rng.choice(list(files))
        files[name] = mutate_bytes(rng, files[name])
        return packed(files) if rng.random() < 0.5 else mutate_bytes(rng, packed(files))

    def _other_onnx(self) -> bytes:
        """Returns a message of ONNX with another value somewhere; sizes may be huge."""
        import onnx
        from google.protobuf import json_format

        value = json_format.MessageToDict(onnx.load_model_from_string(self._onnx))
        while True:
            if self._rng.random() < 0.3:
                text = json.dumps(value).replace(
                    f'"{self._rng.choice((2, 4, 8))}"', f'"{2 ** self._rng.randint(20, 62)}"'
                )
                other = json.loads(text)
            else:
                other = mutate_value(self._rng, value)
            with contextlib.suppress(Exception):  # protobuf has many: no message holds the value
                return bytes(json_format.ParseDict(other, onnx.ModelProto()).SerializeToString())
