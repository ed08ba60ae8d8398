"""Runs a server until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cdmpp.errors import UsageError
from cdmpp.serve.app import make_app
from cdmpp.serve.hot_models import HotModels
from cdmpp.serve.measures import Measures
from cdmpp.serve.options import ServeOptions
from cdmpp.serve.reading import ProgramReader
from cdmpp.serve.service import Service


def run_server(
    options: ServeOptions,
    reader_command: Sequence[str],
    *,
    has_tvm: bool = True,
    on_ready: Callable[[str], None],
) -> None:
    """Serves until SIGTERM or SIGINT; requests in progress are still answered.

    Args:
        reader_command: starts a process that reads programs, see `ProgramReader`.
        has_tvm: whether that process reads more than records.
        on_ready: called with the server's URL when it is ready.

    Raises:
        CdmppError: a model cannot be loaded, the address is not usable, or a process cannot be
            started.
    """
    options.token()  # fails before the slow start
    with listening(options) as listener, tempfile.TemporaryDirectory() as folder:
        measures = Measures()
        models = HotModels(options.models)
        reader = ProgramReader(
            reader_command, workers=options.workers, explainers=options.explainers,
            most_explaining=options.most_explaining, folder=Path(folder),
            timeout_s=options.read_timeout_s, has_tvm=has_tvm,
        )  # fmt: skip
        service = Service(options, models, reader, measures.batch)
        try:
            reader.start()
            models.watch(options.reload_s)
            app = make_app(service, options, measures, Path(folder))
            asyncio.run(_serve(app, options, listener, on_ready))
        finally:
            service.stop()


async def _serve(
    app: Any, options: ServeOptions, listener: socket.socket, on_ready: Callable[[str], None]
) -> None:
    config = uvicorn.Config(
        app, http=_protocol(options.header_timeout_s), ws="none", lifespan="off", log_config=None,
        access_log=False, server_header=False, timeout_keep_alive=30,
        timeout_graceful_shutdown=int(options.grace_s), backlog=512,
    )  # fmt: skip
    server = _Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    if server.started:
        on_ready(_url(listener))
    await task


class _Server(uvicorn.Server):
    """A server without its own signal handling."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def end(self) -> None:
        """Stops accepting requests; a second call does not wait for those in progress."""
        self.force_exit = self.should_exit
        self.should_exit = True


def _protocol(header_timeout_s: float) -> type[H11Protocol]:
    """Returns a protocol that closes connections without a request within the time limit."""

    class ImpatientProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._timer = self.loop.call_later(header_timeout_s, self._give_up)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_busy = self.cycle is not None and not self.cycle.response_complete
            if is_busy and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            elif not is_busy and self._timer is None:
                self._timer = self.loop.call_later(header_timeout_s, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._timer is not None:
                self._timer.cancel()

        def _give_up(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return ImpatientProtocol


@contextlib.contextmanager
def listening(options: ServeOptions) -> Iterator[socket.socket]:
    """Opens a socket that listens at the server's address.

    Raises:
        UsageError: the address is not usable.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with a protocol number; otherwise the two
    # parts of an answer would wait 40 ms for each other.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((options.host, options.port))
            listener.listen(512)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"cannot listen on {options.host} port {options.port} ({error}); choose another "
                "--port, 0 = any free one"
            ) from None
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
