"""A Celery application with our settings and a task that only counts."""

from __future__ import annotations

import os

import redis

from spyre_workers.app import make_app

app = make_app(os.environ["SPYRE_BUILD_BROKER"])
_client = redis.Redis.from_url(os.environ["SPYRE_BUILD_BROKER"])


@app.task(name="bench.empty", acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
def empty() -> None:
    """Counts itself."""
    _client.incr("empty")
