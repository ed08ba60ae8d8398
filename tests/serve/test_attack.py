"""Damaged requests of every kind, on a server without TVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from cdmpp.serve.client import Client
from tests.serve.attack import attack, slow_connections
from tests.serve.serving import DEVICE, leaves, server, write_model


@pytest.mark.exhaustive
def test_no_request_breaks_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_model(folder)
    limits = {"header_timeout_s": 1.0, "body_timeout_s": 1.0}
    with server(folder, **limits) as (url, process), Client(url, tries=1) as client:
        expected = client.rank([leaves(2)])
        outcome = attack(url, 300, device=DEVICE, seed=0, scripts=False, folder=tmp_path)
        assert outcome.wrong == []
        assert max(outcome.slowest_s.values()) < 10
        slow = slow_connections(url, 60)
        assert client.rank([leaves(2)]) == expected
        for connection in slow:
            connection.close()
        assert process.poll() is None
