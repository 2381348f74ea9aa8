"""`cache verify`: every file is accounted for, every fault is named, repair leaves a sound cache."""

from __future__ import annotations

import pytest

from spyre_cache import Cache
from tests.cache.worlds import flip, key_of, model, result


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
