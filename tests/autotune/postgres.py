"""A PostgreSQL server of the Debian package for the length of a test."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binaries() -> Path | None:
    """Returns the folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


@contextmanager
def running_server() -> Iterator[str]:
    """Yields the URL of an empty database; skips the test where there is no server."""
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server in /usr/lib/postgresql (Debian package postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("no psycopg: pip install cdmpp[autotune]")
    place = Path(tempfile.mkdtemp(prefix="cdmpp-pg-"))
    # The server refuses to run as root.
    user = "postgres" if os.getuid() == 0 else None
    if user:
        shutil.chown(place, user)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = place / "data"
    initdb = [folder / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run(initdb, user=user, check=True, capture_output=True, cwd=place)
    settings = ["-c", f"unix_socket_directories={place}", "-c", "fsync=off"]
    command = [folder / "postgres", "-D", data, "-p", str(port), *settings]
    with (place / "log").open("wb") as log:
        server = subprocess.Popen(command, user=user, cwd=place, stdout=log, stderr=log)
    try:
        _wait(port, server)
        yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    finally:
        # A fast shutdown: it does not wait for connections to end.
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
        shutil.rmtree(place, ignore_errors=True)


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    for _ in range(300):
        assert server.poll() is None, "the server ended"
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=postgres").close()
            return
        except psycopg.OperationalError:
            time.sleep(0.2)
    raise AssertionError("the server did not come up")
