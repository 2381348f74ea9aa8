"""The health endpoint: who may ask what, and how long."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from spyre_workers import health as module
from spyre_workers.errors import WorkerError
from spyre_workers.health import Health
from spyre_workers.metrics import Metrics


@pytest.fixture
def served():
    with Health("127.0.0.1:0", Metrics(), alive=str, ready=lambda: "it rests") as made:
        yield made


def ask(health, method, path, host="127.0.0.1"):
    connection = http.client.HTTPConnection(host, int(health.address.rpartition(":")[2]), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), int(answer.headers["Content-Length"])
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "status", "body"),
    [
        ("GET", "/healthz", 200, "ok\n"),
        ("GET", "/healthz?verbose=1", 200, "ok\n"),
        ("GET", "/readyz", 503, "it rests\n"),
        ("HEAD", "/healthz", 200, ""),
        ("HEAD", "/readyz", 503, ""),
        ("HEAD", "/x", 404, ""),
        ("POST", "/healthz", 501, None),
        ("GET", "/healthz/x", 404, None),
    ],
)
def test_request_is_answered(served, method, path, status, body):
    got, text, length = ask(served, method, path)
    assert got == status
    assert body is None or text == body
    assert length > 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_metrics_with_a_query_are_metrics(served, method):
    status, text, length = ask(served, method, "/metrics?x=1")
    assert status == 200
    assert length > 100
    assert ("spyre_worker_slots" in text) is (method == "GET")


def test_ipv6_address_in_brackets_is_served():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Health("[::1]:0", Metrics(), alive=str, ready=str) as made:
        assert made.address.startswith("[::1]:")
        assert ask(made, "GET", "/readyz", "::1")[0] == 200


@pytest.mark.parametrize(
    "address", ["::1:0", "[::1:0", "localhost", ":x", ":65536", ":99999999999999999999", "[nope]:0", "a..b:0"]
)
def test_address_that_is_none_is_refused(address):
    with pytest.raises(WorkerError, match="health endpoint"):
        Health(address, Metrics(), alive=str, ready=str)


def test_client_that_dribbles_is_hung_up_on_and_threads_are_bounded(served, monkeypatch):
    monkeypatch.setattr(module, "REQUEST_SECONDS", 1.0)
    port = int(served.address.rpartition(":")[2])
    before = threading.active_count()
    clients = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(60)]
    for client in clients:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    time.sleep(0.3)
    assert threading.active_count() - before <= 2 * module.MAX_REQUESTS  # each with its timer
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.2)
        for client in clients:
            try:
                client.send(b"a")
            except OSError:
                continue
    assert threading.active_count() == before
    assert ask(served, "GET", "/healthz")[0] == 200
    for client in clients:
        client.close()
