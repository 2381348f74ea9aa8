"""Tiers together: copies, damage, what is shared with whom, and a URL's words."""

import os
import time
from pathlib import Path

import pytest

from spyre_cache import BlobNotFoundError, Cache, CacheUnavailableError, CorruptBlobError, Digest
from spyre_cache.actions import FAILURE_SECONDS, RESULT_TYPE
from spyre_cache.codec import encode
from spyre_cache.objects.action import Action, ActionResult, Failure
from spyre_cache.objects.release import Envelope
from spyre_cache.objects.target import TARGETS
from spyre_cache.stores.object_documents import document_path
from spyre_cache.stores.redis_client import connect
from spyre_cache.stores.urls import parse_tiers
from tests.cache.store_conformance import MIB, noise
from tests.cache.worlds import TOOLCHAIN, assert_complete, key_of, model, result

SMALL = noise(5000)
LARGE = noise(5 * MIB, 1)


@pytest.fixture
def shared(tmp_path):
    return tmp_path / "shared"


@pytest.fixture
def host(tmp_path, redis_url, shared):
    """Opens the cache of a host by name, over a Redis and a shared directory; `beyond` gives it other tiers."""
    opened = []

    def open_host(name, beyond=f"{redis_url},file://{shared}", **options):
        url = ",".join(part for part in (str(tmp_path / name), beyond) if part)
        opened.append(Cache.open(url, **options))
        return opened[-1]

    yield open_host
    for cache in opened:
        cache.close()


@pytest.fixture
def redis(redis_url):
    with connect(redis_url) as client:
        yield client


def redis_key(digest):
    return f"spyre:b:{digest.hash}:{digest.size}"


def files(directory: Path, digest: Digest) -> list[Path]:
    return list((directory / "blobs" / digest.hash[:2]).glob(digest.hash + "*"))


def spoil(path: Path) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def counts(cache, kind):
    (state,) = [tier for tier in cache.tier_states() if tier.kind == kind]
    return state


# --- copies ---


def test_what_one_host_puts_another_reads_and_keeps(host):
    one, two = host("one"), host("two")
    digests = [one.blobs.put(data) for data in (SMALL, LARGE)]
    assert two.blobs.missing(digests) == set()
    assert two.disk.missing(digests) == set(digests)
    assert [two.blobs.get(digest) for digest in digests] == [SMALL, LARGE]
    assert two.disk.missing(digests) == set()
    assert counts(two, "redis").hits == 1
    assert counts(two, "object").hits == 1  # too large for the Redis


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=len)
def test_file_and_memory_of_a_blob_elsewhere_are_of_a_raw_copy(host, data):
    digest = host("one").blobs.put(data)
    assert host("two").blobs.path(digest).read_bytes() == data
    assert bytes(host("three").blobs.map(digest)) == data
    assert files(host("three").path, digest)[0].suffix == ""


def test_blob_from_the_durable_tier_is_read_from_redis_next_time(host, redis):
    digest = host("one").blobs.put(SMALL)
    redis.flushdb()
    two = host("two")
    two.blobs.get(digest)
    assert (counts(two, "redis").hits, counts(two, "object").hits) == (0, 1)


def test_presence_is_not_remembered_of_what_may_forget(host, redis, shared):
    digest = host("one").blobs.put(SMALL)
    two = host("two")
    assert digest in two.blobs
    redis.flushdb()
    files(shared, digest)[0].unlink()
    assert digest not in two.blobs


def test_read_only_directory_reads_from_tiers_without_keeping(host, tmp_path):
    digests = [host("one").blobs.put(data) for data in (SMALL, LARGE)]
    host("two").close()
    two = host("two", read_only=True)
    assert [two.blobs.get(digest) for digest in digests] == [SMALL, LARGE]
    assert [bytes(two.blobs.map(digest)) for digest in digests] == [SMALL, LARGE]
    with two.blobs.open(digests[1]) as file:
        assert file.read() == LARGE
    with pytest.raises(CacheUnavailableError, match="may only be read"):
        two.blobs.path(digests[0])
    with pytest.raises(CacheUnavailableError, match="may only be read"):
        two.blobs.put(b"x")
    assert two.disk.missing(digests) == set(digests)


# --- damage ---


def test_damaged_copy_in_redis_is_replaced_from_the_next_tier(host, redis):
    digest = host("one").blobs.put(SMALL)
    redis.setrange(redis_key(digest), 100, b"rotten")
    two = host("two")
    assert two.blobs.get(digest) == SMALL
    assert counts(two, "redis").corrupt == 1
    assert b"rotten" not in redis.get(redis_key(digest))


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=len)
def test_damaged_copy_in_the_durable_tier_is_replaced_by_whoever_has_a_sound_one(host, redis, shared, data):
    one, two = host("one"), host("two")
    digest = one.blobs.put(data)
    places = [path for path in (shared / "blobs").rglob("*") if path.is_file()]
    places += [path for path in (shared / "chunks").rglob("*") if path.is_file()]
    spoil(max(places, key=lambda path: path.stat().st_size))
    redis.flushdb()
    with pytest.raises(CorruptBlobError):
        two.blobs.get(digest)
    assert counts(two, "object").corrupt == 1
    assert one.blobs.share([digest]) == set()
    assert two.blobs.get(digest) == data


def test_damaged_copy_on_disk_is_replaced_from_a_tier(host):
    one = host("one")
    digest = one.blobs.put(SMALL)
    spoil(files(one.path, digest)[0])
    assert one.blobs.get(digest) == SMALL
    assert one.disk.get(digest) == SMALL
    assert one.root.corrupt == 1


def test_blob_damaged_everywhere_is_corrupt_and_can_be_put_again(host, redis, shared):
    one = host("one")
    digest = one.blobs.put(SMALL)
    redis.setrange(redis_key(digest), 100, b"rotten")
    for place in (one.path, shared):
        spoil(files(place, digest)[0])
    with pytest.raises(CorruptBlobError):
        one.blobs.get(digest)
    with pytest.raises(BlobNotFoundError):
        one.blobs.path(digest)
    one.blobs.put(SMALL)
    assert host("two").blobs.get(digest) == SMALL


def test_put_of_what_is_on_disk_brings_back_what_a_tier_lost(host, shared):
    one = host("one")
    digests = [one.blobs.put(data) for data in (SMALL, LARGE)]
    for digest in digests:
        files(shared, digest)[0].unlink()
    for data in (SMALL, LARGE):
        one.blobs.put(data)
    assert [host("two").blobs.get(digest) for digest in digests] == [SMALL, LARGE]


# --- write-back ---


def test_write_back_has_sent_everything_once_a_flush_is_back(host, shared):
    one = host("one", write="back")
    digests = [one.blobs.put(noise(2000, number)) for number in range(50)]
    one.blobs.flush()
    assert all(files(shared, digest) for digest in digests)
    one.blobs.put(LARGE)
    one.close()
    assert files(shared, Digest.of(LARGE))


def test_batch_is_sent_at_its_end(host, shared):
    one = host("one")
    with one.blobs.batch():
        digest = one.blobs.put(SMALL)
        one.documents.create("statements", f"{'a' * 64}/{'b' * 64}", b"{}")
        assert not files(shared, digest)
    assert files(shared, digest)
    assert (shared / "statements" / ("a" * 64) / ("b" * 64)).is_file()


# --- results ---


def put_failure(cache, number, age):
    failure = Failure(kind="unsupported", message="no")
    stored = ActionResult(action=key_of(number), status="failed", failure=failure)
    cache.root.create(
        cache.path / "actions" / key_of(number)[:2] / key_of(number),
        encode(Envelope.wrap(encode(stored), RESULT_TYPE)),
        age=age,
    )
    return stored


def test_result_of_one_host_is_a_hit_on_another_and_copied_once_its_outputs_are(host):
    one, two = host("one"), host("two")
    stored = one.actions.put(result(one, 1))
    assert two.actions.get_many([key_of(1), key_of(2)]) == {key_of(1): stored}
    assert two.local.actions.peek(key_of(1)) is None  # it would point at nothing
    two.blobs.path(stored.outputs[0].digest)
    assert two.actions.get(key_of(1)) == stored
    assert two.local.actions.get(key_of(1)) == stored
    assert two.local.verify() == []


def test_first_result_of_any_host_counts(host):
    one, two = host("one"), host("two")
    stored = one.actions.put(result(one, 1))
    assert two.actions.put(result(two, 1, content=b"other code")) == stored
    assert [event.kept for event in one.actions.events()] == [stored]


def test_useless_copy_does_not_hide_what_others_found_since(host):
    two = host("two")
    put_failure(two.local, 1, age=2 * FAILURE_SECONDS)
    one = host("one")
    stored = one.actions.put(result(one, 1))
    assert two.actions.get(key_of(1)) == stored


def test_damaged_copy_of_a_description_does_not_hide_the_sound_one(host, redis):
    one, two = host("one"), host("two")
    action = Action(fragment=Digest.of(b"f"), target=TARGETS["cpu/x86-64-v3"], toolchain=TOOLCHAIN)
    one.actions.describe(action)
    spoil(one.path / "documents" / action.key()[:2] / action.key())
    assert one.actions.document(action.key()) == action
    redis.set(f"spyre:d:documents:{action.key()}", b"{}")
    assert two.actions.document(action.key()) == action


def test_failure_does_not_become_younger_by_copies(host, shared):
    one, two = host("one"), host("two")
    failed = ActionResult(
        action=key_of(1), status="failed", failure=Failure(kind="unsupported", message="no"), builder="one"
    )
    one.actions.put(failed)
    assert two.actions.get(key_of(1)) == failed
    old = time.time() - FAILURE_SECONDS - 60
    os.utime(shared / document_path("actions", key_of(1)), (old, old))
    for cache in (one, two, host("three")):
        assert cache.actions.get(key_of(1)) is None
    stored = two.actions.put(result(two, 1))
    assert [cache.actions.get(key_of(1)) for cache in (one, two)] == [stored, stored]


def test_result_that_only_one_disk_has_is_shared_when_asked(host):
    alone = host("one", beyond="")
    stored = alone.actions.put(result(alone, 1))
    alone.close()
    one, two = host("one"), host("two")
    assert one.actions.get(key_of(1)) == stored
    assert two.actions.get(key_of(1)) is None
    assert one.actions.share(key_of(1))
    assert two.actions.get(key_of(1)) == stored
    assert two.blobs.get(stored.outputs[0].digest).startswith(b"machine code")
    assert not two.actions.share(key_of(2))


def test_manifest_built_before_the_tiers_were_there_is_whole_for_others(host, redis):
    alone = host("one", beyond="")
    manifest = alone.manifest(model(alone, 1))
    alone.close()
    one = host("one")
    digest = one.put_manifest(manifest)
    redis.flushdb()
    two = host("two")
    assert two.refs.resolve(digest.hash[:12]) == digest
    for fragment in two.manifest(digest).fragments:
        two.blobs.get(fragment)
    for artifact in manifest.artifacts:
        assert two.actions.get(artifact.action) is not None
        assert two.actions.document(artifact.action) is not None


def test_everything_of_a_model_is_there_for_another_host(host, redis):
    one = host("one")
    digest = model(one, 1)
    one.refs.tag("model", "1", digest)
    for forget in (False, True):
        two = host(f"two-{forget}")
        if forget:
            redis.flushdb()
        assert two.refs.resolve("model:1") == digest
        assert_complete(two, digest)
        assert two.verify() == []
        assert two.collect(grace=0).manifests == 0


def test_copies_on_disk_are_sound_by_themselves_however_little_was_read(host):
    one = host("one")
    one.refs.tag("model", "1", model(one, 1))
    two = host("two")
    two.manifest(two.refs.resolve("model"))
    two.refs.resolve(two.refs.resolve("model").hash[:10])
    two.actions.described()
    assert two.verify() == []


# --- releases, pins and builds ---


def test_release_changed_on_one_host_changes_on_all(host):
    one, two = host("one"), host("two")
    first, second = model(one, 1), model(one, 2)
    one.refs.tag("model", "1", first)
    assert two.refs.resolve("model:1") == first
    one.refs.tag("model", "1", second, force=True)
    assert two.refs.resolve("model:1") == second
    assert one.refs.untag("model", "1")
    assert two.refs.releases() == []
    assert not two.refs.untag("model", "1")


def test_build_written_by_one_host_is_seen_and_continued_by_another(host):
    one, two = host("one"), host("two")
    one.builds.put("b1", b'{"n":1}')
    assert two.builds.get("b1") == b'{"n":1}'
    two.builds.put("b1", b'{"n":2}')
    assert one.builds.get("b1") == b'{"n":2}'
    assert two.builds.list() == one.builds.list() == ["b1"]


# --- words ---


def test_url_names_tiers_nearest_first():
    directory, remotes = parse_tiers("/a/b , valkeys://u:p@h:1/0?ttl=5, s3://bucket/x,file:///shared")
    assert directory == Path("/a/b")
    assert [(r.kind, r.shown) for r in remotes] == [
        ("redis", "rediss://h:1/0"),
        ("object", "s3://bucket/x"),
        ("object", "file:///shared"),
    ]
    assert remotes[0].url == "rediss://u:p@h:1/0?ttl=5"


def test_url_without_a_directory_has_the_default_one(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert parse_tiers("redis://h/0").directory == tmp_path / "spyre-build"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "an empty one came"),
        ("/a,", "an empty one came"),
        ("/a,/b", "file:///dir"),
        ("redis://h/0,/a", "comes first"),
        ("http://h/x", "a tier is"),
        ("/a,s3:bucket", "a tier is"),
        ("/a,redis://h/0,redis://h/0", "came twice"),
        (",".join(["/a", *(f"redis://h/{n}" for n in range(9))]), "at most 8"),
        ("/a,redis://h:x/0", "a Redis is given as"),
        ("/a,redis://h/0?nosuch=1", "unknown option"),
        ("/a,s3://me:secret@bucket/x", "an object store is given as"),
    ],
)
def test_url_of_no_cache_says_the_rule(tmp_path, url, words):
    with pytest.raises(CacheUnavailableError, match=words) as caught:
        Cache.open(url.replace("/a", str(tmp_path), 1))
    assert "secret" not in str(caught.value)


def test_plain_directory_needs_no_client_of_anything(tmp_path):
    import subprocess
    import sys

    program = (
        "import sys; from spyre_cache import Cache; c = Cache.open(sys.argv[1]); c.blobs.put(b'x'); c.close();"
        "print(sorted(m for m in sys.modules if m in {'redis', 'obstore', 'spyre_cache.sharing'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "c")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "[]\n"
