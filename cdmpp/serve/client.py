"""Client of `cdmpp serve`; it needs only the standard library.

from cdmpp.serve.client import Client

client = Client("http://127.0.0.1:8080")
for row in client.predict([{"tvmscript": text}], devices=["t4"])["predictions"]:
    print(row["name"], row["device"], row["latency_s"])
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from cdmpp import errors
from cdmpp.errors import CdmppError, ServerError, UsageError
from cdmpp.files.json_text import parse_json

Entry = dict[str, Any]
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
#: Statuses worth a retry: the server is busy, or did not answer in time.
_BUSY = (503, 504)


class Client:
    """Client of a server. Threads may share one.

    A request that fails to connect or finds a busy server is retried with increasing pauses.

    Args:
        url: such as `http://127.0.0.1:8080`.
        token: the token in the server's `--token-file`; None = no token.
        timeout_s: time limit of an answer in seconds.
        tries: maximum number of attempts per request.

    Raises:
        UsageError: `url` is not a server's URL.
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout_s: float = 60.0, tries: int = 4
    ) -> None:
        try:
            parts = urlsplit(url)
            is_server = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_server = False
        if not is_server or tries < 1:
            raise UsageError(
                f"no server at {url!r}; expected an address such as http://127.0.0.1:8080, as "
                "`cdmpp serve` prints it"
            )
        self.url = url.rstrip("/")
        self._parts = parts
        self._token = token
        self._timeout_s = timeout_s
        self._tries = tries
        self._idle: queue.SimpleQueue[http.client.HTTPConnection] = queue.SimpleQueue()
        weakref.finalize(self, _close_all, self._idle)

    def predict(
        self, programs: Sequence[Entry], *, devices: Sequence[str] = (), model: str | None = None
    ) -> dict[str, Any]:
        """Returns `model` and `predictions`, one row per program and device.

        Args:
            programs: each {"tvmscript": text}, {"tir_json": text}, {"records": [line]} or
                {"leaves": tables}, see docs/reference/http-api.md.
            devices: labels; empty = the model's only device.
            model: name of one of the server's models; None = its first.

        Raises:
            ServerError: the server is unreachable, busy or fails.
            CdmppError: the server rejects the request.
        """
        body = {"programs": list(programs), "devices": list(devices), "model": model}
        return self.ask("POST", "/v1/predict", body)

    def explain(
        self, programs: Sequence[Entry], *, devices: Sequence[str] = (), model: str | None = None
    ) -> list[dict[str, Any]]:
        """Returns the rows of `cdmpp explain --json` for every program and device.

        Args:
            programs: each {"tvmscript": text} or {"tir_json": text}.
            devices, model: see `predict`.

        Raises:
            ServerError: the server is unreachable, busy or fails.
            CdmppError: the server rejects the request.
        """
        body = {"programs": list(programs), "devices": list(devices), "model": model}
        found: list[dict[str, Any]] = self.ask("POST", "/v1/explain", body)["explanations"]
        return found

    def rank(
        self,
        programs: Sequence[Entry],
        *,
        device: str | None = None,
        model: str | None = None,
        own_batch: bool = False,
    ) -> dict[str, Any]:
        """Returns `latency_s` and `reasons` of every program, and their `order`, fastest first.

        Args:
            own_batch: score the programs in a batch of their own, bit-identical to a local model.

        Raises:
            ServerError: the server is unreachable, busy or fails.
            CdmppError: the server rejects the request.
        """
        body = {
            "programs": list(programs), "device": device, "model": model, "own_batch": own_batch
        }  # fmt: skip
        return self.ask("POST", "/v1/rank", body)

    def models(self) -> list[dict[str, Any]]:
        """Returns the server's models, the default first.

        Raises:
            ServerError: the server is unreachable, busy or fails.
        """
        found: list[dict[str, Any]] = self.ask("GET", "/v1/models")["models"]
        return found

    def devices(self) -> list[dict[str, Any]]:
        """Returns the devices known to the server.

        Raises:
            ServerError: the server is unreachable, busy or fails.
        """
        found: list[dict[str, Any]] = self.ask("GET", "/v1/devices")["devices"]
        return found

    def health(self) -> dict[str, Any]:
        """Returns the server's status.

        Raises:
            ServerError: the server is unreachable, busy or fails.
        """
        return self.ask("GET", "/healthz")

    def ask(self, method: str, path: str, value: Any = None) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Args:
            value: JSON values of the body; None = no body.

        Raises:
            ServerError: the server is unreachable, busy or fails.
            CdmppError: the server rejects the request.
        """
        body = None if value is None else json.dumps(value).encode("ascii")
        pause_s = _FIRST_PAUSE_S
        failure: CdmppError
        for tries_left in range(self._tries - 1, -1, -1):
            try:
                status, headers, data = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as error:
                failure = self._gone(error)
            else:
                if status < 400:
                    return self._value(data)
                failure = self._said(status, data)
                if status not in _BUSY:
                    raise failure
                after = headers.get("Retry-After", "")  # seconds, or a date
                pause_s = max(pause_s, float(after) if after.isdecimal() else 0)
            if tries_left:
                time.sleep(min(pause_s, _LONGEST_PAUSE_S))
                pause_s *= 2
        raise failure

    def close(self) -> None:
        """Closes idle connections; a later request opens a new one."""
        _close_all(self._idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, Any, bytes]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        path = self._parts.path.rstrip("/") + path
        with contextlib.suppress(queue.Empty, ConnectionError):  # an idle one may be closed
            return self._send(self._idle.get_nowait(), method, path, body, headers)
        return self._send(self._connect(), method, path, body, headers)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, Any, bytes]:
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            found = answer.status, answer.headers, answer.read()
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)
        return found

    def _connect(self) -> http.client.HTTPConnection:
        is_safe = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_safe else http.client.HTTPConnection
        return kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout_s)

    def _value(self, data: bytes) -> dict[str, Any]:
        try:
            value = parse_json(data)
        except ValueError:
            raise ServerError(f"{self.url} does not answer like `cdmpp serve`") from None
        if not isinstance(value, dict):
            raise ServerError(f"{self.url} does not answer like `cdmpp serve`")
        return value

    def _said(self, status: int, data: bytes) -> CdmppError:
        """Returns the error in an answer, with its class on the server."""
        try:
            error = parse_json(data)["error"]
            kind, text, own = error["kind"], error["text"], error["request_id"]
        except (ValueError, LookupError, TypeError):
            return ServerError(f"{self.url} answers with status {status}, not like `cdmpp serve`")
        found = getattr(errors, kind, None)
        if isinstance(found, type) and issubclass(found, CdmppError) and found.__init__ is (
            CdmppError.__init__
        ):  # fmt: skip
            return found(f"{text} (reported by {self.url})")
        return ServerError(f"{self.url} answers {status}: {text} (request {own})")

    def _gone(self, error: Exception) -> ServerError:
        why = str(error) or type(error).__name__
        return ServerError(
            f"no answer from the server {self.url} ({why}, {self._tries} tries); check that it "
            "runs, or start it with `cdmpp serve`"
        )


def _close_all(idle: queue.SimpleQueue[http.client.HTTPConnection]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            idle.get_nowait().close()


def read_token(path: Path | None) -> str | None:
    """Returns the first line of a token file; None without a file.

    Raises:
        UsageError: the file cannot be read.
    """
    if path is None:
        return None
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"--token-file {path}: cannot be read ({error})") from None
    return lines[0].strip() if lines else ""
