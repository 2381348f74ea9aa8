"""What Celery calls: hands each message to this process's station, and never lets one come round for ever."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.exceptions import Reject

if TYPE_CHECKING:
    from celery import Celery

TASK = "spyre.compile"
_log = logging.getLogger(__name__)


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a message was sent back, with a traceback: why is said where that is decided."""
    return not (record.exc_info and isinstance(record.exc_info[1], Reject))


logging.getLogger("celery.app.trace").addFilter(_is_news)


def register(app: Celery) -> None:
    """Gives an application its task."""

    @app.task(name=TASK, bind=True, acks_late=True, ignore_result=True, shared=False)  # type: ignore[untyped-decorator,unused-ignore]
    def compile_fragment(self: Any, *words: Any, **more: Any) -> None:  # noqa: ARG001
        """One message; whatever it holds, it is acknowledged, unless it shall come again."""
        from spyre_workers.station import current

        message = words[0] if len(words) == 1 and not more else (words, more)
        if not current().handle(message):
            raise Reject("another worker shall have it", requeue=True)
