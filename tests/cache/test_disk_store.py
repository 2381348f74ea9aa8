"""The disk store: the conformance suite, and what only files can suffer."""

from __future__ import annotations

import os
import struct
import time

import pytest

from spyre_cache import (
    BlobNotFoundError,
    Cache,
    CacheUnavailableError,
    CorruptBlobError,
    Digest,
    ReadOnlyCacheError,
)
from spyre_cache.stores.envelope import EnvelopeReader
from spyre_cache.stores.memo import Verdicts
from tests.cache.store_conformance import MIB, SAMPLES, LocalStoreConformance, noise

TEXT = SAMPLES["text_of_many_frames"]


class TestDiskStore(LocalStoreConformance):
    @pytest.fixture
    def store(self, tmp_path):
        with Cache.open(tmp_path / "cache") as cache:
            yield cache.blobs


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as cache:
        yield cache


def file_of(cache: Cache, digest: Digest):
    base = cache.path / "blobs" / digest.hash[:2]
    (found,) = [path for path in base.iterdir() if path.name.startswith(digest.hash)]
    return found


def overwrite(path, data: bytes) -> None:
    path.chmod(0o644)
    # Past the granularity of file times, as any real damage is.
    time.sleep(0.02)
    path.write_bytes(data)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x40
    return bytes(changed)


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda _: b"",
    "flipped_at_start": lambda data: flipped(data, 0),
    "flipped_in_the_middle": lambda data: flipped(data, len(data) // 2),
    "flipped_at_end": lambda data: flipped(data, len(data) - 1),
    "grown": lambda data: data + b"\0",
    "foreign": lambda _: b"#!/bin/sh\necho something else entirely\n",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("data", [TEXT, noise(3 * MIB), b"small"], ids=["packed", "raw", "small"])
@pytest.mark.parametrize("reader", ["get", "open", "map", "path"])
def test_damaged_blob_is_reported_set_aside_and_healed_by_put(cache, damage, data, reader):
    digest = cache.blobs.put(data)
    path = file_of(cache, digest)
    overwrite(path, DAMAGE[damage](path.read_bytes()))
    with pytest.raises(CorruptBlobError, match="damaged on disk"):
        getattr(cache.blobs, reader)(digest)
    assert cache.blobs.missing([digest]) == {digest}
    assert cache.stats().quarantined == 1
    assert cache.root.corrupt == 1
    with pytest.raises(BlobNotFoundError):
        cache.blobs.get(digest)
    assert cache.blobs.put(data) == digest
    assert cache.blobs.get(digest) == data
    assert cache.verify() == []


@pytest.mark.parametrize("data", [TEXT, noise(5 * MIB), b"small"], ids=["packed", "raw", "small"])
def test_put_over_a_damaged_copy_heals_it(cache, data):
    digest = cache.blobs.put(data)
    path = file_of(cache, digest)
    overwrite(path, flipped(path.read_bytes(), 3))
    assert cache.blobs.put(data) == digest
    assert cache.blobs.get(digest) == data
    assert cache.verify() == []


def test_blob_that_does_not_shrink_lies_as_its_plain_bytes(cache):
    data = noise(300_000)
    assert file_of(cache, cache.blobs.put(data)).read_bytes() == data


def test_blob_that_shrinks_is_compressed_unless_raw_is_asked(cache):
    text = SAMPLES["text"]
    packed = file_of(cache, cache.blobs.put(text))
    assert packed.suffix == ".z"
    assert packed.stat().st_size < len(text) // 10
    other = text + b"!"
    assert file_of(cache, cache.blobs.put(other, raw=True)).read_bytes() == other


def test_put_of_what_is_there_writes_nothing(cache):
    digest = cache.blobs.put(noise(5 * MIB))
    inode = file_of(cache, digest).stat().st_ino
    cache.blobs.put(noise(5 * MIB))
    assert file_of(cache, digest).stat().st_ino == inode
    assert cache.root.names(cache.path / "tmp") == []


# --- verdicts ---


def test_verdict_saves_hashing_until_the_file_changes(cache, monkeypatch):
    import spyre_cache.stores.disk as disk

    data = noise(2 * MIB)
    digest = cache.blobs.put(data, raw=True)
    hashed = []
    real = disk.hash_file
    monkeypatch.setattr(disk, "hash_file", lambda *a: hashed.append(a) or real(*a))
    cache.blobs.map(digest)
    assert hashed == []
    os.utime(file_of(cache, digest))
    cache.blobs.map(digest)
    cache.blobs.map(digest)
    assert len(hashed) == 1


@pytest.mark.parametrize("content", [b"", b"sound/1 1 2 3 4 5\n", b"\xff" * 100])
def test_verdict_that_does_not_fit_is_none(cache, content):
    digest = cache.blobs.put(noise(2 * MIB), raw=True)
    path = file_of(cache, digest)
    verdicts = Verdicts(cache.root)
    assert verdicts.is_sound(path, path.stat())
    verdicts.path(path).write_bytes(content)
    assert not verdicts.is_sound(path, path.stat())
    assert bytes(cache.blobs.map(digest)) == noise(2 * MIB)
    assert verdicts.is_sound(path, path.stat())


def test_verdict_of_one_file_does_not_vouch_for_another(cache):
    digest = cache.blobs.put(noise(2 * MIB), raw=True)
    path = file_of(cache, digest)
    other = noise(2 * MIB, 9)
    path.unlink()
    path.write_bytes(other)
    with pytest.raises(CorruptBlobError):
        cache.blobs.map(digest)


# --- envelopes with lies in them ---


def lie(cache, change):
    digest = cache.blobs.put(TEXT)
    path = file_of(cache, digest)
    data = bytearray(path.read_bytes())
    change(data)
    overwrite(path, bytes(data))
    return digest


def put_u64(data, at, value):
    data[at : at + 8] = struct.pack("<Q", value)


LIES = {
    "more_plain_bytes": lambda d: put_u64(d, len(d) - 16, len(TEXT) + 1),
    "petabytes": lambda d: put_u64(d, len(d) - 16, 1 << 60),
    "many_frames": lambda d: d.__setitem__(slice(len(d) - 8, len(d) - 4), struct.pack("<I", 0xFFFFFFFF)),
    "huge_frame": lambda d: d.__setitem__(slice(len(d) - 20, len(d) - 16), struct.pack("<I", 0xFFFFFF00)),
    "other_version": lambda d: d.__setitem__(8, 9),
    "other_codec": lambda d: d.__setitem__(10, 9),
    "frame_size": lambda d: d.__setitem__(slice(12, 16), struct.pack("<I", 1 << 31)),
}


@pytest.mark.parametrize("name", LIES)
def test_envelope_that_lies_about_its_sizes_is_damage(cache, name):
    digest = lie(cache, LIES[name])
    with pytest.raises(CorruptBlobError):
        cache.blobs.get(digest)


def test_frame_that_claims_a_terabyte_is_refused_before_it_is_unpacked(cache):
    import zstandard

    # A frame header alone: single segment, eight-byte content size of one tebibyte, then an empty last block.
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"
    assert zstandard.frame_content_size(frame) == 1 << 40
    envelope = (
        struct.pack("<8sHHI", b"SPYREBLB", 1, 1, 1 << 20)
        + frame
        + struct.pack("<I", len(frame))
        + struct.pack("<QI4s", 10, 1, b"BLBE")
    )
    digest = Digest("ab" * 32, 10)
    target = cache.path / "blobs" / "ab" / (digest.hash + ".z")
    target.parent.mkdir(parents=True)
    target.write_bytes(envelope)
    with pytest.raises(CorruptBlobError):
        cache.blobs.get(digest)


def test_envelope_reader_seeks_by_frame(cache):
    digest = cache.blobs.put(TEXT)
    with EnvelopeReader(os.open(file_of(cache, digest), os.O_RDONLY)) as reader:
        assert reader.seek(-4, os.SEEK_END) == len(TEXT) - 4
        assert reader.read(10) == b"tail"
        with pytest.raises(ValueError, match="not negative"):
            reader.seek(-1)


# --- directories that are not ours, not writable, or not there ---


def test_foreign_directory_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(CacheUnavailableError, match=r"not a cache.*thesis\.tex.*choose an empty"):
        Cache.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_newer_format_is_refused_with_a_sentence(cache):
    (cache.path / "FORMAT").write_bytes(b"spyre-build cache, format 2\n")
    with pytest.raises(CacheUnavailableError, match="format 2, this version knows format 1"):
        Cache.open(cache.path)


def test_marker_of_something_else_is_refused(tmp_path):
    (tmp_path / "FORMAT").write_bytes(b"another program's file")
    with pytest.raises(CacheUnavailableError, match="not the mark of a cache"):
        Cache.open(tmp_path)


@pytest.mark.parametrize("url", ["http://host/x", "/a,/b", "s3:bucket", "redis://h/0,/a", "/a,,file:///b", ""])
def test_url_of_no_cache_is_refused(url):
    with pytest.raises(CacheUnavailableError, match=r"director|a tier is"):
        Cache.open(url)


def test_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(CacheUnavailableError):
        Cache.open(tmp_path / "file")
    with pytest.raises(CacheUnavailableError):
        Cache.open(tmp_path / "file" / "below")


def test_read_only_cache_reads_and_refuses_writes(cache):
    data = {name: cache.blobs.put(sample) for name, sample in SAMPLES.items()}
    before = sorted(p for p in cache.path.rglob("*"))
    reader = Cache.open(cache.path, read_only=True)
    assert reader.blobs.missing(data.values()) == set()
    for name, digest in data.items():
        assert reader.blobs.get(digest) == SAMPLES[name]
        assert bytes(reader.blobs.map(digest)) == SAMPLES[name]
    for write in (
        lambda: reader.blobs.put(b"new"),
        lambda: reader.blobs.put_stream([b"new"]),
        lambda: reader.blobs.delete(data["small"]),
        lambda: reader.builds.put("b", b"{}"),
        lambda: reader.pins.add(data["small"]),
        lambda: reader.blobs.path(data["text"]),
        lambda: reader.collect(grace=0),
        lambda: reader.verify(repair=True),
        lambda: reader.lease("x"),
    ):
        with pytest.raises(ReadOnlyCacheError):
            write()
    assert reader.verify() == []
    assert sorted(p for p in cache.path.rglob("*")) == before


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000])
@pytest.mark.parametrize("read_only", [True, False])
def test_path_that_is_too_long_is_refused(tmp_path, name, read_only):
    with pytest.raises(CacheUnavailableError, match="File name too long"):
        Cache.open(tmp_path / name, read_only=read_only)


def test_read_only_cache_that_is_absent_is_not_made(tmp_path):
    with pytest.raises(CacheUnavailableError, match="no cache in"):
        Cache.open(tmp_path / "none", read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_root_that_the_system_mounts_read_only_still_reads(cache, tmp_path):
    """The caller did not say read-only; the file system does."""
    import subprocess

    digest = cache.blobs.put(b"here")
    cache.close()
    script = (
        "import sys; from spyre_cache import *\n"
        "cache = Cache.open(sys.argv[1]); here = Digest.of(b'here')\n"
        "print(cache.blobs.missing([here]), cache.blobs.get(here), cache.actions.get('0' * 64))\n"
        "try: cache.blobs.put(b'new')\n"
        "except ReadOnlyCacheError as error: print('refused:', error)\n"
    )
    import sys

    mount = f'mount --bind -o ro "{cache.path}" "{cache.path}" 2>/dev/null && exec "$@"'
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", script, str(cache.path)],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    if not run.stdout and "Traceback" not in run.stderr:
        pytest.skip("mounting needs privileges")
    assert run.stdout.startswith("set() b'here' None\nrefused: "), run.stderr
    assert cache.blobs.get(digest) == b"here"


def test_temporary_files_of_the_dead_go_and_of_the_living_stay(cache):
    fd, mine = cache.root.temporary()
    dead = cache.path / "tmp" / "session-1-dead~1.0"
    dead.write_bytes(b"half")
    with Cache.open(cache.path):
        assert not dead.exists()
        assert mine.exists()
    os.close(fd)
    mine.unlink()
