"""What `cdmpp serve` is asked to do, and the limits that nobody's requests pass."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path

from cdmpp.errors import UsageError
from cdmpp.serve.client import read_token

_SHORTEST_TOKEN = 16
#: Where files with networks are sent to.
NETWORK_FILES = "/v1/networks"
#: Attributes that the command sets -> its options.
_NUMBERS = {
    "workers": "workers", "explainers": "explainers", "most_waiting": "queue",
    "answer_timeout_s": "timeout",
}  # fmt: skip


@dataclass(frozen=True)
class ServeOptions:
    """A server's models, its address and its limits.

    Attributes:
        models: run folders, `pretrained` or `pretrained:NAME`; the first one answers where a
            request names none.
        host: address to listen on; another one than this machine's own needs a token.
        port: 0 = any free one.
        token_file: file whose first line every request has to show; None = none.
        results: folder of tables to browse; None = runs/results of a checkout.
        runs: folder of run folders to compare; None = none.
        workers: processes that read programs.
        explainers: processes that say why programs take their time; each is started when needed.
        most_programs: programs x devices of one request.
        most_explained: likewise of a request that asks why: each takes a second.
        most_body_bytes: of one request.
        most_network_bytes: of a file with a network.
        most_kept_bytes: of all such files that are kept for questions; older ones go.
        most_network_devices: that one request asks about a network: each takes seconds.
        most_explaining: requests that ask why, under way at a time; more get a 503.
        most_waiting: requests that are read, wait or are answered at a time; more get a 503.
        most_waiting_bytes: likewise, of their bodies together.
        header_timeout_s: how long a connection may take to say what it wants.
        body_timeout_s: how long its body may take to arrive.
        read_timeout_s: how long 16 of a request's programs may take to be read.
        answer_timeout_s: how long an answer may take, waiting included.
        reload_s: how often run folders are looked at.
        grace_s: how long a stopping server waits for the answers that are under way.
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
            UsageError: one of them lets nobody in.
        """
        for name, option in _NUMBERS.items():
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"--{option} {value:g}: expected more than 0")

    def most_bytes(self, path: str) -> int:
        """Returns how large the body of a request to a path may be."""
        return self.most_network_bytes if path == NETWORK_FILES else self.most_body_bytes

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def token(self) -> str | None:
        """Returns what requests have to show, None where they need nothing.

        Raises:
            UsageError: others can connect and there is no token; or it cannot be read or guessed.
        """
        if self.token_file is None:
            if self.is_loopback:
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
