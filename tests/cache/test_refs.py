"""Names for manifests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from spyre_cache import BlobNotFoundError, Cache, Digest, InvalidRecordError, LimitExceededError, ReferenceError_
from spyre_cache.builds import MAX_BUILD_BYTES
from spyre_cache.codec import decode
from spyre_cache.objects.release import Envelope, Statement
from tests.cache.worlds import model


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as cache:
        yield cache


def test_release_resolves_by_version_name_channel_and_digest(cache):
    one, two, three = (model(cache, n) for n in range(3))
    cache.refs.tag("granite-8b", "1.0", one, channel="stable")
    cache.refs.tag("granite-8b", "0.9", two)
    cache.refs.tag("other", "1.0", three)
    assert cache.refs.resolve("granite-8b:1.0") == one
    assert cache.refs.resolve("granite-8b") == two  # by the order of tagging, not of versions
    assert cache.refs.resolve("granite-8b@stable") == one
    assert cache.refs.resolve(str(three)) == three
    assert cache.refs.resolve(three.hash[:10]) == three
    assert cache.refs.resolve(f"blake3:{three.hash[:6]}") == three
    assert [e.label for e in cache.refs.releases()] == ["other:1.0", "granite-8b:0.9", "granite-8b:1.0"]


def test_release_statement_is_about_the_manifest(cache):
    manifest = model(cache, 1)
    digest = cache.refs.tag("m", "1", manifest, expires="2027-01-01T00:00:00Z")
    statement = decode(decode(cache.blobs.get(digest), Envelope).body(), Statement)
    assert statement.subject[0].digest == {"blake3": manifest.hash}
    assert statement.subject[0].name == "m"


def test_tag_of_another_manifest_under_the_same_version_needs_force(cache):
    one, two = model(cache, 1), model(cache, 2)
    cache.refs.tag("m", "1", one)
    cache.refs.tag("m", "1", one)
    with pytest.raises(ReferenceError_, match="already stands for"):
        cache.refs.tag("m", "1", two)
    assert cache.refs.resolve("m:1") == one
    cache.refs.tag("m", "1", two, force=True)
    assert cache.refs.resolve("m:1") == two


@pytest.mark.parametrize(
    "name", ["", "Upper", "a/b", "../x", ".hidden", "a b", "a:b", "a@b", "blake3", "x" * 129, "a\n"]
)
def test_name_that_is_malformed_is_refused(cache, name):
    with pytest.raises(ReferenceError_, match="a name is lowercase"):
        cache.refs.tag(name, "1", model(cache, 1))


@pytest.mark.parametrize("version", ["", "a/b", "..", "-1", "a b", "x" * 129])
def test_version_that_is_malformed_is_refused(cache, version):
    with pytest.raises(ReferenceError_, match="a version is"):
        cache.refs.tag("m", version, model(cache, 1))


def test_tag_of_an_absent_manifest_is_refused(cache):
    with pytest.raises(BlobNotFoundError):
        cache.refs.tag("m", "1", Digest.of(b"never"))


@pytest.mark.parametrize(
    ("ref", "words"),
    [
        ("nothing", "no release 'nothing'.*there are m:1"),
        ("m:2", "no release 'm:2'.*there are m:1"),
        ("m@beta", "no release 'm@beta'.*there are m:1"),
        ("abcdef0", "no manifest abcdef0.*there are blake3:"),
        ("blake3:abc", "6 to 64"),
        ("blake3:XYZXYZ", "6 to 64"),
        ("../../etc/passwd", "a name is"),
        ("m:../x", "a version is"),
        ("", "a name is"),
    ],
)
def test_reference_that_is_unknown_or_malformed_says_what_there_is(cache, ref, words):
    cache.refs.tag("m", "1", model(cache, 1))
    with pytest.raises(ReferenceError_, match=words):
        cache.refs.resolve(ref)


def test_prefix_of_several_manifests_lists_them(cache):
    for last in "01":
        digest = Digest("abcdef" + last * 58, 3)
        path = cache.path / "manifests" / "ab" / digest.hash
        cache.root.create(path, b'{"manifest":{"hash":"%s","size":3},"schema":"known/1"}' % digest.hash.encode())
    with pytest.raises(ReferenceError_, match=r"several manifests: there are blake3:abcdef0.*abcdef1.*more digits"):
        cache.refs.resolve("abcdef")
    assert cache.refs.resolve("abcdef0").hash.startswith("abcdef0")


def test_name_that_looks_like_a_prefix_goes_first(cache):
    one, two = model(cache, 1), model(cache, 2)
    name = two.hash[:8]
    cache.refs.tag(name, "1", one)
    assert cache.refs.resolve(name) == one
    assert cache.refs.resolve(f"blake3:{name}") == two


def test_untag_forgets_the_name_only(cache):
    manifest = model(cache, 1)
    cache.refs.tag("m", "1", manifest)
    assert cache.refs.untag("m", "1")
    assert not cache.refs.untag("m", "1")
    assert cache.refs.resolve(str(manifest)) == manifest


def test_tags_at_the_same_time_have_numbers_of_their_own(cache, tmp_path):
    manifest = model(cache, 1)
    barrier = threading.Barrier(8)

    def tag(number):
        with Cache.open(tmp_path / "cache") as mine:
            barrier.wait()
            mine.refs.tag(f"m{number % 3}", str(number), manifest)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tag, range(8)))
    orders = [entry.order for entry in cache.refs.releases()]
    assert len(orders) == len(set(orders)) == 8
    cache.refs.tag("m0", "last", manifest)
    assert cache.refs.releases()[0].label == "m0:last"


def test_tag_that_others_win_at_the_same_time_is_refused(cache, tmp_path):
    manifests = [model(cache, number) for number in range(4)]
    barrier = threading.Barrier(4)

    def tag(manifest):
        with Cache.open(tmp_path / "cache") as mine:
            barrier.wait()
            try:
                mine.refs.tag("m", "1", manifest)
            except ReferenceError_:
                return None
            return manifest

    with ThreadPoolExecutor(4) as pool:
        (winner,) = filter(None, pool.map(tag, manifests))
    assert cache.refs.resolve("m:1") == winner


def test_pins_are_listed_until_removed(cache):
    manifest = model(cache, 1)
    assert cache.pins.add(manifest)
    assert not cache.pins.add(manifest)
    assert cache.pins.list() == [manifest]
    assert cache.pins.remove(manifest)
    assert not cache.pins.remove(manifest)
    assert cache.pins.list() == []


def test_statements_are_listed_by_manifest_and_type(cache):
    one, two = model(cache, 1), model(cache, 2)
    extra = cache.blobs.put(b"provenance")
    cache.statements.attach(one, "https://slsa.dev/provenance/v1", extra)
    assert len(cache.statements.list(one)) == 2
    assert [a.blob for a in cache.statements.list(one, "https://slsa.dev/provenance/v1")] == [extra]
    assert len(cache.statements.list(two)) == 1
    with pytest.raises(BlobNotFoundError):
        cache.statements.attach(one, "x", Digest.of(b"never"))


def test_build_documents_are_replaced_listed_newest_first_and_bounded(cache, monkeypatch):
    for number in range(5):
        cache.builds.put(f"b{number}", b"{}")
    cache.builds.put("b0", b'{"again":1}')
    assert cache.builds.get("b0") == b'{"again":1}'
    assert cache.builds.get("none") is None
    assert cache.builds.list()[0] == "b0"
    monkeypatch.setattr("spyre_cache.builds.MAX_BUILDS", 3)
    cache.builds.put("b9", b"{}")
    assert cache.builds.list() == ["b9", "b0", "b4"]


@pytest.mark.parametrize("build", ["", "../x", "a/b", ".x", "x" * 200])
def test_build_id_that_is_no_id_is_refused(cache, build):
    with pytest.raises(InvalidRecordError, match="an id is"):
        cache.builds.put(build, b"")
    with pytest.raises(InvalidRecordError, match="an id is"):
        cache.builds.get(build)


def test_build_document_that_is_too_large_is_refused(cache):
    with pytest.raises(LimitExceededError):
        cache.builds.put("b", bytes(MAX_BUILD_BYTES + 1))
