"""Process with the model: handles requests of `AnsorClient`, see `cdmpp.processes.serve`.

It runs in cdmpp's own environment; the process with Ansor has another one. Every response has
`log`, the messages logged since the previous response as pairs (name of the level, text), and
either `raised`, a pair (name of the error's class, text), or the values below.

| op | fields of the request | fields of the response |
|---|---|---|
| task | name, target, dag | |
| predict | name, lines | scores (null = invalid), usage |
| update | name, lines | usage |
| save, load | path | |
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cdmpp.errors import CdmppError
from cdmpp.processes.serve import Handler, serve
from tvm_helper.cost_model.ansor.client import PROTOCOL
from tvm_helper.cost_model.ansor.scorer import AnsorScorer


def main(argv: Sequence[str] | None = None) -> None:
    """Serves until the standard input ends."""
    parser = argparse.ArgumentParser(prog="tvm_helper.cost_model.ansor.server")
    parser.add_argument("--model", required=True, metavar="RUN")
    parser.add_argument("--device", required=True, metavar="LABEL")
    parser.add_argument("--finetune-every", type=int, default=0, metavar="N")
    parser.add_argument("--neighbours", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    log = _Log()
    logger = logging.getLogger("cdmpp")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    scorers: list[AnsorScorer] = []

    def told(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = work()
        except CdmppError as error:
            answer = {"raised": (type(error).__name__, str(error))}
        return {**answer, "log": log.take()}

    def load() -> dict[str, Any]:
        scorers.append(
            AnsorScorer(
                args.model, args.device, finetune_every=args.finetune_every,
                neighbours=args.neighbours, seed=args.seed,
            )
        )  # fmt: skip
        return {"protocol": PROTOCOL}

    def handler(work: _Work) -> Handler:
        return lambda request, begin: told(lambda: work(scorers[0], request))

    serve({op: handler(work) for op, work in _WORKS.items()}, lambda: told(load))


class _Log(logging.Handler):
    """Buffers log messages for the next response."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelname, record.getMessage()))

    def take(self) -> list[tuple[str, str]]:
        lines, self._lines = self._lines, []
        return lines


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


_Work = Callable[[AnsorScorer, dict[str, Any]], dict[str, Any]]
_WORKS: dict[str, _Work] = {
    "task": _task, "predict": _predict, "update": _update, "save": _save, "load": _load,
}  # fmt: skip


if __name__ == "__main__":
    main()
