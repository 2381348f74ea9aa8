"""What a worker counts, in Prometheus's words; every label comes from a short fixed list."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640, 1800)


class Metrics:
    """Counters of one worker, in a registry of its own."""

    def __init__(self) -> None:
        """All at zero."""
        registry = self._registry = CollectorRegistry()
        self.tasks = Counter("spyre_worker_tasks", "Tasks by what came of them.", ["outcome"], registry=registry)
        self.set_aside = Counter(
            "spyre_worker_set_aside", "What was in the queues and was no message.", registry=registry
        )
        self.seconds = Histogram(
            "spyre_worker_compile_seconds",
            "Wall-clock time of runs, with claiming and publishing.",
            ["size"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.busy = Gauge("spyre_worker_busy_slots", "Compilations now.", registry=registry)
        self.slots = Gauge("spyre_worker_slots", "Compilations at once.", registry=registry)
        self.waiting = Gauge("spyre_worker_queue_length", "Tasks waiting in this worker's queues.", registry=registry)
        self.unavailable = Counter(
            "spyre_worker_unavailable", "Tasks put off because cache or claims were away.", registry=registry
        )
        self.store_failures = Counter(
            "spyre_worker_store_failures", "Times that a result could not be stored.", registry=registry
        )
        self.cannot_store = Gauge(
            "spyre_worker_cannot_store", "1 while results cannot be stored and no tasks are taken.", registry=registry
        )
        self.restarts = Gauge(
            "spyre_worker_watchdog_restarts",
            "Times it started anew because it had gone deaf.",
            registry=registry,
        )

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)
