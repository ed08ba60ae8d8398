"""Counters for `/metrics`, in the text format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_PROGRAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Measures:
    """Counters of one server.

    Attributes:
        waiting: requests in progress.
        loads: number of model loads.
        lost_readers: reading processes that programs killed or hung.
        routes: paths that are counted separately.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "cdmpp_requests", "Requests answered", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "cdmpp_request_seconds", "Seconds from a request to its answer", ("route",),
            buckets=_SECONDS, registry=self._registry,
        )  # fmt: skip
        self._batches = Histogram(
            "cdmpp_batch_programs", "Programs predicted in one batch",
            buckets=_PROGRAMS, registry=self._registry,
        )  # fmt: skip
        self.waiting = self._gauge("cdmpp_waiting_requests", "Requests in progress")
        self.loads = self._gauge("cdmpp_model_loads", "How often models were loaded")
        self.lost_readers = self._gauge(
            "cdmpp_lost_readers", "Reading processes that programs killed or hung"
        )
        self.routes: frozenset[str] = frozenset()

    def request(self, path: str, status: int, seconds: float) -> None:
        """Counts a request; all paths that are not routes count as `other`."""
        route = path if path in self.routes else "other"
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, programs: int) -> None:
        """Counts a batch with this number of programs."""
        self._batches.observe(programs)

    def text(self) -> bytes:
        """Returns all counters."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(name, what, registry=self._registry)
