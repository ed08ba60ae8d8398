"""Every curl command of docs/reference/http-api.md gets an answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed")

from tests.paths import ROOT
from tests.serve.serving import server, write_model

DIGEST = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
PAGE = ROOT / "docs" / "reference" / "http-api.md"
COMMANDS = re.findall(r"```\n(curl .*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("docs") / "run"
    write_model(folder)
    with server(folder) as (url, _):
        yield url


@pytest.fixture(scope="module")
def sent(url: str) -> str:
    """The digest of a file that the server has."""
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{url}/v1/networks", b"another", headers)
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["network"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split("8080")[1][:12])
def test_it_is_answered(command: str, url: str, sent: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    command = command.replace("curl -s", "curl -s --fail").replace("http://127.0.0.1:8080", url)
    command = command.replace('"t4"', '"xeon-avx2-1c"')  # this model has learned CPUs only
    command = command.replace("@resnet18.onnx", "@-").replace(DIGEST, sent)
    done = subprocess.run(
        ["bash", "-c", command], input="a network", capture_output=True, text=True, check=True
    )
    if "/metrics" in command:
        assert "cdmpp_requests_total" in done.stdout
    else:
        assert json.loads(done.stdout)


def test_there_is_a_command_for_every_route() -> None:
    assert len(COMMANDS) == 10
    for route in (
        "predict",
        "rank",
        "compare",
        "networks",
        "network ",
        "models",
        "devices",
        "healthz",
        "metrics",
    ):
        assert any(route in command for command in COMMANDS)
