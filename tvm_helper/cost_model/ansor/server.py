"""The process with the model: answers requests of `ansor_client`, one JSON a line.

It runs in the product's own environment; the process with Ansor has another one. The first line is
the answer to its start. Requests are objects with `kind`; every answer has `log`, what was logged
since the last one as pairs (name of the level, text), and either `error`, a pair (name of the
class, text), or the values below.

| kind | more in the request | in the answer |
|---|---|---|
| task | name, target, dag | |
| predict | name, lines | scores (null = invalid), usage |
| update | name, lines | usage |
| save, load | path | |
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from tvm_helper.cost_model.ansor.client import PROTOCOL
from tvm_helper.cost_model.ansor.scorer import AnsorScorer


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until the standard input ends; returns the process's exit code."""
    parser = argparse.ArgumentParser(prog="tvm_helper.cost_model.ansor.server")
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--device", required=True, metavar="LABEL")
    parser.add_argument("--finetune-every", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    # Ctrl-C is for the process with the search; this one ends when its input does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _Server(sys.stdin.fileno(), os.dup(1))
    os.dup2(2, 1)  # nothing but answers may come between the answers
    try:
        scorer = AnsorScorer(
            args.model, args.device, finetune_every=args.finetune_every, seed=args.seed
        )
    except CdmppError as error:
        server.say(_error(error))
        return error.exit_code
    server.say({"protocol": PROTOCOL})
    server.serve(scorer)
    return 0


class _Server:
    """Reads requests and writes answers."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, "r", encoding="utf-8", closefd=False)
        self._answers = os.fdopen(answers, "w", encoding="utf-8")
        self._log = _Log()
        logger = logging.getLogger("cdmpp")
        logger.addHandler(self._log)
        logger.setLevel(logging.INFO)

    def say(self, answer: dict[str, Any]) -> None:
        self._answers.write(json.dumps({**answer, "log": self._log.take()}) + "\n")
        self._answers.flush()

    def serve(self, scorer: AnsorScorer) -> None:
        for line in self._requests:
            request = json.loads(line)
            try:
                self.say(_KINDS[request["kind"]](scorer, request))
            except CdmppError as error:
                self.say(_error(error))


class _Log(logging.Handler):
    """Keeps what is logged for the next answer."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelname, record.getMessage()))

    def take(self) -> list[tuple[str, str]]:
        lines, self._lines = self._lines, []
        return lines


def _error(error: CdmppError) -> dict[str, Any]:
    return {"error": (type(error).__name__, str(error))}


def _task(scorer: AnsorScorer, request: dict[str, Any]) -> dict[str, Any]:
    scorer.add_task(request["name"], target=request["target"], dag_json=request["dag"])
    return {}


def _predict(scorer: AnsorScorer, request: dict[str, Any]) -> dict[str, Any]:
    scores = scorer.predict(request["name"], request["lines"]).tolist()
    known = [score if math.isfinite(score) else None for score in scores]
    return {"scores": known, "usage": scorer.core.usage.to_json()}


def _update(scorer: AnsorScorer, request: dict[str, Any]) -> dict[str, Any]:
    scorer.update(request["name"], request["lines"])
    return {"usage": scorer.core.usage.to_json()}


def _save(scorer: AnsorScorer, request: dict[str, Any]) -> dict[str, Any]:
    scorer.save(Path(request["path"]))
    return {}


def _load(scorer: AnsorScorer, request: dict[str, Any]) -> dict[str, Any]:
    scorer.load(Path(request["path"]))
    return {}


_KINDS: dict[str, Callable[[AnsorScorer, dict[str, Any]], dict[str, Any]]] = {
    "task": _task, "predict": _predict, "update": _update, "save": _save, "load": _load,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
