"""The server from the clients' side: contracts, limits, kills, reloads and the token."""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from cdmpp.cli.main import main
from cdmpp.comparison.llm.config_file import known_models
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError, DataError, DeviceError, ServerError, UsageError
from cdmpp.predict.requested_device import asked_devices
from cdmpp.predict.saved_model import ModelCard
from cdmpp.processes.worker import Answer
from cdmpp.serve.app import _with_fields
from cdmpp.serve.client import Client
from cdmpp.serve.options import ServeOptions
from cdmpp.serve.reader_process import _records
from cdmpp.serve.reading import _why
from cdmpp.serve.run import listening
from cdmpp.testing.synthetic import DEVICES
from tests.comparison.llama import EIGHT_B
from tests.serve.serving import (
    DEVICE,
    connect,
    leaves,
    programs,
    said,
    samples_of,
    server,
    write_model,
)

LIMITS = {
    "most_body_bytes": 200_000, "most_programs": 40, "header_timeout_s": 0.5,
    "body_timeout_s": 0.5, "read_timeout_s": 1.0, "answer_timeout_s": 15, "most_waiting": 8,
    "most_explaining": 3,
    "reload_s": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "run"
    write_model(folder)
    return folder


@pytest.fixture(scope="module")
def running(model_folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    with server(model_folder, **LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def url(running: tuple[str, subprocess.Popen[str]]) -> str:
    return running[0]


_CLIENTS: list[Client] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _CLIENTS:
        _CLIENTS.pop().close()


def client_of(url: str, **options: Any) -> Client:
    _CLIENTS.append(Client(url, **{"tries": 1, "timeout_s": 20, **options}))
    return _CLIENTS[-1]


def post(url: str, path: str, body: bytes, *headers: str) -> tuple[int, dict[str, Any], bytes]:
    """Returns status, JSON body and head of the answer to bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}"] * (not any("ength" in one for one in headers))
    with connect(url) as connection:
        connection.sendall("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        head, _, content = said(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content), head


def test_a_prediction_is_that_of_the_model_here(url: str, model_folder: Path) -> None:
    answer = client_of(url).predict([leaves(3)], devices=[DEVICE])
    here = write_model(model_folder.with_name("same")).predict(samples_of(programs(3)))
    rows = answer["predictions"]
    assert [row["latency_s"] for row in rows] == here.tolist()
    assert [row["entry"] for row in rows] == [0, 0, 0]
    assert {row["device"] for row in rows} == {DEVICE}
    assert answer["model"]["name"] == str(model_folder)


def test_a_ranking_has_its_order_and_its_reasons(url: str) -> None:
    answer = client_of(url).rank([{"tvmscript": "refuse"}, leaves(4)])
    assert answer["device"] == DEVICE
    assert answer["reasons"] == ["refused on purpose", None, None, None, None]
    seconds = answer["latency_s"]
    assert seconds[0] is None
    assert answer["order"] == sorted(range(1, 5), key=lambda place: seconds[place])


def test_entries_of_all_kinds_stay_in_order(url: str) -> None:
    entries = [leaves(1, seed=4), {"tvmscript": "ok"}, leaves(1, seed=5), {"tvmscript": "other"}]
    together = client_of(url).rank(entries)["latency_s"]
    alone = [client_of(url).rank([entry])["latency_s"][0] for entry in entries]
    assert together == alone


def test_what_many_clients_ask_at_once_is_not_mixed_up(url: str) -> None:
    def ask(seed: int) -> bool:
        expected = client_of(url).rank([leaves(3, seed=seed)], own_batch=True)["latency_s"]
        client = client_of(url, tries=20)
        return all(
            client.rank([leaves(3, seed=seed)])["latency_s"] == pytest.approx(expected, rel=1e-6)
            for _ in range(5)
        )

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(6)))
    metrics = client_of(url)._once("GET", "/metrics", None)[2].decode()
    assert 'cdmpp_requests_total{route="/v1/rank",status="200"}' in metrics


def test_models_devices_and_health(url: str, model_folder: Path) -> None:
    client = client_of(url)
    (model,) = client.models()
    assert model["name"] == str(model_folder)
    assert model["devices"] == [DEVICE]
    assert not model["has_intervals"]
    devices = {one["name"]: one for one in client.devices()}
    assert devices[DEVICE]["trained_in"] == [str(model_folder)]
    assert devices["t4"]["kind"] == "gpu"
    assert client.health()["status"] == "ok"


def test_a_comparison_is_that_of_the_command(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    schemas = client_of(url).ask("GET", "/openapi.json")["components"]["schemas"]
    (request,) = schemas["CompareRequest"]["examples"]
    cells = client_of(url, tries=8).ask("POST", "/v1/compare", request)["cells"]  # loads a model
    (shape,) = request["transformers"]
    options = ["--prefill", "2048", "--decode-at", "4096", "--device", "h100,a100"]
    assert main(["compare", "--transformer", shape, *options, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert sorted(map(json.dumps, cells)) == sorted(map(json.dumps, expected))
    assert cells[0]["cost_usd_per_million"] <= cells[1]["cost_usd_per_million"]
    for change, text in (
        ({"prefill": [], "decode_at": []}, "no pass"),
        ({"scale": {"colour": 2}}, "expected some of"),
        ({"transformers": ["layers=1"]}, "lacks"),
        ({"devices": ["t5"]}, "unknown device"),
        ({"all_devices": True, "batch": list(range(1, 65))}, "in one request; expected at most"),
        (
            {
                "under_load": {"concurrency": [1], "input_tokens": 9, "output_tokens": 9},
                "prefill": [],
                "decode_at": [],
                "all_devices": True,
                "tensor_parallel": [1] * 64,
                "transformers": [EIGHT_B] * 16,
            },
            "in one request; expected at most",
        ),
        ({"transformers": ["x.onnx"]}, "expected e.g."),
        ({"transformers": []}, "expected transformers, models, configs or networks"),
        ({"models": ["meta/lama"]}, "no shipped config"),
        ({"configs": [{"name": "mine", "content": {}}]}, "mine: no key architectures"),
        ({"networks": ["ResNet-51"]}, "no shipped network"),
        ({"networks": ["ResNet-50"], "batch": [3]}, "is shipped at batch 1, 8, 32, not 3"),
        ({"under_load": {"concurrency": [1], "input_tokens": 9, "output_tokens": 9}}, "no pass"),
        (
            {
                "under_load": {"concurrency": [1], "input_tokens": 9, "output_tokens": 9},
                "prefill": [],
                "decode_at": [],
                "networks": ["ResNet-50"],
            },
            "under_load is of language models",
        ),
        (
            {
                "under_load": {"concurrency": [], "input_tokens": 9, "output_tokens": 9},
                "prefill": [],
                "decode_at": [],
            },
            "at least 1 item",
        ),
        (
            {"configs": [{"name": "mine", "content": {"text_config": "?"}}]},
            "mine: text_config is '\\?', expected the keys of a decoder",
        ),
    ):
        with pytest.raises(CdmppError, match=text):
            client_of(url).ask("POST", "/v1/compare", {**request, **change})


@pytest.mark.parametrize(("name", "experts"), [("Qwen/Qwen3-30B-A3B", 2), ("config.json", 1)])
def test_models_are_compared_as_by_the_command(
    url: str, name: str, experts: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client = client_of(url, tries=8)
    what: dict[str, Any] = {"models": [name]}
    if name == "config.json":
        content = known_models()["meta-llama/Llama-3-8B"]
        (tmp_path / name).write_text(json.dumps(content))
        what = {"configs": [{"name": tmp_path.name, "content": content}]}
    model = str(tmp_path) if "configs" in what else name
    request = {**what, "devices": ["h100"], "tensor_parallel": [2], "expert_parallel": experts}
    options = ["--device", "h100", "--tensor-parallel", "2", "--expert-parallel", str(experts)]
    options.append("--json")
    assert main(["compare", "--model", model, "--decode-at", "512", *options]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert client.ask("POST", "/v1/compare", {**request, "decode_at": [512]})["cells"] == expected
    load: dict[str, Any] = {"concurrency": [1, 4], "input_tokens": 128, "output_tokens": 32}
    load["server_options"] = {"max_num_seqs": 2, "gpu_memory_utilization": 0.8}
    under = ["--concurrency", "1,4", "--input-tokens", "128", "--output-tokens", "32"]
    under += ["--server-options", "max_num_seqs=2,gpu_memory_utilization=0.8"]
    assert main(["compare", "--model", model, *under, *options]) == 0
    expected = json.loads(capsys.readouterr().out)
    for given in (load["server_options"], under[-1]):
        asked = {**request, "under_load": {**load, "server_options": given}}
        assert client.ask("POST", "/v1/compare", asked)["loads"] == expected


def test_measured_loads_calibrate_as_by_the_command(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"concurrency": 4, "isl": 1024, "osl": 128, "ttft_ms": 350, "tpot_ms": 7.5}
    path = tmp_path / "points.csv"
    path.write_text("concurrency,isl,osl,ttft_ms,tpot_ms\n4,1024,128,350,7.5\n")
    name, client = "Qwen/Qwen3-30B-A3B", client_of(url, tries=8)
    load = {"concurrency": [4, 32], "input_tokens": 1024, "output_tokens": 128}
    load |= {"backend": "sglang", "measured": [{**row, "system": "h100", "tp_size": None}]}
    request: dict[str, Any] = {"models": [name], "devices": ["h100"], "under_load": load}
    options = [f"--{option.replace('_', '-')}" for option in load if option != "concurrency"]
    values = ["1024", "128", "sglang", str(path)]
    words = [word for pair in zip(options, values, strict=True) for word in pair]
    shown = ["compare", "--model", name, "--device", "h100", "--concurrency", "4,32", *words]
    assert main([*shown, "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert client.ask("POST", "/v1/compare", request)["loads"] == expected
    assert {cell["measured_points"] for cell in expected} == {1}
    for change, text in (
        ({"ttft_ms": 0.2}, "measured: row 1: ttft_ms is impossibly short: got 0.2"),
        ({"system": "b200"}, "row 1 with system b200, expected h100"),
        ({"tp_size": "two"}, "measured: row 1, column 'tp_size': cannot read 'two'"),
        (
            {"tpot_ms": -1},
            "measured.0.tpot_ms: Input should be greater than 0, got '-1'",
        ),
        ({"tp_size": [1]}, "under_load.measured.0.tp_size"),
    ):
        other = {**request, "under_load": {**load, "measured": [{**row, **change}]}}
        with pytest.raises(CdmppError, match=text):
            client_of(url).ask("POST", "/v1/compare", other)
    with pytest.raises(UsageError, match="are of one server: got 2 combinations"):
        client_of(url).ask("POST", "/v1/compare", {**request, "devices": ["h100", "a100"]})


def test_networks_that_come_along_are_compared(url: str) -> None:
    request = {"networks": ["ResNet-50"], "devices": ["h100", "a100"], "batch": [8]}
    cells = client_of(url, tries=8).ask("POST", "/v1/compare", request)["cells"]
    assert [cell["batch"] for cell in cells] == [8, 8]
    assert all(0 < cell["low_s"] < cell["latency_s"] < cell["high_s"] for cell in cells)


def test_the_page_is_served_and_asks_nobody_else(url: str) -> None:
    status, headers, data = client_of(url)._once("GET", "/", None)
    assert status == 200
    assert b"<title>cdmpp" in data
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'self'" in policy
    assert "connect-src 'self'" in policy
    assert client_of(url)._once("GET", "/static/index.html", None)[2] == data
    assert client_of(url)._once("GET", "/static/../schemas.py", None)[0] == 404


@pytest.mark.parametrize("path", ["/", "/healthz", "/static/app.js"])
def test_a_health_check_may_ask_for_the_head_alone(url: str, path: str) -> None:
    """HEAD, which load balancers send, had the status 405."""
    with connect(url) as connection:
        head = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")


def test_files_of_the_page_are_packed_for_who_reads_that(url: str) -> None:
    request = urllib.request.Request(f"{url}/static/app.js", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        packed = answer.read()
    plain = client_of(url)._once("GET", "/static/app.js", None)[2]
    assert gzip.decompress(packed) == plain
    assert len(packed) < 0.7 * len(plain)


def test_every_example_of_openapi_is_a_request(url: str) -> None:
    schemas = client_of(url).ask("GET", "/openapi.json")["components"]["schemas"]
    for name, path in (("PredictRequest", "/v1/predict"), ("RankRequest", "/v1/rank")):
        for example in schemas[name]["examples"]:
            if "t4" in example.get("devices", ()):
                with pytest.raises(DeviceError, match="the model was trained on no gpu"):
                    client_of(url).ask("POST", path, example)
                example["devices"].remove("t4")
            assert client_of(url).ask("POST", path, example)["model"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 422, "Field required"),
        (b"{", 422, "JSON"),
        (b"[" * 100_000, 400, "parsing the body"),
        (b'{"programs": []}', 422, "at least 1"),
        (b'{"programs": [{}]}', 422, "expected one of"),
        (b'{"programs": [{"tvmscript": "ok", "tir_json": ""}]}', 422, "expected one of"),
        (b'{"programs": [{"tvmscript": "ok"}], "more": 1}', 422, "Extra inputs"),
        (b'{"programs": [{"tvmscript": NaN}]}', 422, "string"),
        (b'{"programs": [{"tvmscript": "\\ud800"}]}', 422, "programs"),
        (b'{"programs": [{"tvmscript": "ok"}], "model": "none"}', 404, "no model"),
        (b'{"programs": [{"tvmscript": "ok"}], "devices": ["t5"]}', 404, "unknown device"),
        (b"\xff\xfe", 422, "body"),
    ],
)
def test_malformed_bodies_get_one_sentence(url: str, body: bytes, status: int, text: str) -> None:
    got, answer, head = post(url, "/v1/predict", body, "X-Request-Id: my-1")
    assert got == status
    assert text in answer["error"]["text"]
    assert "Traceback" not in json.dumps(answer)
    assert answer["error"]["request_id"] == "my-1"
    assert b"x-request-id: my-1" in head.lower()


def test_a_value_that_a_request_cannot_have_is_not_missing(url: str) -> None:
    """It had the status 404, that of a model or device that the server does not have."""
    request = {"transformers": [EIGHT_B], "devices": ["h100"], "decode_at": [9]}
    body = json.dumps(request | {"tensor_parallel": [3]}).encode()
    status, answer, _ = post(url, "/v1/compare", body)
    assert (status, "cannot share" in answer["error"]["text"]) == (422, True)
    request = {"models": ["meta/lama"], "devices": ["h100"], "decode_at": [9]}
    assert post(url, "/v1/compare", json.dumps(request).encode())[0] == 404


def test_a_reason_has_no_name_of_a_class() -> None:
    """The sentence of an expected error began with `DataError: `."""
    for text, shown in (
        ("DataError: x is not TIR JSON", "x is not TIR JSON"),
        ("ValueError: not finite", "ValueError: not finite"), ("killed after 30 s",) * 2,
    ):  # fmt: skip
        assert _why(Answer("failed", {}, text)) == shown


def test_too_much_is_refused(url: str) -> None:
    assert post(url, "/v1/predict", b"", f"Content-Length: {10 << 20}")[0] == 413
    assert post(url, "/v1/predict", b"0\r\n\r\n", "Transfer-Encoding: chunked")[0] == 411
    with pytest.raises(UsageError, match="more than 40 programs"):
        client_of(url).predict([{"tvmscript": "ok"}] * 41)
    with pytest.raises(UsageError, match="41 programs"):
        client_of(url).rank([{"tvmscript": "ok"}] * 21 + [leaves(20)])


def test_a_client_that_sends_too_much_is_told(url: str) -> None:
    """The connection was reset while it sent: `no answer ...; check that it runs`."""
    with pytest.raises(ServerError, match=r"answers 413: a body of .* expected at most"):
        client_of(url).predict([{"tvmscript": "x" * (30 << 20)}])


def test_an_error_of_a_request_says_what_it_got(url: str) -> None:
    def text(path: str, body: bytes, *headers: str) -> str:
        return post(url, path, body, *headers)[1]["error"]["text"]

    assert "got 't4'" in text(
        "/v1/predict", b'{"programs": [{"tvmscript": "ok"}], "devices": "t4"}'
    )
    assert "not JSON (" in text("/v1/predict", b'{"a":')
    assert "at least 1 item" in text("/v1/predict", b'{"programs": [{"records": []}]}')
    assert text("/v1/nothing", b"{}").startswith("POST /v1/nothing: Not Found; see")
    assert text("/healthz", b"{}").startswith("POST /healthz: Method Not Allowed; see")
    with connect(url) as connection:
        connection.sendall(
            b"POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert b"expected Content-Type: application/json" in said(connection)


@pytest.mark.parametrize(
    ("path", "request_", "texts"),
    [
        ("/v1/predict", {"devices": ["t5"]}, ["unknown device 't5'", "(all: GET /v1/devices)"]),
        ("/v1/rank", {"device": "t5"}, ["unknown device 't5'", "(all: GET /v1/devices)"]),
        (
            "/v1/compare", {"transformers": [EIGHT_B], "decode_at": [9]},
            ['"devices": ["h100", "l40s", "b200"], or "all_devices": true'],
        ),
    ],
)  # fmt: skip
def test_errors_name_fields_not_options(
    url: str, path: str, request_: dict[str, Any], texts: list[str]
) -> None:
    body = request_ if path == "/v1/compare" else {"programs": [leaves(1)], **request_}
    text = post(url, path, json.dumps(body).encode())[1]["error"]["text"]
    assert all(one in text for one in texts), text
    assert "--" not in text


@pytest.mark.parametrize(
    ("is_rank", "field"), [(True, '"device": "LABEL"'), (False, '"devices": ["LABEL"]')]
)
def test_a_request_without_a_device_is_told_the_field(is_rank: bool, field: str) -> None:
    card = ModelCard(
        kind="roofline", feature_schema={}, data_hash="", split={}, devices=DEVICES,
        training_tasks=frozenset(), versions={},
    )  # fmt: skip
    with pytest.raises(UsageError) as caught:
        asked_devices([], (), card)
    text = _with_fields(str(caught.value), is_rank=is_rank)
    assert text.startswith(f"choose devices with {field}; the model was trained on ")


def test_a_body_that_does_not_come_is_given_up(url: str) -> None:
    status, answer, _ = post(url, "/v1/rank", b'{"pro', "Content-Length: 100")
    assert status == 408
    assert "did not arrive" in answer["error"]["text"]


def test_connections_that_say_nothing_are_closed(url: str) -> None:
    with connect(url) as silent, connect(url) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        assert silent.recv(1) == b""
        assert slow.recv(1) == b""
        assert time.monotonic() - began < 10


@pytest.mark.slow
def test_many_programs_take_longer_than_one_may(url: str) -> None:
    """4,096 in one request were killed after what one program may take, whatever `--timeout`."""
    found = client_of(url).predict([{"tvmscript": "sleep 0.04"}] * 30)["predictions"]
    assert [row["entry"] for row in found] == list(range(30))


@pytest.mark.slow
def test_a_program_that_kills_or_hangs_its_reader_costs_itself_only(url: str) -> None:
    for deed in ("crash", "sleep 30"):
        with pytest.raises(DataError, match=r"SIGSEGV|killed after"):
            client_of(url).predict([{"tvmscript": deed}])
        assert client_of(url).predict([{"tvmscript": "ok"}])["predictions"][0]["latency_s"] > 0
    metrics = client_of(url)._once("GET", "/metrics", None)[2].decode()
    assert "cdmpp_lost_readers 2.0" in metrics


def test_overload_says_come_back_and_passes(url: str) -> None:
    def ask(number: int) -> tuple[int, bytes]:
        body = json.dumps({"programs": [{"tvmscript": "sleep 0.2"}]}).encode()
        status, _, head = post(url, "/v1/rank", body)
        return status, head.lower()

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        found = list(pool.map(ask, range(20)))
    statuses = {status for status, _ in found}
    assert 503 in statuses
    assert statuses <= {200, 503, 504}
    assert all(b"retry-after: 1" in head for status, head in found if status == 503)
    assert client_of(url, tries=5).rank([leaves(1)])["order"] == [0]


@pytest.mark.exhaustive
def test_predictions_go_on_while_explanations_fill_their_places(url: str) -> None:
    programs = [{"tvmscript": "sleep 0.5"}]
    client_of(url, tries=8).explain([{"tvmscript": "ok"}])  # its process has started

    def explain(_: int) -> tuple[int, bytes]:
        status, _, head = post(url, "/v1/explain", json.dumps({"programs": programs}).encode())
        return status, head.lower()

    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(explain, number) for number in range(5)]
        _wait(lambda: sum(one.done() for one in asked) >= 2)  # two were refused at once
        for _ in range(5):
            assert client_of(url).predict([{"tvmscript": "ok"}])["predictions"][0]["latency_s"] > 0
        assert not all(one.done() for one in asked)
        found = [one.result() for one in asked]
    assert sorted(status for status, _ in found) == [200, 200, 200, 503, 503]
    assert all(b"retry-after: 1" in head for status, head in found if status == 503)
    assert client_of(url).explain(programs)[0]["name"] == "sleep"


@pytest.mark.slow
def test_a_program_that_kills_its_explainer_costs_itself_only(url: str) -> None:
    with pytest.raises(DataError, match="SIGSEGV"):
        client_of(url).explain([{"tvmscript": "crash"}])
    assert client_of(url, tries=8).explain([{"tvmscript": "ok"}])


@pytest.mark.parametrize(
    "limit", [{"workers": 0}, {"explainers": -1}, {"most_waiting": 0}, {"answer_timeout_s": 0.0}]
)
def test_limits_that_let_nobody_in_are_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="more than 0"):
        ServeOptions(**limit)


def test_other_names_than_this_machines_are_refused(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b"421" in said(connection).split(b"\r\n")[0]
    for name in (b"127.0.0.2:80", b"[::1]"):
        with connect(url) as connection:
            connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: " + name + b"\r\n\r\n")
            assert b"200" in said(connection).split(b"\r\n")[0]


@pytest.mark.slow
def test_a_new_model_is_loaded_and_a_damaged_one_is_not(url: str, model_folder: Path) -> None:
    client = client_of(url)
    old = client.rank([leaves(2)])
    (model_folder / "model.json").write_text("{")
    _wait(lambda: client.models()[0]["last_error"] is not None)
    assert client.rank([leaves(2)]) == old
    new_model = write_model(model_folder, seed=7)
    _wait(lambda: client.models()[0]["version"] != old["model"]["version"])
    new = client.rank([leaves(2)])
    assert new["latency_s"] == new_model.predict(samples_of(programs(2))).tolist()
    assert new["latency_s"] != old["latency_s"]
    assert client.models()[0]["last_error"] is None
    write_model(model_folder)
    _wait(lambda: client.rank([leaves(2)])["latency_s"] == old["latency_s"])


def _wait(is_so: Any) -> None:
    for _ in range(200):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 4 seconds")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_server_is_a_clear_error_and_a_killed_client_is_none(model_folder: Path) -> None:
    with server(model_folder) as (url, process):
        code = (
            "from cdmpp.serve.client import Client\n"
            f"Client({url!r}).rank([{{'tvmscript': 'sleep 0.3'}}])"
        )
        asking = subprocess.Popen([sys.executable, "-c", code])
        client = client_of(url)
        _wait(lambda: client.health()["waiting"] == 1)
        asking.kill()
        asking.wait()
        assert client.rank([leaves(1)])["order"] == [0]
        process.kill()
        process.wait()
        with pytest.raises(ServerError, match="start it with `cdmpp serve`"):
            client_of(url, tries=2).health()


@pytest.mark.slow
def test_others_need_a_token(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--token-file"):
        ServeOptions(host="0.0.0.0").token()
    token_file = tmp_path / "token"
    token_file.write_text("short\n")
    with pytest.raises(UsageError, match="guessed"):
        ServeOptions(token_file=token_file).token()
    token_file.write_text("0123456789abcdef\n")
    with server(model_folder, host="0.0.0.0", token_file=str(token_file)) as (url, _):
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert client_of(url).health()["status"] == "ok"
        for token in (None, "0123456789abcdeX"):
            with pytest.raises(ServerError, match="401"):
                client_of(url, token=token).models()
        assert client_of(url, token="0123456789abcdef").models()


def test_the_error_of_the_server_is_that_of_the_client(url: str) -> None:
    with pytest.raises(DeviceError, match="unknown device"):
        client_of(url).predict([leaves(1)], devices=["t5"])
    with pytest.raises(UsageError, match="no model"):
        client_of(url).predict([leaves(1)], model="other")
    with pytest.raises(UsageError, match="no server at"):
        Client("127.0.0.1:80")
    for wrong in ("http://localhost:port", "http://localhost:99999", "http://[::1"):
        with pytest.raises(UsageError, match="no server at"):
            Client(wrong)


def test_a_date_to_retry_after_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client("http://localhost:1", tries=1)
    date = {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}
    monkeypatch.setattr(client, "_once", lambda *_: (503, date, b""))
    with pytest.raises(ServerError, match="answers with status 503"):
        client.health()


def test_a_damaged_record_costs_itself_only() -> None:
    device = get_device("epyc-avx2-1c")
    source = min((default_dataset_dir() / "measure_records" / device.name).iterdir())
    with gzip.open(source, "rt") as file:
        first, second = file.readline(), file.readline()
    unknown = first.replace(json.loads(first)["i"][0][0].split('"')[1], "0" * 32)
    entry = {"records": [first, "damaged", unknown, second]}
    reasons = [row["reason"] or "" for row, _ in _records(entry, [device], 0)]
    assert [reason[:13] for reason in reasons] == ["", "not JSON (col", "not a shipped", ""]


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio switches Nagle's algorithm off only where a socket says its protocol."""
    with listening(ServeOptions(port=0)) as listener:
        assert listener.proto == socket.IPPROTO_TCP
        port = listener.getsockname()[1]
        with pytest.raises(UsageError, match="another --port"), listening(ServeOptions(port=port)):
            pass


def test_a_busy_server_is_asked_again(url: str) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        waits = [pool.submit(client_of(url, tries=8).rank, [{"tvmscript": "sleep 0.05"}])
                 for _ in range(12)]  # fmt: skip
        assert all(one.result()["order"] == [0] for one in waits)


@pytest.mark.exhaustive
def test_programs_of_many_stores_do_not_take_all_memory(url: str) -> None:
    from cdmpp.models.assemble import AskedProgram
    from cdmpp.serve.scoring import is_too_large
    from cdmpp.testing.synthetic import DEVICES

    small = [AskedProgram("", "", ast, DEVICES[0]) for ast in programs(200)]
    assert not is_too_large(small)
    many = np.zeros((1024, 164), np.float32)
    large = AskedProgram("", "", programs(1)[0].__class__(many, many, many, many), DEVICES[0])
    assert not is_too_large([large])
    assert is_too_large([*small, large])


@pytest.mark.slow
def test_a_server_that_is_told_to_end_answers_what_is_under_way(
    running: tuple[str, subprocess.Popen[str]],
) -> None:
    """Ends the server of this file, so it is the last test."""
    url, process = running
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: answers.append(client_of(url).rank([{"tvmscript": "sleep 0.6"}]))
    )
    thread.start()
    _wait(lambda: client_of(url).health()["waiting"] == 1)
    process.send_signal(signal.SIGTERM)
    thread.join()
    assert answers[0]["order"] == [0]
    assert process.wait(20) == 0
