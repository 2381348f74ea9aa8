"""Tiers that are away, slow, full or forbidden: things take longer, and nothing is wrong or lost."""

import time

import pytest
from fronts import FaultyHttp
from services import READER_KEY, READER_SECRET

from spyre_cache import BlobNotFoundError, Cache, CacheUnavailableError, Digest, ReadOnlyCacheError
from spyre_cache.stores.breaker import Breaker
from tests.cache.store_conformance import MIB, noise
from tests.cache.worlds import key_of, model, result

DEAD = "redis://127.0.0.1:1/0"


@pytest.fixture
def host(tmp_path):
    opened = []

    def open_host(name, beyond, **options):
        opened.append(Cache.open(f"{tmp_path / name},{beyond}", **options))
        return opened[-1]

    yield open_host
    for cache in opened:
        try:
            cache.close()
        except CacheUnavailableError:
            cache.root.close()


@pytest.fixture
def front(s3_server, s3_url, monkeypatch):
    """In front of the S3 server; `front.fault` says what goes wrong."""
    with FaultyHttp(s3_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def hurry(cache):
    """Tiers that are away are tried again after a tenth of a second."""
    for tier in cache.tiers:
        tier._breaker = Breaker(first=0.1, longest=0.1)


def state(cache, kind):
    (found,) = [tier for tier in cache.tier_states() if tier.kind == kind]
    return found


# --- the hot tier ---


def test_redis_that_dies_is_done_without_and_said_once(host, new_redis, tmp_path):
    server = new_redis()
    one = host("one", f"{server.url},file://{tmp_path}/shared")
    hurry(one)
    before = one.blobs.put(b"before")
    server.kill()
    stored = [one.blobs.put(noise(100, number)) for number in range(20)]
    kept = one.actions.put(result(one, 1))
    assert one.blobs.missing([before, *stored, Digest.of(b"nowhere")]) == {Digest.of(b"nowhere")}
    assert one.actions.get(key_of(1)) == kept
    with pytest.raises(BlobNotFoundError):
        one.blobs.get(Digest.of(b"nowhere"))
    (note,) = one.notes()
    assert note.startswith(f"redis://127.0.0.1:{server.port}/0 cannot be reached")
    assert state(one, "redis").outages == 1
    server.start()
    time.sleep(0.15)
    one.blobs.missing([Digest.of(b"nowhere")])
    assert one.notes() == [f"redis://127.0.0.1:{server.port}/0 answers again"]
    assert state(one, "redis").state == "up"


def test_redis_that_hangs_delays_by_seconds_and_once(host, new_redis, tmp_path):
    server = new_redis()
    one = host("one", f"{server.url},file://{tmp_path}/shared")
    server.pause()
    began = time.monotonic()
    digests = [one.blobs.put(noise(100, number)) for number in range(50)]
    took = time.monotonic() - began
    assert took < 10
    assert state(one, "redis").state in {"away", "trying"}
    server.resume()
    assert host("two", f"file://{tmp_path}/shared").blobs.missing(digests) == set()


def test_full_redis_refuses_and_nothing_else_happens(host, new_redis, tmp_path):
    server = new_redis(maxmemory="3mb", maxmemory_policy="noeviction")
    one = host("one", f"{server.url},file://{tmp_path}/shared")
    for number in range(60):
        one.blobs.put(noise(100_000, number))
    one.actions.put(result(one, 1))
    two = host("two", f"{server.url},file://{tmp_path}/shared")
    for number in range(60):
        assert two.blobs.get(Digest.of(noise(100_000, number))) == noise(100_000, number)
    assert two.actions.get(key_of(1)) is not None
    assert one.notes() == two.notes() == []


def test_redis_that_evicts_is_asked_and_the_next_tier_gives(host, new_redis, tmp_path):
    server = new_redis(maxmemory="3mb", maxmemory_policy="allkeys-lru")
    one = host("one", f"{server.url},file://{tmp_path}/shared")
    digests = [one.blobs.put(noise(100_000, number)) for number in range(60)]
    two = host("two", f"{server.url},file://{tmp_path}/shared")
    assert two.blobs.missing(digests) == set()
    assert [two.blobs.get(digest) for digest in digests] == [noise(100_000, number) for number in range(60)]


# --- the durable tier ---


def gone(_method, _path):
    return -1  # closes the connection without a word


def test_bucket_that_dies_loses_nothing_and_gets_everything_when_it_is_back(host, front, s3_url):
    one = host("one", s3_url)
    hurry(one)
    before = one.blobs.put(b"before")
    front.fault = gone
    with pytest.raises(CacheUnavailableError, match="s3://") as caught:
        one.blobs.put(b"during")
    assert "writing" in str(caught.value)
    with pytest.raises(CacheUnavailableError, match="s3://"), one.blobs.batch():
        digests = [one.blobs.put(noise(1000, number)) for number in range(10)]
    with pytest.raises(CacheUnavailableError, match="s3://"):
        one.actions.put(result(one, 1))
    with pytest.raises(CacheUnavailableError, match="s3://"):
        one.refs.tag("name", "1", before)
    # What is here needs nobody.
    assert one.blobs.get(Digest.of(b"during")) == b"during"
    assert one.blobs.missing([before, *digests]) == set()
    with pytest.raises(CacheUnavailableError, match="in no tier that answers"):
        one.blobs.get(Digest.of(b"elsewhere"))
    with pytest.raises(CacheUnavailableError):
        one.blobs.missing([Digest.of(b"elsewhere")])
    assert len(one.notes()) == 1
    front.fault = lambda *_: None
    time.sleep(0.15)
    one.blobs.flush()
    assert one.notes() == [f"{s3_url} answers again"]
    two = host("two", s3_url)
    assert two.blobs.get(Digest.of(b"during")) == b"during"
    assert two.blobs.missing(digests) == set()


def test_requests_to_a_bucket_that_is_away_are_not_made_for_a_while(host, front, s3_url):
    one = host("one", s3_url)
    one.tiers[0]._breaker = Breaker(first=60, longest=60)
    front.fault = gone
    with pytest.raises(CacheUnavailableError):
        one.blobs.missing([Digest.of(b"x")])
    seen = front.seen
    for _ in range(100):
        with pytest.raises(CacheUnavailableError, match=r"has been away for \d+ s and is tried again in \d+ s"):
            one.blobs.missing([Digest.of(b"x")])
    assert front.seen == seen
    assert state(one, "object").passed_over == 100


def test_builds_are_written_while_the_bucket_is_away_and_sent_later(host, front, s3_url):
    one = host("one", s3_url)
    hurry(one)
    one.builds.put("b1", b'{"n":1}')
    front.fault = gone
    one.builds.put("b1", b'{"n":2}')
    one.builds.put("b2", b'{"n":1}')
    assert one.builds.get("b1") == b'{"n":2}'
    assert set(one.builds.list()) == {"b1", "b2"}
    front.fault = lambda *_: None
    time.sleep(0.15)
    assert one.builds.get("b1") == b'{"n":2}'
    two = host("two", s3_url)
    assert two.builds.get("b1") == b'{"n":2}'
    assert two.builds.get("b2") == b'{"n":1}'


def test_release_is_read_from_its_copy_while_the_bucket_is_away(host, front, s3_url):
    one, two = host("one", s3_url), host("two", s3_url)
    digest = model(one, 1)
    one.refs.tag("model", "1", digest)
    for _ in range(2):
        two.manifest(two.refs.resolve("model:1"))
    front.fault = gone
    assert two.refs.resolve("model:1") == digest
    assert two.manifest(digest).weights


def test_answers_of_500_now_and_then_are_not_seen(host, front, s3_url):
    one = host("one", s3_url)
    seen = iter(range(10**6))
    front.fault = lambda _method, _path: (500, "") if next(seen) % 5 == 0 else None
    with one.blobs.batch():
        digests = [one.blobs.put(noise(1000, number)) for number in range(40)]
        large = one.blobs.put(noise(5 * MIB))
    two = host("two", s3_url)
    assert two.blobs.missing(digests) == set()
    assert two.blobs.get(large) == noise(5 * MIB)
    assert one.notes() == two.notes() == []


def test_batch_of_many_asks_in_few_requests(host, front, s3_url):
    one = host("one", s3_url)
    with one.blobs.batch():
        for number in range(300):
            one.blobs.put(b"blob %d" % number)
    seen = front.seen
    with one.blobs.batch():
        for number in range(300):
            one.blobs.put(b"blob %d" % number)
    assert front.seen - seen < 310  # none was sent, and none asked for twice


def test_writer_without_permission_is_told_and_reads_on(host, s3_url, s3_server, monkeypatch):
    digest = host("one", s3_url).blobs.put(b"there")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", READER_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", READER_SECRET)
    two = host("two", s3_url)
    assert two.blobs.get(digest) == b"there"
    with pytest.raises(ReadOnlyCacheError, match="does not permit"):
        two.blobs.put(b"mine")
    assert two.blobs.get(Digest.of(b"mine")) == b"mine"
    assert state(two, "object").state == "up"


# --- opening ---


def test_tier_that_is_away_at_the_start_is_an_error_unless_it_can_wait(tmp_path, host):
    with pytest.raises(CacheUnavailableError, match=r"redis://127.0.0.1:1/0 cannot be reached, after \d tries"):
        Cache.open(f"{tmp_path}/c,{DEAD}")
    cache = host("c", DEAD, wait_for_tiers=False)
    assert cache.notes() == []
    digest = cache.blobs.put(b"x")
    assert cache.blobs.get(digest) == b"x"
    assert len(cache.notes()) == 1
    assert [tier.state for tier in cache.tier_states()] == ["up", "away"]


def test_durable_tier_that_is_away_at_the_start_is_needed_only_for_what_is_not_here(tmp_path, host, front, s3_url):
    host("c", s3_url).blobs.put(b"here")
    front.fault = gone
    cache = host("c", s3_url, wait_for_tiers=False)
    heard = []
    cache.on_note(heard.append)
    assert cache.blobs.get(Digest.of(b"here")) == b"here"
    assert heard == []
    with pytest.raises(CacheUnavailableError, match="s3://"):
        cache.blobs.get(Digest.of(b"not here"))
    assert len(heard) == 1
    assert cache.notes() == []
