"""A worker's health over HTTP: `/healthz` (it is not stuck), `/readyz` (it takes work), `/metrics` (Prometheus)."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

from spyre_workers.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_workers.metrics import Metrics

_REQUEST_SECONDS = 5.0


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` (this machine only); port 0 takes a free one.

    Raises:
        WorkerError: neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise WorkerError(f"a health endpoint is HOST:PORT, not {text[:80]!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


class Health:
    """Answers until it is left."""

    def __init__(self, address: str, metrics: Metrics, *, alive: Callable[[], str], ready: Callable[[], str]) -> None:
        """Binds the address.

        Args:
            address: as for `parse_address`.
            metrics: what `/metrics` shows.
            alive: why this worker is stuck, or an empty string.
            ready: why it takes no work, or an empty string.

        Raises:
            WorkerError: no address, or it is taken.
        """
        probes = {"/healthz": alive, "/readyz": ready}

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
                elif self.path in probes:
                    why = probes[self.path]()
                    self._answer(503 if why else 200, (why or "ok").encode() + b"\n", "text/plain; charset=utf-8")
                else:
                    self._answer(404, b"/healthz, /readyz, /metrics\n", "text/plain; charset=utf-8")

            def _answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a prober that hung up

        try:
            self._server = Quiet(parse_address(address), Handler)
        except OSError as error:
            raise WorkerError(f"the health endpoint {address} cannot be opened: {error.strerror or error}") from None
        host, port = self._server.server_address[:2]
        self.address = f"{host!s}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.2,), name="spyre-health", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
