"""The Celery application: settings, and the one task there is.

`spyre-build worker` runs it with everything around it; `celery -A spyre_workers.app worker -P threads -Q <queue>` works
too, with `SPYRE_BUILD_BROKER` and `SPYRE_BUILD_CACHE` in the environment.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from celery import Celery

from spyre_cache.stores.redis_client import redis_address
from spyre_workers.queues import PRIORITIES, VISIBILITY_SECONDS

if TYPE_CHECKING:
    from spyre_cache.stores.redis_client import RedisAddress

BROKER_VARIABLE = "SPYRE_BUILD_BROKER"
CACHE_VARIABLE = "SPYRE_BUILD_CACHE"
DEFAULT_BROKER = "redis://localhost:6379/0"
TASK = "spyre.compile"
MAX_MESSAGE_BYTES = 16 << 10
_SOCKET_SECONDS = 10.0
_CONNECT_SECONDS = 3.0
_PUBLISH_RETRIES = {"max_retries": 3, "interval_start": 0.1, "interval_step": 0.3, "interval_max": 1.0}


def make_app(broker: str) -> Celery:
    """An application for a broker; connects to nothing yet.

    Args:
        broker: `redis://…` or `rediss://…`, with the options of `spyre_cache.stores.redis_client`.

    Raises:
        CacheUnavailableError: no such URL.
    """
    address = redis_address(broker)
    app = Celery("spyre_workers", set_as_current=False)
    app.conf.update(_settings(address))
    from spyre_workers.tasks import register

    register(app)
    return app


def key_prefix(address: RedisAddress) -> str:
    """What the broker's own keys (queues, unacknowledged tasks) begin with."""
    return f"{address.prefix}:celery:"


def _settings(address: RedisAddress) -> dict[str, Any]:
    visibility = {"visibility_timeout": VISIBILITY_SECONDS}
    parts = urlsplit(address.url)
    settings: dict[str, Any] = {
        "broker_url": urlunsplit(parts._replace(query="")),
        "broker_transport": "spyre_workers.transport:Transport",
        "broker_transport_options": {
            **visibility,
            "global_keyprefix": key_prefix(address),
            # Every second, at every sweep: by default a lost task waits for a minute and a half after its time-out.
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "priority_steps": sorted(PRIORITIES.values()),
            "queue_order_strategy": "priority",
            "socket_timeout": _SOCKET_SECONDS,
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        # The same number thrice: Celery takes it from whichever it looks at.
        "result_backend_transport_options": dict(visibility),
        "visibility_timeout": VISIBILITY_SECONDS,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        # Compilations go on when the broker is away: their claims lapse, and what they make is stored all the same.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "task_acks_late": True,
        "task_acks_on_failure_or_timeout": True,
        "task_reject_on_worker_lost": True,
        "worker_prefetch_multiplier": 1,
        "worker_pool": "threads",
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "result_backend": None,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_default_priority": PRIORITIES["interactive"],
        "task_publish_retry": True,
        "task_publish_retry_policy": _PUBLISH_RETRIES,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "enable_utc": True,
    }
    if parts.scheme == "rediss":
        settings["broker_use_ssl"] = _tls(dict(parse_qsl(parts.query)))
    return settings


def _tls(options: dict[str, str]) -> dict[str, Any]:
    import ssl

    requirements = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    found: dict[str, Any] = {name: value for name, value in options.items() if name.startswith("ssl_")}
    found["ssl_cert_reqs"] = requirements.get(options.get("ssl_cert_reqs", "required"), ssl.CERT_REQUIRED)
    if "ssl_check_hostname" in found:
        found["ssl_check_hostname"] = found["ssl_check_hostname"].lower() in {"1", "true", "yes"}
    return found


app = make_app(os.environ.get(BROKER_VARIABLE) or DEFAULT_BROKER)
