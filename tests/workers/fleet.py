"""Worker processes for tests, and a plain stand-in for a build's driver: it hands out what nobody has or does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil

from spyre_workers import states
from spyre_workers.celery_executor import CeleryExecutor
from spyre_workers.messages import Task
from spyre_workers.opening import open_claims

MAIN = Path(__file__).with_name("worker_main.py")


class Worker:
    """A worker process with its log; ended by `kill` at the latest when the block is left."""

    def __init__(self, directory, broker, cache, name, **words):
        self.name = name
        self.log = directory / f"{name}.log"
        words = {"broker": broker, "cache": str(cache), "name": name, "slots": 1, "health": "127.0.0.1:0"} | words
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(MAIN), json.dumps(words)], env=environment, stdout=log, stderr=log
            )

    def children(self):
        """Compilations of this worker: children of its compile server."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [
                child
                for server in psutil.Process(self.process.pid).children()
                for child in server.children()
                if child.status() != psutil.STATUS_ZOMBIE
            ]
        return []

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait(30)

    def said(self):
        return self.log.read_text(errors="replace")


class Fleet:
    """A broker, a cache, and what a build would do with them."""

    def __init__(self, directory, redis, cache):
        self.directory, self.redis, self.cache = directory, redis, cache
        self.claims = open_claims(redis.url, cache)
        self.executor = CeleryExecutor(redis.url)
        self.workers = []
        self.events = []

    def worker(self, name, **words):
        made = Worker(self.directory, self.redis.url, words.pop("cache", self.cache.path), name, **words)
        self.workers.append(made)
        return made

    def ready(self, *workers, seconds=120):
        def is_ready(worker):
            return worker.name in {w.name for w in self.registered()} and self.probe(worker, "/readyz")[0] == 200

        self.until(lambda: all(is_ready(worker) for worker in workers), seconds)

    def registered(self):
        return self.executor._registry.workers()

    def hand_out(self, actions, build="b1"):
        self.claims.begin(f"build-{build}", 3600)
        for action in actions:
            key = action.key()
            claim, alive = self.claims.read([key])[key]
            answer = states.queue(claim, alive, key=key, token=f"build-{build}", build=build, now=self.claims.now())
            if isinstance(answer, states.Move) and self.claims.swap(key, claim, answer.new):
                self.executor.dispatch([(Task(action=key, build=build), action)])

    def drive(self, actions, build="b1", seconds=120):
        """Until every action has a result, or has failed; what fell silent is handed out again each second."""
        deadline = time.monotonic() + seconds
        while True:
            self.hear(0.5)
            left = [a for a in actions if self.cache.actions.get(a.key()) is None and not self.failed(a)]
            if not left:
                return
            assert time.monotonic() < deadline, self.told()
            self.hand_out(left, build)

    def failed(self, action):
        return any(e.kind == "failed" and e.action == action.key() for e in self.events)

    def hear(self, seconds):
        self.events += self.executor.bus.read(seconds)

    def kinds(self, action, worker=None):
        return [e.kind for e in self.events if e.action == action.key() and worker in (None, e.worker)]

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.told()
            self.hear(0.1)

    def probe(self, worker, path):
        (address,) = [w.health for w in self.registered() if w.name == worker.name]
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def waiting(self):
        """Tasks in queues, and tasks taken but not acknowledged."""
        names = [n for n in self.redis.command("KEYS", "*:celery:spyre.*") if self.redis.command("TYPE", n) == b"list"]
        return sum(self.redis.command("LLEN", n) for n in names), self.redis.command("HLEN", "spyre:celery:unacked")

    def told(self):
        logs = "\n".join(f"--- {w.name}\n{w.said()[-4000:]}" for w in self.workers)
        return f"{[(e.kind, e.worker, e.action[:6], e.text) for e in self.events]}\n{logs}"

    def close(self):
        for worker in self.workers:
            worker.kill()
        self.executor.close()
        self.claims.close()
