"""Several processes in one cache; processes that are killed; disks that fill up."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from spyre_cache import BlobNotFoundError, Cache, CacheUnavailableError, Digest, ReferenceError_
from tests.cache.store_conformance import noise
from tests.cache.worlds import assert_complete, key_of, model, result

if TYPE_CHECKING:
    from pathlib import Path

    from spyre_cache.objects.action import ActionResult

FORK = multiprocessing.get_context("fork")
TEXT = b"compressible " * 20_000


def in_process(work, *args) -> int:
    """Exit code of a forked child that does the work: 0, 1 for an exception, negative for a signal."""
    process = FORK.Process(target=work, args=args)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def put_everything(path: Path, seed: int) -> None:
    with Cache.open(path) as cache:
        blobs = [TEXT, noise(5 << 20, 7), b"", *(noise(3000, n) for n in range(10))]
        for data in random.Random(seed).sample(blobs, len(blobs)):
            digest = cache.blobs.put(data, raw=seed % 2 == 0)
            assert cache.blobs.get(digest) == data
        cache.actions.put(result(cache, 1, b"same for all", builder=f"worker {seed}"))
        cache.actions.put(result(cache, 2, b"differs %d" % seed))
        cache.refs.tag("shared", f"v{seed}", model(cache, seed % 2))
        cache.builds.put("latest", b'{"seed":%d}' % seed)


def test_processes_writing_the_same_keys_agree(tmp_path):
    path = tmp_path / "cache"
    processes = [FORK.Process(target=put_everything, args=(path, seed)) for seed in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    with Cache.open(path) as cache:
        assert cache.verify() == []
        assert cache.blobs.get(Digest.of(TEXT)) == TEXT
        assert cache.actions.get(key_of(1)) is not None
        kept = cache.actions.get(key_of(2))
        events = cache.actions.events()
        assert {event.action for event in events} == {key_of(2)}
        assert len(events) == 5
        assert all(event.kept == kept for event in events)
        orders = [entry.order for entry in cache.refs.releases("shared")]
        assert sorted(orders) == [1, 2, 3, 4, 5, 6]
        assert cache.root.names(path / "tmp") == []


def write_for_ever(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with Cache.open(path) as cache:
        while True:
            number = rng.randrange(6)
            with cache.blobs.batch():
                for _ in range(3):
                    cache.blobs.put(noise(rng.choice((10, 5000, 200_000)), rng.randrange(50)))
                cache.blobs.put(TEXT + b"%d" % rng.randrange(20))
            manifest = model(cache, number)
            cache.refs.tag("m", f"{number}", manifest)
            cache.builds.put(f"b{number}", b"{}")
            if rng.random() < 0.2:
                cache.collect(grace=0)


def killed_at_random_moments(path: Path, times: int, seed: int) -> None:
    rng = random.Random(seed)
    for attempt in range(times):
        processes = [FORK.Process(target=write_for_ever, args=(path, 100 * attempt + n)) for n in range(2)]
        for process in processes:
            process.start()
        time.sleep(rng.uniform(0.02, 0.4))
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()
            assert process.exitcode == -signal.SIGKILL
        with Cache.open(path) as cache:
            assert [finding for finding in cache.verify() if finding.is_error] == []
            for entry in cache.refs.releases():
                assert_complete(cache, entry.manifest)
            assert cache.root.names(path / "tmp") == []
            digest = cache.blobs.put(b"attempt %d" % attempt)
            assert cache.blobs.get(digest) == b"attempt %d" % attempt


def test_writers_killed_at_random_moments_leave_the_cache_sound(tmp_path):
    killed_at_random_moments(tmp_path / "cache", 6, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_writers_killed_at_random_moments_leave_the_cache_sound_at_length(tmp_path):
    killed_at_random_moments(tmp_path / "cache", 60, seed=2)


# --- full disks ---


def fill(path: Path, puts: int = 400) -> None:
    """Puts until there is no room, whichever step that hits; then looks at what is there."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    stored: dict[Digest, bytes] = {}
    failures: list[str] = []
    with Cache.open(path) as cache:
        for number in range(puts):
            data = [noise(40_000, number), b"text %d " % number * 4000, noise(6 << 20, number)][number % 3]
            try:
                stored[cache.blobs.put(data)] = data
            except CacheUnavailableError as error:
                failures.append(str(error))
            try:
                cache.actions.put(result(cache, number))
                cache.builds.put(f"b{number}", b'{"n":"%s"}' % (b"x" * 2000))
                cache.refs.tag("m", str(number), model(cache, number % 5))
            except CacheUnavailableError as error:
                failures.append(str(error))
            if len(failures) > 30:
                break
        assert failures
        assert [message for message in failures if "free some space" not in message] == []
        assert stored
        assert cache.blobs.missing(stored) == set()
        for digest, data in stored.items():
            assert cache.blobs.get(digest) == data
        assert cache.root.names(path / "tmp") == []
        assert [finding for finding in cache.verify() if finding.is_error] == []


def limited(path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    fill(path, puts=24)


def test_file_size_limit_leaves_nothing_half_written(tmp_path):
    assert in_process(limited, tmp_path / "cache") == 0


def test_full_disk_leaves_nothing_half_written(tmp_path):
    """On a file system of 24 MB of its own, where privileges allow to mount one."""
    script = (
        "import sys; from pathlib import Path; from tests.cache.test_processes import fill\n"
        "print('mounted', flush=True); fill(Path(sys.argv[1]) / 'cache'); print('sound')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    mount = f'mount -t tmpfs -o size=24m none "{tmp_path}" && exec "$@"'
    try:
        run = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", script, str(tmp_path)],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no unshare on this system")
    if "mounted" not in run.stdout:
        pytest.skip(f"mounting needs privileges: {run.stderr.strip()[:100]}")
    assert run.stdout.endswith("sound\n"), run.stderr


def test_interrupt_in_the_middle_of_a_put_leaves_nothing(tmp_path, monkeypatch):
    with Cache.open(tmp_path / "cache") as cache:
        real = cache.root.fs.write
        calls = []

        def interrupted(fd, data):
            calls.append(len(data))
            if len(calls) == 2:
                raise KeyboardInterrupt
            real(fd, data)

        cache.blobs.put(b"first")
        calls.clear()
        monkeypatch.setattr(cache.root.fs, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.blobs.put(noise(20 << 20))
        monkeypatch.undo()
        assert cache.root.names(cache.path / "tmp") == []
        assert cache.verify() == []
        assert cache.blobs.get(cache.blobs.put(noise(20 << 20))) == noise(20 << 20)


# --- forks ---


def test_forked_child_hashes_large_blobs_without_its_parents_threads(tmp_path):
    data = noise(9 << 20)
    Digest.of(data)  # the parent's pool of hashing threads exists from here on

    def work() -> None:
        signal.alarm(60)
        with Cache.open(tmp_path / "cache") as cache:
            digest = cache.blobs.put(data, raw=True)
            cache.blobs.put_stream([data, data])
            assert cache.blobs.get(digest) == data

    assert in_process(work) == 0


# --- order ---


def test_result_seen_by_another_process_has_its_outputs(tmp_path):
    """While one process writes results, another that sees one can read all of it, at any moment."""
    path = tmp_path / "cache"
    Cache.open(path).close()

    def write() -> None:
        with Cache.open(path) as cache:
            for number in range(60):
                with cache.blobs.batch():
                    cache.actions.put(result(cache, number, noise(2000, number)))

    writer = FORK.Process(target=write)
    writer.start()
    seen: set[str] = set()
    with Cache.open(path, read_only=True) as cache:
        while writer.is_alive():
            for number in range(60):
                raw: ActionResult | None = cache.actions.peek(key_of(number))
                if raw is not None:
                    seen.add(raw.action)
                    for output in raw.outputs:
                        cache.blobs.get(output.digest)
    writer.join()
    assert writer.exitcode == 0
    assert seen


def test_errors_for_what_is_absent_are_those_of_the_cache(tmp_path):
    with Cache.open(tmp_path / "cache") as cache:
        with pytest.raises(BlobNotFoundError):
            cache.manifest(Digest.of(b"x"))
        with pytest.raises(ReferenceError_, match="it holds none"):
            cache.refs.resolve("nothing")
