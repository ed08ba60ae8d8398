"""Options of `cdmpp serve`, and the limits of requests."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.serve.client import read_token

_SHORTEST_TOKEN = 16
#: Path for uploads of network files.
NETWORK_FILES = "/v1/networks"
#: Attributes -> options of the command, for checks.
_NUMBERS = {
    "workers": "workers", "explainers": "explainers", "most_waiting": "queue",
    "answer_timeout_s": "timeout",
}  # fmt: skip


@dataclass(frozen=True)
class ServeOptions:
    """A server's models, address and limits.

    Attributes:
        models: run folders, `pretrained` or `pretrained:NAME`; the first one is the default.
        host: address to listen on; one that other machines can reach needs a token.
        port: 0 = any free port.
        token_file: file whose first line every request must send; None = no token.
        results: folder of result tables; None = runs/results of a checkout.
        runs: folder of run folders to compare; None = none.
        workers: number of processes that read programs.
        explainers: number of processes that explain programs; each is started when needed.
        most_programs: maximum programs x devices of one request.
        most_explained: maximum programs x devices of one explanation; each takes a second.
        most_body_bytes: maximum size of a request.
        most_network_bytes: maximum size of a network file.
        most_kept_bytes: maximum total size of kept network files; older ones are removed.
        most_network_devices: maximum devices of one network prediction; each takes seconds.
        most_explaining: maximum concurrent explanations, including waiting ones; more get a 503.
        most_waiting: maximum requests in progress; more get a 503.
        most_waiting_bytes: maximum total size of the bodies in progress; more get a 503.
        header_timeout_s: time limit for the headers of a request.
        body_timeout_s: time limit for its body.
        read_timeout_s: time limit for reading 16 programs of a request.
        answer_timeout_s: time limit for an answer, including waiting.
        reload_s: interval between checks of the run folders.
        grace_s: time that a stopping server waits for requests in progress.
    """

    models: tuple[str, ...] = ("pretrained",)
    host: str = "127.0.0.1"
    port: int = 8080
    token_file: Path | None = None
    results: Path | None = None
    runs: Path | None = None
    workers: int = 1
    explainers: int = 1
    most_programs: int = 4096
    most_explained: int = 16
    most_explaining: int = 8
    most_body_bytes: int = 32 << 20
    most_network_bytes: int = 128 << 20
    most_kept_bytes: int = 512 << 20
    most_network_devices: int = 4
    most_waiting: int = 256
    most_waiting_bytes: int = 256 << 20
    header_timeout_s: float = 10.0
    body_timeout_s: float = 20.0
    read_timeout_s: float = 30.0
    answer_timeout_s: float = 60.0
    reload_s: float = 2.0
    grace_s: float = 30.0

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            UsageError: a number is not positive and finite.
        """
        for name, option in _NUMBERS.items():
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"--{option} {value:g}: expected more than 0")

    def most_bytes(self, path: str) -> int:
        """Returns the maximum body size of a request to a path."""
        return self.most_network_bytes if path == NETWORK_FILES else self.most_body_bytes

    def token(self) -> str | None:
        """Returns the token that requests must send, or None if they need none.

        Raises:
            UsageError: other machines can connect and there is no token, or the token cannot be
                read or is too short.
        """
        if self.token_file is None:
            if is_loopback(self.host):
                return None
            raise UsageError(
                f"--host {self.host}: other machines can connect, so a token is needed. Create "
                "one with `openssl rand -hex 32 > token` and give --token-file token"
            )
        token = read_token(self.token_file) or ""
        if len(token) < _SHORTEST_TOKEN:
            raise UsageError(
                f"--token-file {self.token_file}: a token of {len(token)} characters can be "
                f"guessed; expected at least {_SHORTEST_TOKEN}, e.g. of `openssl rand -hex 32`"
            )
        return token


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own, which no other can connect to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
