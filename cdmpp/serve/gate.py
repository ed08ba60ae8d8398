"""Middleware of all requests: id, token, size limits, queue, time limits and log."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import re
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeVar

from cdmpp.errors import ServerError
from cdmpp.serve.measures import Measures
from cdmpp.serve.options import ServeOptions, is_loopback

Result = TypeVar("Result")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
#: Paths without token: they reveal nothing about models.
_OPEN = frozenset({"/", "/healthz"})
#: The page may only contact this server, and no other page may embed it.
_SAFE = (
    (b"content-security-policy",
     b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)  # fmt: skip
#: Seconds without data after which a rejected body is no longer read.
_SILENCE_S = 0.5
_log = logging.getLogger("cdmpp.serve")


class Refused(Exception):  # noqa: N818, not an error of the server
    """A request that is rejected with a status and one sentence."""

    def __init__(self, status: int, text: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after_s = retry_after_s


def error_body(kind: str, text: str, request_id: str) -> bytes:
    """Returns the body of an error, see `ErrorAnswer`."""
    error = {"kind": kind, "text": text, "request_id": request_id}
    return json.dumps({"error": error}).encode("ascii")


class FewAtATime:
    """Threads for slow work, so that fast requests do not wait for it.

    Args:
        threads: number of concurrent calls.
        most: maximum number of running and waiting calls; further ones are rejected.
    """

    def __init__(self, name: str, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, f"cdmpp-{name}")
        self._places = threading.Semaphore(most)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs `work` in a thread and returns its result.

        Raises:
            ServerError: too many calls are running or waiting.
        """
        if not self._places.acquire(blocking=False):
            raise ServerError("too many such requests are waiting; try again")
        future = self._threads.submit(work)
        # The place is released when the work ends, not when its request is cancelled.
        future.add_done_callback(lambda _: self._places.release())
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """Waits for running calls and cancels waiting ones."""
        self._threads.shutdown(cancel_futures=True)


class Gate:
    """ASGI middleware in front of the routes.

    Args:
        app: the application with the routes.
        options: the limits.
        token: token that requests must send; None = no token.
        measures: counters of requests.

    Attributes:
        waiting: number of requests in progress.
    """

    def __init__(
        self, app: App, options: ServeOptions, token: str | None, measures: Measures
    ) -> None:
        self._app = app
        self._options = options
        self._token = token
        self._measures = measures
        self.waiting = 0
        self._waiting_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        headers = {name.lower(): value for name, value in scope["headers"]}
        own = headers.get(b"x-request-id", b"")
        request_id = own.decode("ascii") if _ID.fullmatch(own) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(send, request_id)
        try:
            await self._pass(scope, headers, receive, answer)
        except Refused as refusal:
            await answer.refuse(refusal)
        except TimeoutError:
            most = self._options.answer_timeout_s
            text = f"no answer within {most:g} s (--timeout); send fewer programs at a time"
            await answer.refuse(Refused(504, text))
        except asyncio.CancelledError:  # the server stops and does not wait any longer
            await answer.refuse(Refused(503, "the server is stopping; try again", retry_after_s=1))
        except Exception:
            _log.exception("request %s failed", request_id)
            await answer.refuse(Refused(500, f"an error of the server; its log has {request_id}"))
        finally:
            seconds = time.perf_counter() - began
            route = str(getattr(scope.get("route"), "path", scope["path"]))
            self._measures.request(route, answer.status, seconds)
            _log.info("%s %s %s %d %.1f ms", request_id, scope["method"], _plain(scope["path"]),
                      answer.status, 1e3 * seconds)  # fmt: skip

    async def _pass(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, answer: _Answer
    ) -> None:
        self._check_names(scope, headers)
        try:
            size = self._size(scope["path"], headers)
        except Refused:
            if b"expect" not in headers:  # with Expect, the client gets the answer before it sends
                await self._discard(receive)
            raise
        if not size:
            await self._app(scope, _said(b""), answer.send)
            return
        if (
            self.waiting >= self._options.most_waiting
            or self._waiting_bytes + size > self._options.most_waiting_bytes
        ):
            raise Refused(503, "too many requests are waiting; try again", retry_after_s=1)
        self.waiting += 1
        self._waiting_bytes += size
        try:
            body = await self._body(receive, size)
            async with asyncio.timeout(self._options.answer_timeout_s):
                await self._app(scope, _said(body), answer.send)
        finally:
            self.waiting -= 1
            self._waiting_bytes -= size

    def _check_names(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Checks the token; without a token, checks the host name against DNS rebinding."""
        if self._token is None:
            name = headers.get(b"host", b"localhost").decode("latin-1")
            if not is_loopback(re.sub(r":\d+$", "", name).strip("[]")):
                raise Refused(421, "unknown host name; expected localhost")
        elif scope["path"] not in _OPEN and not scope["path"].startswith("/static/"):
            said = headers.get(b"authorization", b"")
            if not hmac.compare_digest(said, b"Bearer " + self._token.encode("ascii")):
                raise Refused(401, "expected the header `Authorization: Bearer TOKEN`")

    def _size(self, path: str, headers: dict[bytes, bytes]) -> int:
        if b"transfer-encoding" in headers:
            raise Refused(411, "expected a body with a Content-Length, not in chunks")
        size = int(headers.get(b"content-length", b"0"))
        most = self._options.most_bytes(path)
        if size > most:
            raise Refused(413, f"a body of {size} bytes; expected at most {most}")
        return size

    async def _discard(self, receive: Receive) -> None:
        """Reads a rejected body, because most clients read no answer before they have sent it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.body_timeout_s):
                while True:
                    async with asyncio.timeout(_SILENCE_S):
                        message = await receive()
                    if not message.get("more_body"):
                        return

    async def _body(self, receive: Receive, size: int) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._options.body_timeout_s):
                while len(body) < size:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(499, "the client went away")
                    body += message.get("body", b"")
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            seconds = self._options.body_timeout_s
            raise Refused(408, f"the body did not arrive within {seconds:g} s") from None
        return bytes(body)


class _Answer:
    """Sends an answer with the request's id, and stores its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = (b"x-request-id", self._request_id.encode("ascii"))
            headers = list(message.get("headers", ()))
            known = {name for name, _ in headers}  # a report has its own policy
            safe = [header for header in _SAFE if header[0] not in known]
            message["headers"] = [*headers, own, *safe]
        await self._send(message)

    async def refuse(self, refusal: Refused) -> None:
        """Sends the error, unless an answer has already started."""
        if self.status:
            return
        kind = {499: "Gone"}.get(refusal.status) or HTTPStatus(refusal.status).phrase
        body = error_body(kind, str(refusal), self._request_id)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode("ascii")),
        ]
        if refusal.retry_after_s is not None:
            headers.append((b"retry-after", str(refusal.retry_after_s).encode("ascii")))
        if refusal.status in (408, 411, 413, 499):  # the rest of the body is not read
            headers.append((b"connection", b"close"))
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await self.send(start)
        await self._send({"type": "http.response.body", "body": body})


def _said(body: bytes) -> Receive:
    """Returns an ASGI receive that yields a body once, then never returns."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        return await asyncio.Future()

    return receive


def _plain(path: str) -> str:
    return path[:100].encode("ascii", "backslashreplace").decode("ascii").replace("\n", " ")
