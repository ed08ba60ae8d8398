"""Continuous batching as a discrete-event simulation of requests and steps.

The rules are in docs/explanation/serving-load.md.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from cdmpp.errors import UsageError

#: Seconds of a step by: prompt tokens, earlier tokens of their prompts, sequences that generate a
#: token, and the mean number of tokens in their caches.
StepSeconds = Callable[[int, int, int, float], float]
#: Rounds of requests, as in published runs: the first round arrives at once and fills the server.
_ROUNDS = 10
#: Published runs draw lengths from this share of the nominal length up (InferenceX).
LEAST_SHARE = 0.8
_MOST = 10_000
#: Maximum number of steps of a simulation; a million take about a minute.
_MOST_STEPS = 3_000_000
_MOST_SIZE = 2**20
#: Maximum growth of caches in tokens before a step's time is updated.
_STRETCH = 64


@dataclass(frozen=True)
class Load:
    """Requests of the users of a server.

    Attributes:
        concurrency: requests in flight: each user sends the next request after an answer.
        input_tokens, output_tokens: maximum per request.
        least_share: lengths are drawn uniformly from this share of the maximum up.

    Raises:
        UsageError: a number is out of range.
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    least_share: float = 1.0

    def __post_init__(self) -> None:
        for option, value, least in (
            ("--concurrency", self.concurrency, 1), ("--input-tokens", self.input_tokens, 1),
            ("--output-tokens", self.output_tokens, 2),
        ):  # fmt: skip
            if value < least:
                raise UsageError(f"{option} {value}, expected at least {least}")
            if value > _MOST_SIZE:
                raise UsageError(f"{option} is more than {_MOST_SIZE}")


@dataclass(frozen=True)
class Rules:
    """Scheduling rules of a server.

    Attributes:
        step_tokens: maximum tokens per step.
        is_mixed: whether prompts share steps with sequences that generate tokens; otherwise they
            have separate steps, which come first.
        sequences: maximum number of running sequences; other requests wait for their answers.
        cache_tokens: capacity of the cache in tokens.
        poll_steps: steps without prompts after which a server checks for new requests (SGLang's
            `--scheduler-recv-interval`).
        wait_steps: maximum steps that new prompts wait while sequences run, so that more of them
            share a step (TensorRT-LLM's `batch_wait_timeout_iters`).
        wait_share: share of `step_tokens` that ends the wait.
        memory_share: share of the device's memory that the server uses, as its backend counts it
            (`LoadedServer.free_bytes`); None = the default.
    """

    step_tokens: int = 8192
    is_mixed: bool = True
    sequences: int = 1_000_000
    cache_tokens: float = float("inf")
    poll_steps: int = 1
    wait_steps: int = 0
    wait_share: float = 0.0
    memory_share: float | None = None


@dataclass(frozen=True)
class Served:
    """Result of a simulated load.

    Attributes:
        ttft_s: seconds to the first token after `queued_s`, mean of all requests.
        tpot_s: seconds per token after the first, mean of all requests.
        tokens_per_s: output tokens per second of all requests.
        waited: share of requests that waited for room in the cache.
        queued_s: seconds that a request waits for answers to others, because sequences are limited.
    """

    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    waited: float
    queued_s: float = 0.0


@dataclass
class _Request:
    arrival_s: float
    ready_s: float
    prompt: int
    output: int
    read: int = 0
    first_s: float = 0.0
    has_waited: bool = False


class _Server:
    """A server: waiting requests, prompts in processing, and running sequences."""

    def __init__(self, load: Load, rules: Rules, seconds: StepSeconds, request_s: float) -> None:
        self._rules, self._seconds, self._request_s = rules, seconds, request_s
        rng = np.random.default_rng(0)
        count = _requests(load)
        share = rng.uniform(load.least_share, 1.0, size=(count, 2))
        sizes = share * [load.input_tokens, load.output_tokens]
        self._sizes = iter(np.maximum(np.round(sizes), [1, 2]).astype(int).tolist())
        self.now_s = 0.0
        self._step = 0
        self._waiting: deque[_Request] = deque()
        self._reading: deque[_Request] = deque()
        #: (last step, order, request)
        self._running: list[tuple[int, int, _Request]] = []
        self._order = 0
        self._blocked_s = -1.0  # last time that a request found no room
        self._cached = 0.0  # tokens of running sequences
        self._reserved = 0.0  # final tokens of all admitted requests
        self._unpolled = 0  # steps since the last check for requests
        self._held = 0  # steps that new prompts have waited for others
        self.done: list[tuple[_Request, float]] = []
        for _ in range(load.concurrency):
            self._arrive()

    def _arrive(self) -> None:
        size = next(self._sizes, None)
        if size is not None:
            ready_s = self.now_s + self._request_s
            self._waiting.append(_Request(self.now_s, ready_s, size[0], size[1]))

    def run(self) -> None:
        """Runs until all requests are answered."""
        while self._waiting or self._reading or self._running:
            if not self._running or self._unpolled >= self._rules.poll_steps:
                self._unpolled = 0
                self._admit()
            if self._reading and not self._holds_back():
                self._read()
            elif self._running:
                self._decode()
            else:
                self.now_s = self._waiting[0].ready_s

    def _admit(self) -> None:
        """Admits requests that have arrived and have room, in order of arrival."""
        rules = self._rules
        while self._waiting and self._waiting[0].ready_s <= self.now_s:
            one = self._waiting[0]
            is_full = self._reserved + one.prompt + one.output > rules.cache_tokens
            if is_full and (self._running or self._reading):
                self._blocked_s = self.now_s
                return
            self._waiting.popleft()
            one.has_waited = one.ready_s <= self._blocked_s
            self._reserved += one.prompt + one.output
            self._reading.append(one)

    def _holds_back(self) -> bool:
        """Returns whether new prompts wait for others."""
        rules = self._rules
        if not self._running or self._reading[0].read or self._held >= rules.wait_steps:
            return False
        tokens = sum(one.prompt for one in self._reading) + len(self._running)
        return tokens < rules.wait_share * rules.step_tokens

    def _read(self) -> None:
        """Runs a step with parts of prompts, and with the running sequences if steps are mixed."""
        rules = self._rules
        self._held = 0
        sequences = len(self._running) if rules.is_mixed else 0
        room = max(1, rules.step_tokens - sequences)
        tokens, weighted, finished = 0, 0.0, []
        while self._reading and tokens < room:
            one = self._reading[0]
            part = min(room - tokens, one.prompt - one.read)
            weighted += part * one.read
            one.read += part
            tokens += part
            if one.read < one.prompt:
                break
            finished.append(self._reading.popleft())
        mean = self._cached / sequences if sequences else 0.0
        self.now_s += self._seconds(tokens, round(weighted / tokens), sequences, mean)
        self._unpolled = rules.poll_steps
        if sequences:
            self._advance(1)
        for one in finished:
            one.first_s = self.now_s
            self._order += 1
            heapq.heappush(self._running, (self._step + one.output - 1, self._order, one))
            self._cached += one.prompt + 1

    def _decode(self) -> None:
        """Runs steps until a sequence ends, a request arrives, or caches have grown."""
        count = len(self._running)
        steps = max(1, min(self._running[0][0] - self._step, _STRETCH))
        if self._rules.poll_steps > 1:
            steps = min(steps, self._rules.poll_steps - self._unpolled)
        if self._reading:
            steps = min(steps, self._rules.wait_steps - self._held)
        each_s = self._seconds(0, 0, count, self._cached / count + steps / 2)
        until_s = self._waiting[0].ready_s - self.now_s if self._waiting else 0.0
        if until_s > 0:
            steps = min(steps, math.ceil(until_s / each_s))
        self.now_s += steps * each_s
        self._unpolled += steps
        if self._reading:
            self._held += steps
        self._advance(steps)

    def _advance(self, steps: int) -> None:
        """Adds `steps` tokens to every running sequence; finished users send a new request."""
        self._step += steps
        self._cached += steps * len(self._running)
        while self._running and self._running[0][0] <= self._step:
            _, _, one = heapq.heappop(self._running)
            self._cached -= one.prompt + one.output
            self._reserved -= one.prompt + one.output
            self.done.append((one, self.now_s))
            self._arrive()


def _requests(load: Load) -> int:
    return max(2 * load.concurrency, min(_MOST, _ROUNDS * load.concurrency))


def serve(load: Load, rules: Rules, seconds: StepSeconds, request_s: float = 0.0) -> Served:
    """Simulates a load on a server.

    Args:
        seconds: time of a step.
        request_s: seconds from a request until the server may process its prompt.

    Raises:
        UsageError: the simulation would take too many steps.
    """
    users, running = load.concurrency, min(load.concurrency, rules.sequences)
    load = replace(load, concurrency=running)
    steps = _requests(load) * (load.input_tokens / rules.step_tokens + 1)
    steps += _requests(load) * load.output_tokens / running / _STRETCH
    if steps > _MOST_STEPS:
        raise UsageError(
            f"{users} users with {load.input_tokens} tokens in and {load.output_tokens} out take "
            f"about {steps:.2g} steps to simulate, at most {_MOST_STEPS:,} are possible; ask for "
            "shorter requests or fewer users, or allow more tokens in a step"
        )
    server = _Server(load, rules, seconds, request_s)
    server.run()
    requests = [one for one, _ in server.done]
    ends = np.array([end for _, end in server.done])
    first = np.array([one.first_s for one in requests])
    outputs = np.array([one.output for one in requests])
    arrived = np.array([one.arrival_s for one in requests])
    return Served(
        float(np.mean(first - arrived)),
        float(np.mean((ends - first) / (outputs - 1))),
        float(outputs.sum() / server.now_s),
        float(np.mean([one.has_waited for one in requests])),
        (users / running - 1) * float(np.mean(ends - arrived)),
    )
