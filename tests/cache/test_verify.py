"""`cache verify`: every file is accounted for, every fault is named, repair leaves a sound cache."""

from __future__ import annotations

import pytest

from spyre_cache import Cache, Digest
from spyre_cache.errors import CacheUnavailableError
from tests.cache.worlds import flip, key_of, model, result

TEXT = b"words " * 5000


@pytest.fixture
def cache(tmp_path):
    with Cache.open(tmp_path / "cache") as cache:
        manifest = model(cache, 1)
        cache.refs.tag("m", "1", manifest, channel="stable")
        cache.pins.add(manifest)
        cache.builds.put("b", b"{}")
        cache.actions.put(result(cache, 7, b"first"))
        cache.actions.put(result(cache, 7, b"second"))
        yield cache


def files(cache, kind):
    return sorted(path for path in (cache.path / kind).rglob("*") if path.is_file())


def summary(findings):
    return sorted({(finding.kind, finding.path.split("/")[0]) for finding in findings})


def test_sound_cache_has_no_findings(cache):
    assert cache.verify() == []


@pytest.mark.parametrize("kind", ["blobs", "actions", "documents", "manifests", "statements", "pins", "refs", "events"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "foreign"])
def test_damage_to_any_file_is_found_and_repaired(cache, kind, damage):
    path = files(cache, kind)[0]
    path.chmod(0o644)
    data = path.read_bytes()
    at = data.index(b'"schema"') + 3 if b'"schema"' in data else len(data) // 2
    path.write_bytes({"flip": flip(data, at), "truncate": data[:-1], "empty": b"", "foreign": b"#!/bin/sh\n"}[damage])
    findings = cache.verify()
    assert str(path.relative_to(cache.path)) in {finding.path for finding in findings if finding.is_error}
    # One repair may show the next: a blob set aside leaves what pointed at it dangling.
    for _ in range(3):
        cache.verify(repair=True)
    assert cache.verify() == []


def test_blob_that_vanished_is_reported_by_what_points_at_it(cache):
    manifest = cache.manifest(cache.refs.resolve("m"))
    cache.blobs.delete(manifest.fragments[0])
    kinds = summary(cache.verify())
    assert ("dangling", "refs") in kinds
    assert ("dangling", "pins") in kinds
    assert ("dangling", "manifests") in kinds


def test_what_a_tier_has_is_not_missed_and_a_tier_that_is_away_is_nobodys_fault(tmp_path):
    shared = tmp_path / "shared"
    with Cache.open(f"{tmp_path / 'cache'},file://{shared}") as cache:
        manifest = cache.manifest(model(cache, 1))
        cache.blobs.flush()
        cache.disk.delete(manifest.fragments[0])
        assert cache.verify() == []
        assert summary(cache.local.verify()) == [("dangling", "manifests")]
        shared.rename(tmp_path / "elsewhere")
        shared.write_text("no folder")
        with pytest.raises(CacheUnavailableError):
            cache.verify(repair=True)
    with Cache.open(tmp_path / "cache") as cache:
        assert summary(cache.verify()) == [("dangling", "manifests")]


def test_result_without_its_output_is_dangling(cache):
    stored = cache.actions.put(result(cache, 8))
    cache.blobs.delete(stored.outputs[0].digest)
    assert summary(cache.verify()) == [("dangling", "actions")]
    assert [finding.repaired for finding in cache.verify(repair=True)] == [True]
    assert cache.verify() == []
    assert cache.actions.get(key_of(8)) is None


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "blobs/ab/notes.txt",
        "blobs/stray",
        "actions/ab/x",
        "refs/m/bad name",
        "pins/x",
        "builds/.x",
        "memo/a",
    ],
)
def test_stray_file_is_reported_and_left_alone(cache, name):
    path = cache.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"not ours")
    findings = cache.verify(repair=True)
    assert [finding.path for finding in findings] == [name]
    assert findings[0].is_error
    if findings[0].kind == "stray":
        assert path.read_bytes() == b"not ours"


def test_blob_in_the_wrong_folder_is_stray(cache):
    path = files(cache, "blobs")[0]
    wrong = cache.path / "blobs" / ("00" if path.name[:2] != "00" else "11")
    wrong.mkdir(exist_ok=True)
    (wrong / path.name).write_bytes(path.read_bytes())
    assert summary(cache.verify()) == [("stray", "blobs")]


def test_link_out_of_the_cache_is_stray_not_followed(cache, tmp_path):
    (tmp_path / "secret").write_text("elsewhere")
    (cache.path / "blobs" / "ab").mkdir(exist_ok=True)
    (cache.path / "blobs" / "ab" / ("ab" * 32)).symlink_to(tmp_path / "secret")
    assert summary(cache.verify()) == [("stray", "blobs")]


def test_temporary_file_of_the_dead_is_a_leftover_not_a_fault(cache):
    (cache.path / "tmp" / "session-9-gone~9.1").write_bytes(b"half")
    (finding,) = cache.verify()
    assert (finding.kind, finding.is_error) == ("leftover", False)
    assert cache.verify(repair=True)[0].repaired
    assert cache.verify() == []


def test_verdict_remembered_from_before_does_not_count(cache):
    from spyre_cache.stores.memo import Verdicts
    from tests.cache.store_conformance import noise

    digest = cache.blobs.put(noise(2 << 20), raw=True)
    path = cache.path / "blobs" / digest.hash[:2] / digest.hash
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"rot")
    # As rot would be: the verdict still fits the file.
    Verdicts(cache.root).record(path, path.stat())
    assert bytes(cache.blobs.map(digest)[:3]) == b"rot"
    assert summary(cache.verify()) == [("corrupt", "blobs")]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"1", b'{"a":"\xff"}', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", b'{"a":"' + bytes(10) + b'"}'],
    ids=["empty", "cut", "list", "number", "text", "deep", "nul"],
)
def test_build_document_that_is_no_json_object_is_corrupt_and_set_aside(cache, data):
    cache.builds.put("b", data)
    assert [(finding.kind, finding.path) for finding in cache.verify()] == [("corrupt", "builds/b")]
    assert [finding.repaired for finding in cache.verify(repair=True)] == [True]
    assert cache.verify() == []
    assert cache.builds.list() == []


def test_build_document_that_is_too_large_is_corrupt(cache, monkeypatch):
    cache.builds.put("b", b'{"a":"%s"}' % (b"x" * 1000))
    monkeypatch.setattr("spyre_cache.verify.MAX_BUILD_BYTES", 1000)
    (finding,) = cache.verify()
    assert (finding.kind, finding.path) == ("corrupt", "builds/b")
    assert "at most 1000 bytes" in finding.message


@pytest.mark.parametrize("raw", [True, False])
def test_folder_at_the_place_of_a_blob_is_corrupt_and_set_aside(cache, raw):
    digest = Digest.of(TEXT)
    folder = cache.path / "blobs" / digest.hash[:2] / (digest.hash + ("" if raw else ".z"))
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "notes.txt").write_bytes(b"not ours")
    assert cache.blobs.missing([digest]) == {digest}
    (finding,) = cache.verify()
    assert (finding.kind, finding.path) == ("corrupt", str(folder.relative_to(cache.path)))
    assert "a folder lies where a file belongs" in finding.message
    assert [finding.repaired for finding in cache.verify(repair=True)] == [True]
    assert cache.verify() == []
    assert cache.blobs.put(TEXT, raw=raw) == digest
    assert cache.blobs.get(digest) == TEXT
    # What was set aside goes in time, and hinders nobody until then.
    cache.collect(grace=0)
    assert list((cache.path / "quarantine").iterdir()) == []


@pytest.mark.parametrize("raw", [True, False])
def test_folder_at_the_place_of_a_blob_gives_way_to_it(cache, raw):
    digest = Digest.of(TEXT)
    folder = cache.path / "blobs" / digest.hash[:2] / (digest.hash + ("" if raw else ".z"))
    folder.mkdir(parents=True)
    assert not cache.blobs.delete(digest)
    cache.collect(grace=0)
    assert folder.is_dir()
    cache.blobs.put(TEXT, raw=raw)
    assert cache.blobs.get(digest) == TEXT
    assert cache.verify() == []
    assert cache.root.corrupt == 1


@pytest.mark.parametrize("kind", ["actions", "builds", "refs"])
def test_folder_at_the_place_of_a_document_gives_way_to_it(cache, kind):
    path = files(cache, kind)[0]
    data = path.read_bytes()
    path.unlink()
    (path / "inner").mkdir(parents=True)
    assert summary(cache.verify()) == [("corrupt", kind)]
    cache.collect(grace=0)
    key = f"{path.parent.name}/{path.name}" if kind == "refs" else path.name
    assert cache.documents.get(kind, key) is None
    assert not cache.documents.remove(kind, key)
    if kind == "builds":
        assert cache.documents.replace(kind, key, data)
    else:
        assert cache.documents.create(kind, key, data)
    assert cache.documents.get(kind, key).data == data


def test_blob_is_not_taken_for_there_because_a_folder_has_its_size(cache):
    folder = cache.path / "blobs" / "aa" / ("aa" * 32)
    folder.mkdir(parents=True)
    digest = Digest(folder.name, folder.stat().st_size)
    assert cache.blobs.missing([digest]) == {digest}
    assert digest not in set(cache.blobs.iter())
