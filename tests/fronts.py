"""What stands between a client and a real server in tests: faults of HTTP, and TLS."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

Fault = Callable[[str, str], "tuple[int, str] | float | str | None"]


class FaultyHttp:
    """Passes HTTP on to a real server, except what `fault(method, path)` decides otherwise.

    A fault is `(status, body)` to answer with, seconds to wait before passing on, `"drop"` to close the connection
    without a word, `"lose"` to pass on and then close without the answer, or None.
    """

    def __init__(self, upstream_port: int, fault: Fault = lambda _method, _path: None) -> None:
        self.fault = fault
        self.seen = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                outer.seen += 1
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = outer.fault(self.command, self.path)
                if isinstance(fault, tuple):
                    self._answer(fault[0], [("Content-Type", "application/xml")], fault[1].encode())
                    return
                if fault == "drop":
                    self.close_connection = True
                    return
                time.sleep(fault if isinstance(fault, (int, float)) else 0)
                upstream = http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=60)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    content = answer.read()
                    if fault == "lose":
                        self.close_connection = True
                    else:
                        self._answer(answer.status, answer.getheaders(), content)
                finally:
                    upstream.close()

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                length = len(body)
                for name, value in headers:
                    if name.lower() == "content-length":
                        length = int(value)  # of a HEAD, whose body does not come
                    elif name.lower() not in {"connection", "transfer-encoding", "keep-alive"}:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that gave up

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class TlsFront:
    """TLS before a server that has none: `rediss://` and `https://` with a certificate of its own making."""

    def __init__(self, directory: Path, upstream_port: int) -> None:
        self.certificate = directory / "cert.pem"
        self._key = directory / "key.pem"
        self._upstream = upstream_port

    def __enter__(self) -> Self:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
             "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
             "-keyout", self._key, "-out", self.certificate],
            check=True, capture_output=True,
        )  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(context,), daemon=True).start()
        return self

    def _accept(self, context: ssl.SSLContext) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(context, plain), daemon=True).start()

    def _serve(self, context: ssl.SSLContext, plain: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            plain,
            context.wrap_socket(plain, server_side=True) as outside,
            socket.create_connection(("127.0.0.1", self._upstream)) as inside,
        ):
            while True:
                ready = [outside] if outside.pending() else select.select([outside, inside], [], [])[0]
                for source in ready:
                    data = source.recv(65536)
                    if not data:
                        return
                    (inside if source is outside else outside).sendall(data)

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
