"""Routes beyond programs: files that are kept, and what is asked about them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from fastapi import FastAPI, Request

from cdmpp.errors import CdmppError, DataError, NotFoundError, UsageError
from cdmpp.report.page import script_hash
from cdmpp.serve.app import _add_errors
from cdmpp.serve.client import Client
from cdmpp.serve.gate import Gate
from cdmpp.serve.measures import Measures
from cdmpp.serve.options import ServeOptions
from cdmpp.serve.routes.browsing import add_browsing
from cdmpp.serve.routes.uploads import Uploads
from tests.report.run_folders import write_run
from tests.report.test_tidy_results import write_results
from tests.serve.serving import DEVICE, connect, said, server, write_model

_BYTES = "application/octet-stream"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("routes")
    folder, results, runs = (place / name for name in ("run", "results", "runs"))
    write_model(folder)
    results.mkdir()
    write_results(results)
    write_run(runs / "one", "roofline")
    write_run(runs / "two words", "constant")
    limits = {"most_body_bytes": 2000, "most_network_bytes": 4000, "most_kept_bytes": 6000}
    places = {"results": str(results), "runs": str(runs)}
    with server(folder, **limits, **places, most_network_devices=1) as (url, _):
        yield url


def sent(url: str, body: bytes, kind: str = _BYTES) -> tuple[int, dict[str, object]]:
    """Returns the status and the answer to a file."""
    head = f"POST /v1/networks HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    with connect(url) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head, _, content = said(connection).decode().partition("\r\n\r\n")
    return int(head.split()[1]), json.loads(content)


def test_a_file_is_kept_and_asked_about(url: str) -> None:
    status, kept = sent(url, b"x" * 3000)  # more than other bodies may have
    assert (status, kept["size_bytes"]) == (200, 3000)
    with Client(url, tries=1) as client:
        asked = {"network": kept["network"], "name": "mine", "devices": [DEVICE]}
        answer = client.ask("POST", "/v1/network", asked)
        assert answer["networks"] == [{"network": "mine", "device": DEVICE, "text": "x" * 3000}]
        with pytest.raises(UsageError, match="2 devices; expected at most 1"):
            client.ask("POST", "/v1/network", {**asked, "devices": [DEVICE, "epyc-avx2-1c"]})
        with pytest.raises(UsageError, match="does not have this file"):
            client.ask("POST", "/v1/network", {**asked, "network": "0" * 64})


@pytest.mark.parametrize(
    ("body", "kind", "status", "text"),
    [
        (b"", _BYTES, 422, "is empty"),
        (b"x", "text/plain", 415, "as it is"),
        (b"x" * 4001, _BYTES, 413, "expected at most 4000"),
    ],
)
def test_files_that_are_not_taken(url: str, body: bytes, kind: str, status: int, text: str) -> None:
    got, answer = sent(url, body, kind)
    assert (got, text in json.dumps(answer)) == (status, True), answer


def test_the_files_that_nobody_asks_for_go_first(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path, 25)
    first, second = uploads.keep(b"a" * 10, ".onnx"), uploads.keep(b"b" * 10, ".pt2")
    path = uploads.find(first)
    assert uploads.keep(b"b" * 10, ".pt2") == second
    assert uploads.find(first).read_bytes() == b"a" * 10
    third = uploads.keep(b"c" * 10, ".pt2")
    assert path.exists()
    with pytest.raises(UsageError, match=r"any more\); send it again"):
        uploads.find(second)
    assert {file.name for file in tmp_path.iterdir()} == {f"{first}.onnx", f"{third}.pt2"}


def test_a_file_is_kept_under_its_last_suffix_only(tmp_path: Path) -> None:
    """The file with the former suffix stayed, and did not count."""
    uploads = Uploads(tmp_path, 25)
    uploads.keep(b"a" * 10, ".onnx")
    key = uploads.keep(b"a" * 10, ".pt2")
    assert [file.name for file in tmp_path.iterdir()] == [f"{key}.pt2"]
    assert uploads.find(key).read_bytes() == b"a" * 10


def test_a_file_cannot_be_removed_while_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, locked = Uploads(tmp_path, 25), []
    exists = Path.exists
    monkeypatch.setattr(
        Path, "exists", lambda path: locked.append(uploads._lock.locked()) or exists(path)
    )
    uploads.keep(b"a", ".onnx")
    assert locked[0]


def test_results_are_browsed_and_their_page_is_as_it_was_written(url: str) -> None:
    with Client(url, tries=1) as client:
        found = client.ask("GET", "/v1/results")
        assert [one["name"] for one in found["tables"]] == ["board"]
        board = client.ask("GET", "/v1/results/board?dataset=gpu")["board"]
        assert board["lines"][0]["model"] == "ensemble"
        assert {one["name"]: one["chosen"] for one in board["facets"]}["dataset"] == "gpu"
        status, headers, data = client._once("GET", "/v1/results/board/page", None)
        assert (status, data) == (200, b"<!doctype html><title>board</title>")
        policies = headers.get_all("Content-Security-Policy")
        assert len(policies) == 1
        assert "sandbox" in policies[0]
        for path in ("/v1/results/nothing", "/v1/results/..%2Fboard", "/v1/results/loose/page"):
            with pytest.raises(UsageError, match=r"no (page of )?results|answers 404|Not Found"):
                client.ask("GET", path)
        metrics = client._once("GET", "/metrics", None)[2]
        assert b'cdmpp_requests_total{route="/v1/results/{name}",status="200"}' in metrics


def test_runs_are_compared_and_their_report_is_served(url: str) -> None:
    with Client(url, tries=1) as client:
        assert [one["name"] for one in client.ask("GET", "/v1/runs")["runs"]] == [
            "one",
            "two words",
        ]
        asked = "/v1/runs/compared?run=one&run=two%20words"
        compared = client.ask("GET", asked)["compared"]
        assert [one["name"] for one in compared["runs"]] == ["one", "two words"]
        status, headers, data = client._once("GET", "/v1/runs/report?run=two%20words", None)
        assert (status, b"Latency prediction" in data) == (200, True)
        policy = headers["Content-Security-Policy"]
        assert re.findall(r"script-src ([^;]*);", policy) == [f"'sha256-{script_hash()}'"]
        for path in ("compared?run=three", "report?run=../run"):
            with pytest.raises(NotFoundError, match="no run"):
                client.ask("GET", f"/v1/runs/{path}")
        with pytest.raises(UsageError, match="at most 6 items"):
            client.ask("GET", "/v1/runs/compared?run=one" + "&run=one" * 6)


@pytest.mark.parametrize(("kind", "status"), [(UsageError, 422), (NotFoundError, 404)])
def test_an_error_of_a_get_has_the_status_of_its_kind(kind: type[UsageError], status: int) -> None:
    """Every usage error of a GET had the status 404."""
    app = FastAPI()
    _add_errors(app)
    request = Request(
        {"type": "http", "method": "GET", "path": "/", "headers": [], "state": {"request_id": "1"}}
    )
    answer = asyncio.run(app.exception_handlers[CdmppError](request, kind("text")))
    assert (answer.status_code, json.loads(answer.body)["error"]["kind"]) == (
        status, kind.__name__,
    )  # fmt: skip


def test_a_server_without_them_says_how_to_have_them(tmp_path: Path) -> None:
    options = ServeOptions(results=tmp_path)
    app = FastAPI()
    add_browsing(app, options)
    with pytest.raises(DataError, match=r"expected a folder of run folders$"):
        add_browsing(app, ServeOptions(results=tmp_path, runs=tmp_path / "none"))
    routes = {route.path: route.endpoint for route in app.routes if hasattr(route, "endpoint")}
    assert routes["/v1/runs"]().runs == []
    with pytest.raises(UsageError, match="--runs DIR"):
        asyncio.run(routes["/v1/runs/compared"](["one"]))


def test_a_stopping_server_asks_to_try_again():
    """uvicorn cancels requests that last longer than its grace; they got a bare 500."""
    sent = []

    async def slow(scope, receive, send):
        await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    async def stop() -> None:
        gate = Gate(slow, ServeOptions(), None, Measures())
        scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
        task = asyncio.create_task(gate(scope, None, send))
        await asyncio.sleep(0.05)
        task.cancel("timeout graceful shutdown exceeded")
        await task

    asyncio.run(stop())
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]
    assert json.loads(sent[1]["body"])["error"]["text"] == "the server is stopping; try again"
