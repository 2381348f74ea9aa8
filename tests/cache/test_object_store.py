"""The durable tier over a real S3 and over a directory: the store's promises, and what objects add to them."""

import os
import stat
import subprocess
import sys
import threading
import time

import pytest
from fronts import FaultyHttp
from services import BUCKET, READER_KEY, READER_SECRET

from spyre_cache import BlobNotFoundError, CacheUnavailableError, CorruptBlobError, Digest, ReadOnlyCacheError
from spyre_cache.stores.object import ObjectStore, blob_path, chunk_path, chunks_of, open_object
from spyre_cache.stores.object_holds import SWEEP, read_holds
from spyre_cache.stores.object_opening import open_objects
from tests.cache.store_conformance import MIB, SAMPLES, StoreConformance, noise

SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
LARGE = noise(6 * MIB + 123)


@pytest.fixture(params=["s3", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    return request.getfixturevalue("s3_url")


@pytest.fixture
def objects(url):
    objects = open_objects(url)
    yield objects
    objects.close()


@pytest.fixture
def store(objects):
    return ObjectStore(objects)


class TestObjectStore(StoreConformance):
    @pytest.fixture
    def store(self, store):
        return store


def chunks_in(store):
    return {meta.path for meta in store.objects.list("chunks")}


# --- large blobs ---


def test_large_blobs_share_their_equal_chunks(store):
    one = store.put(LARGE, raw=True)
    before = chunks_in(store)
    changed = LARGE[: 3 * MIB] + b"something else" + LARGE[3 * MIB :]
    two = store.put_stream(iter([changed]), raw=True)
    assert len(chunks_in(store) - before) <= 3
    assert store.get(one) == LARGE
    assert store.get(two) == changed
    assert len(before) > 4


def test_stream_and_whole_are_cut_alike(store):
    pieces = [LARGE[start : start + 70_001] for start in range(0, len(LARGE), 70_001)]
    store.put_stream(iter(pieces))
    before = chunks_in(store)
    store.delete(Digest.of(LARGE))
    store.put(LARGE)
    assert chunks_in(store) == before


def test_large_stream_in_and_out_takes_little_memory(tmp_path):
    program = """
import resource, sys
from spyre_cache.stores.object import open_object
blobs, _ = open_object(sys.argv[1])
import random
block = random.Random(1).randbytes(1 << 20)
digest = blobs.put_stream(bytes([n]) + block[1:] for n in range(4))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
digest = blobs.put_stream((bytes([n % 256, n // 256]) + block[2:] for n in range(160)), raw=True)
assert sum(map(len, blobs.blocks(digest))) == digest.size == 160 << 20
with blobs.open(digest) as reader:
    assert reader.read(3)[:2] == bytes([0, 0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    found = subprocess.run(
        [sys.executable, "-c", program, f"file://{tmp_path}/m"], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert int(found.stdout) < 100 * 1024  # KiB


@pytest.mark.parametrize("what", ["flipped", "missing", "truncated"])
def test_damaged_chunk_is_a_miss_and_healed_by_the_next_put(store, what):
    digest = store.put(LARGE)
    chunk = sorted(chunks_in(store))[3]
    data = store.objects.get(chunk).data
    if what == "missing":
        store.objects.delete([chunk])
    else:
        store.objects.put(chunk, data[:-1] if what == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
    for read in (store.get, store.open):
        with pytest.raises(BlobNotFoundError):
            read(digest)
    assert store.corrupt == 1
    assert store.missing([digest]) == {digest}
    assert store.put_stream(iter([LARGE])) == digest
    assert store.get(digest) == LARGE


# --- damage ---


def damage_of(data: bytes) -> list[bytes]:
    return [
        data[:-1],
        data[:-1] + bytes([data[-1] ^ 1]),
        b"?" + data[1:],
        b"",
        data + b"x",
        b"c{}",
        b'c{"schema":"chunks/1"}',
    ]


@pytest.mark.parametrize("name", ["text", "noise", "small"])
def test_damaged_object_is_removed_counted_and_healed(store, name):
    data = SAMPLES[name]
    digest = store.put(data)
    sound = store.objects.get(blob_path(digest)).data
    for number, damaged in enumerate(damage_of(sound)):
        store.objects.put(blob_path(digest), damaged)
        with pytest.raises(CorruptBlobError, match="has been removed there"):
            store.get(digest)
        assert store.corrupt == number + 1
        assert store.missing([digest]) == {digest}
        store.put(data)
        assert store.get(digest) == data


def test_put_heals_damage_of_the_same_length(store):
    for data in (SAMPLES["noise"], SAMPLES["text"], LARGE):
        digest = store.put(data)
        sound = store.objects.get(blob_path(digest)).data
        store.objects.put(blob_path(digest), sound[:-1] + bytes([sound[-1] ^ 1]))
        store.delete(digest) if len(data) > 2 * MIB else None  # the list is rewritten only when it is asked for
        store.put(data)
        assert store.get(digest) == data


def test_damaged_object_that_was_replaced_meanwhile_stays(store):
    digest = store.put(b"sound")
    store.objects.put(blob_path(digest), b"rbad")
    there = store.objects.head(blob_path(digest))
    store.objects.put(blob_path(digest), b"rsound")
    store._corrupt(digest, [there])
    assert store.get(digest) == b"sound"


def test_objects_of_others_are_no_blobs(store):
    for path in ("blobs/nonsense", "blobs/00/" + "0" * 64, f"blobs/00/{'0' * 64}-x", "blobs/00/" + "0" * 64 + "-1.tmp"):
        store.objects.put(path, b"r")
    assert list(store.iter()) == []


def test_chunk_list_of_another_blob_is_damage(store):
    one, two = store.put(LARGE), Digest.of(LARGE[1:])
    store.objects.put(blob_path(two), store.objects.get(blob_path(one)).data)
    with pytest.raises(CorruptBlobError):
        store.get(two)
    assert store.get(one) == LARGE


# --- presence ---


def test_many_are_found_by_listing_and_few_by_asking(store, monkeypatch):
    there = [store.put(b"%d" % n) for n in range(60)]
    absent = [Digest.of(b"absent %d" % n) for n in range(5000)]
    assert store.missing(there + absent) == set(absent)
    asked = []
    head = store.objects.head
    monkeypatch.setattr(store.objects, "head", lambda path: asked.append(path) or head(path))
    assert store.missing([*there[:20], absent[0]]) == {absent[0]}
    assert len(asked) == 21
    asked.clear()
    assert store.missing(absent) == set(absent)
    assert asked == []


def test_folder_too_long_to_list_is_asked_one_by_one(store, monkeypatch):
    monkeypatch.setattr("spyre_cache.stores.object._PAGE", 3)
    wanted = [n for n in range(3000) if Digest.of(b"%d" % n).hash.startswith("00")]
    there = [store.put(b"%d" % n) for n in wanted]
    absent = [digest for n in range(3000, 9000) if (digest := Digest.of(b"%d" % n)).hash.startswith("00")]
    assert len(there) > 8
    assert store.missing(there + absent) == set(absent)


# --- collection's counterpart ---


def test_old_blob_that_is_found_is_held(objects):
    store = ObjectStore(objects, refresh=0.0)
    digest = store.put(b"old")
    store.missing([digest])
    assert read_holds(objects) == {blob_path(digest)}


def test_young_blob_that_is_found_is_not_held(store):
    digest = store.put(b"young")
    store.missing([digest])
    store.put(b"young")
    assert read_holds(store.objects) == set()


@pytest.mark.parametrize("removed", [True, False])
def test_who_finds_what_is_being_swept_waits_and_looks_again(objects, removed):
    store = ObjectStore(objects, refresh=0.0)
    digest = store.put(b"old")
    objects.put(SWEEP, f"{blob_path(digest)}\n".encode())

    def end() -> None:
        time.sleep(0.5)
        if removed:
            objects.delete([blob_path(digest)])
        objects.delete([SWEEP])

    ending = threading.Thread(target=end)
    ending.start()
    began = time.monotonic()
    assert store.missing([digest]) == ({digest} if removed else set())
    assert time.monotonic() - began > 0.4
    ending.join()


def test_put_of_what_is_swept_meanwhile_is_put_again(objects):
    store = ObjectStore(objects, refresh=0.0)
    digest = store.put(b"old")
    objects.put(SWEEP, f"{blob_path(digest)}\n".encode())

    def end() -> None:
        time.sleep(0.5)
        objects.delete([blob_path(digest)])
        objects.delete([SWEEP])

    ending = threading.Thread(target=end)
    ending.start()
    assert store.put(b"old") == digest
    ending.join()
    assert store.get(digest) == b"old"


# --- what is no cache, and faults of the store ---


def test_format_of_another_version_is_refused(objects, url):
    objects.put("FORMAT", b"spyre-cache-objects 9\n")
    with pytest.raises(CacheUnavailableError, match="holds no cache that this version knows"):
        open_object(url)


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///x", "s3://key:secret@bucket/x", "s3://bucket/../x", "s3://bucket/x?region=y", "file://host/x",
     "file://", "http://bucket/x", "nonsense", "file:///proc/no/such"],
)  # fmt: skip
def test_malformed_url_is_refused_with_a_sentence(url):
    with pytest.raises(CacheUnavailableError) as caught:
        open_object(url)
    assert "secret" not in str(caught.value)


def test_wrong_credentials_and_missing_bucket_are_said_plainly(s3_url, monkeypatch):
    for name, value, said in (
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret-000", "refuses the credentials.*SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "nobody-at-all-00", "refuses the credentials.*InvalidAccessKeyId"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(CacheUnavailableError, match=said) as caught:
            open_object(s3_url)
        assert value not in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    with pytest.raises(CacheUnavailableError, match="no such bucket"):
        open_object("s3://there-is-none/x")


def test_credentials_that_only_read_do_read(s3_url, monkeypatch):
    writing, documents = open_object(s3_url)
    digest = writing.put(b"public")
    documents.create("pins", "a", b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    blobs, documents = open_object(s3_url)
    assert blobs.get(digest) == b"public"
    assert blobs.missing([digest]) == set()
    assert documents.get("pins", "a").data == b"x"
    with pytest.raises(ReadOnlyCacheError, match="does not permit writing"):
        blobs.put(b"mine")
    with pytest.raises(ReadOnlyCacheError):
        documents.create("pins", "b", b"x")
    open_object(f"s3://{BUCKET}/never-written")  # an empty cache to a reader


def test_directory_that_may_not_be_written_is_read_only(tmp_path):
    blobs, _ = open_object(f"file://{tmp_path}/d")
    digest = blobs.put(b"x")
    if os.access("/", os.W_OK):
        pytest.skip("root may write anywhere")
    for place in (tmp_path / "d").rglob("*"):
        place.chmod(stat.S_IRUSR | stat.S_IXUSR)
    blobs, _ = open_object(f"file://{tmp_path}/d")
    assert blobs.get(digest) == b"x"


@pytest.fixture
def faulty(s3_server, s3_url, monkeypatch):
    with FaultyHttp(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def times(count: int, fault):
    left = [count]

    def decide(_method, _path):
        left[0] -= 1
        return fault if left[0] >= 0 else None

    return decide


@pytest.mark.parametrize(
    "fault", [(503, SLOW_DOWN), (429, ""), (500, "<Error><Code>InternalError</Code></Error>"), "drop", 0.3, "lose"]
)
def test_passing_faults_are_survived(faulty, s3_url, fault):
    blobs, documents = open_object(s3_url)
    for use in (
        lambda: blobs.get(blobs.put(LARGE)) == LARGE,
        lambda: blobs.get(blobs.put(b"small")) == b"small",
        lambda: blobs.missing([Digest.of(b"small")]) == set(),
        lambda: documents.create("actions", "a", b"1"),
        lambda: documents.replace("actions", "a", b"2", expected=documents.get("actions", "a")),
        lambda: documents.get("actions", "a").data == b"2",
        lambda: list(documents.keys("actions")) == ["a"],
        lambda: documents.remove("actions", "a", expected=documents.get("actions", "a")),
    ):
        faulty.fault = times(1, fault)
        assert use()


def test_lasting_faults_are_said_plainly_and_pass(faulty, s3_url):
    blobs, _ = open_object(s3_url)
    for fault, said in (((503, SLOW_DOWN), "503.*SlowDown.*after 5 retries"), ("drop", "after 5 retries")):
        faulty.fault = lambda *_, fault=fault: fault
        with pytest.raises(CacheUnavailableError, match=said):
            blobs.put(b"x")
        faulty.fault = lambda *_: None
        assert blobs.get(blobs.put(b"x")) == b"x"


def test_server_that_is_gone_is_named_and_comes_back(tmp_path, monkeypatch):
    from services import Seaweed

    with Seaweed(tmp_path / "own") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        blobs, documents = open_object(server.url("x"))
        digest = blobs.put(b"kept")
        documents.create("pins", "a", b"x")
        server.stop()
        with pytest.raises(CacheUnavailableError, match=f"{server.url('x')} cannot be used.*after 5 retries"):
            blobs.get(digest)
        server.start()
        assert blobs.get(digest) == b"kept"
        assert documents.get("pins", "a").data == b"x"


def test_layout_is_what_the_module_says(tmp_path):
    blobs, _ = open_object(f"file://{tmp_path}/d")
    small, large = blobs.put(b"small"), blobs.put(LARGE)
    there = {str(p.relative_to(tmp_path / "d")) for p in (tmp_path / "d").rglob("*") if p.is_file()}
    stored = (tmp_path / "d" / blob_path(large)).read_bytes()
    chunks = {chunk_path(chunk) for chunk in chunks_of(stored, large)}
    assert there == {"FORMAT", "clock", blob_path(small), blob_path(large)} | chunks
    assert (tmp_path / "d" / blob_path(small)).read_bytes() == b"rsmall"
    assert stored[:1] == b"c"
