"""An HTTP server on this machine that serves bytes well or badly, for tests of downloads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """One path of the server and how it behaves.

    Attributes:
        cut_after: bytes after which the connection is cut, one entry an answer; then it is not.
        statuses: answers with these codes first.
        has_ranges: whether it continues where it is asked to.
        pause_s: between two pieces of `piece` bytes.
        redirect: path that it sends to instead.
        is_chunked: whether it sends chunks and does not say how many bytes there are.
        may_answer: what it waits for before it answers; None = it answers at once.
    """

    content: bytes = b""
    cut_after: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    has_ranges: bool = True
    etag: str = '"1"'
    content_type: str = "application/octet-stream"
    pause_s: float = 0.0
    piece: int = 1 << 14
    redirect: str = ""
    is_chunked: bool = False
    may_answer: threading.Event | None = None


@dataclass
class Server:
    """A running server: its URL, what it serves and what it was asked for.

    Attributes:
        asked: (path, value of the Range header or empty) of every call.
    """

    url: str
    paths: dict[str, Served]
    asked: list[tuple[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def serving(paths: dict[str, Served]) -> Iterator[Server]:
    """Serves the paths on a free port of this machine until the end of the block."""
    state = Server("", paths)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def end_headers(self) -> None:
            """Says that the connection ends: a client must not send a redirect's call on it."""
            self.send_header("Connection", "close")
            super().end_headers()

        def do_GET(self) -> None:
            _answer(self, state)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes away is part of the tests."""

    with Quiet(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()


def _answer(handler: BaseHTTPRequestHandler, state: Server) -> None:
    path = handler.path.lstrip("/")
    asked = handler.headers.get("Range", "")
    state.asked.append((path, asked))
    served = state.paths.get(path)
    handler.close_connection = True
    if served is not None and served.may_answer is not None:
        served.may_answer.wait(30.0)
    if served is None or served.statuses:
        handler.send_response(served.statuses.pop(0) if served else 404)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    if served.redirect:
        handler.send_response(302)
        handler.send_header("Location", served.redirect)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    start = 0
    size = len(served.content)
    if asked and served.has_ranges and handler.headers.get("If-Range") == served.etag:
        start = int(asked.removeprefix("bytes=").rstrip("-"))
    if start and start >= size:
        handler.send_response(416)
        handler.send_header("Content-Range", f"bytes */{size}")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return
    handler.send_response(206 if start else 200)
    if start:
        handler.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
    if served.is_chunked:
        handler.send_header("Transfer-Encoding", "chunked")
    else:
        handler.send_header("Content-Length", str(size - start))
    handler.send_header("Content-Type", served.content_type)
    if served.etag:
        handler.send_header("ETag", served.etag)
    handler.end_headers()
    most = served.cut_after.pop(0) if served.cut_after else size
    for at in range(start, min(size, start + most), served.piece):
        piece = served.content[at : min(at + served.piece, start + most)]
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if served.is_chunked else piece)
        handler.wfile.flush()
        time.sleep(served.pause_s)
    if served.is_chunked and most >= size - start:
        handler.wfile.write(b"0\r\n\r\n")
