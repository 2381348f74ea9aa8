"""A worker's health over HTTP: `/healthz` (it is not stuck), `/readyz` (it takes work), `/metrics` (Prometheus)."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from spyre_workers.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spyre_workers.metrics import Metrics

REQUEST_SECONDS = 5.0
MAX_REQUESTS = 16


def parse_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT` (this machine only); port 0 takes a free one.

    Raises:
        WorkerError: neither.
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise WorkerError(f"a health endpoint is HOST:PORT, not {text[:80]!r}")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if set(host) & set("[]:"):
        raise WorkerError(f"a health endpoint is HOST:PORT, an IPv6 address in brackets, not {text[:80]!r}")
    return host or "127.0.0.1", int(port)


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
        host, port = parse_address(address)
        try:
            family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            self._server = _Server(family, where, _handler(metrics, {"/healthz": alive, "/readyz": ready}))
        except (OSError, UnicodeError) as error:  # a label of a name that is empty or too long is the latter
            reason = getattr(error, "strerror", None) or error
            raise WorkerError(f"the health endpoint {address[:80]} cannot be opened: {reason}") from None
        name, number = self._server.server_name, self._server.server_port
        self.address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.2,), name="spyre-health", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """At most `MAX_REQUESTS` at a time, each for `REQUEST_SECONDS` in all, however slowly it comes."""

    daemon_threads = True

    def __init__(self, family: int, where: Any, handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AddressFamily(family)
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(where, handler)

    def server_bind(self) -> None:
        # Not the base class's: it asks for the name of its own address, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # The time-out of a socket begins anew with each byte; this one does not.
        limit = threading.Timer(REQUEST_SECONDS, _hang_up, [request])
        limit.daemon = True
        try:
            limit.start()
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._slots.release()

    def handle_error(self, *_: object) -> None:
        pass  # a prober that hung up


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _handler(metrics: Metrics, probes: dict[str, Callable[[], str]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics":
                self._answer(200, metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
            elif path in probes:
                why = probes[path]()
                self._answer(503 if why else 200, (why or "ok").encode() + b"\n", "text/plain; charset=utf-8")
            else:
                self._answer(404, b"/healthz, /readyz, /metrics\n", "text/plain; charset=utf-8")

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
            pass

    return Handler
