"""Documents in a cache directory: the common promises, and what is the directory's own."""

from __future__ import annotations

import os
import time

import pytest

from spyre_cache import Cache, InvalidRecordError, ReadOnlyCacheError
from spyre_cache.root import Root
from spyre_cache.stores.disk_documents import DiskDocuments
from spyre_cache.stores.documents import MAX_DOCUMENT_BYTES
from tests.cache.document_conformance import DocumentConformance


@pytest.fixture
def root(tmp_path):
    with Root(tmp_path / "cache") as root:
        yield root


@pytest.fixture
def documents(root):
    return DiskDocuments(root)


class TestDiskDocuments(DocumentConformance):
    @pytest.fixture
    def another(self, root):
        with Root(root.path) as second:
            yield DiskDocuments(second)

    def make_old(self, documents, kind, key, seconds):
        os.utime(documents.path(kind, key), (time.time() - seconds,) * 2)


def test_documents_lie_where_the_format_says(documents, root):
    places = {
        ("actions", "ab" * 32): "actions/ab/" + "ab" * 32,
        ("refs", "name/1.0"): "refs/name/1.0",
        ("pins", "cd" * 32): "pins/" + "cd" * 32,
        ("builds", "20260101-x"): "builds/20260101-x",
        ("statements", "ab/cd"): "statements/ab/cd",
    }
    for (kind, key), place in places.items():
        documents.create(kind, key, b"{}")
        assert (root.path / place).read_bytes() == b"{}"


@pytest.mark.parametrize(("kind", "key"), [("actions", "a/b"), ("refs", "name"), ("leases", "x")])
def test_key_of_another_form_than_its_kind_has_is_refused(documents, kind, key):
    with pytest.raises(InvalidRecordError):
        documents.create(kind, key, b"")


def test_read_only_directory_is_read_and_not_written(documents, root):
    documents.create("pins", "a", b"x")
    with Root(root.path, read_only=True) as other:
        reading = DiskDocuments(other)
        there = reading.get("pins", "a")
        assert there.data == b"x"
        reading.touch("pins", "a")
        reading.set_aside("pins", "a", there)
        for write in (
            lambda: reading.create("pins", "b", b""),
            lambda: reading.replace("pins", "a", b""),
            lambda: reading.remove("pins", "a"),
        ):
            with pytest.raises(ReadOnlyCacheError):
                write()
    assert documents.get("pins", "a").data == b"x"


def test_folder_pipe_or_giant_in_the_place_of_a_document_is_none(documents, root):
    for name in ("folder", "pipe", "giant"):
        documents.create("pins", name, b"x")
        documents.path("pins", name).unlink()
    documents.path("pins", "folder").mkdir()
    os.mkfifo(documents.path("pins", "pipe"))
    with documents.path("pins", "giant").open("wb") as file:
        file.truncate(MAX_DOCUMENT_BYTES + 1)
    assert documents.get_many("pins", ["folder", "pipe", "giant"]) == {}
    assert len(root.names(root.path / "quarantine")) == 1


def test_strangers_are_no_keys(documents, root):
    documents.create("actions", "ab" * 32, b"x")
    (root.path / "actions" / "ab" / ".hidden").touch()
    (root.path / "actions" / "ab" / ("cd" * 32)).touch()
    (root.path / "actions" / "note").touch()
    assert list(documents.keys("actions")) == ["ab" * 32]
    assert list(documents.keys("actions", "ab" * 32)) == ["ab" * 32]
    assert list(documents.keys("leases")) == []


def test_adopted_document_is_as_old_as_where_it_came_from(documents):
    documents.create("actions", "ab" * 32, b"x")
    documents.adopt("actions", "cd" * 32, documents.get("actions", "ab" * 32)._replace(age=1234.0))
    assert 1230 < documents.get("actions", "cd" * 32).age < 1240
    assert 1230 < documents.age("actions", "cd" * 32) < 1240


def test_what_a_decision_was_based_on_survives_a_touch(documents):
    documents.create("pins", "a", b"x")
    read = documents.get("pins", "a")
    documents.touch("pins", "a")
    assert documents.replace("pins", "a", b"y", expected=read)


def test_documents_of_a_batch_are_there_at_once_and_for_others_at_its_end(tmp_path):
    with Cache.open(tmp_path / "cache") as one, Cache.open(tmp_path / "cache") as two:
        with one.blobs.batch():
            for number in range(300):  # more than a batch holds back at a time
                assert one.documents.create("documents", f"{number:064x}", b"%d" % number)
            assert not one.documents.create("documents", f"{299:064x}", b"other")
            assert two.documents.get("documents", f"{299:064x}") is None
            assert one.documents.get("documents", f"{299:064x}").data == b"299"
            one.documents.create("documents", f"{300:064x}", b"300")
            assert one.documents.remove("documents", f"{300:064x}")
            one.documents.create("documents", f"{301:064x}", b"301")
        assert len(list(two.documents.keys("documents"))) == 301
        assert two.documents.get("documents", f"{301:064x}").data == b"301"


def test_what_changes_does_not_wait_for_the_end_of_a_batch(tmp_path):
    with Cache.open(tmp_path / "cache") as one, Cache.open(tmp_path / "cache") as two, one.blobs.batch():
        one.documents.create("statements", f"{'a' * 64}/{'b' * 64}", b"{}")
        assert one.documents.create("refs", "name/1", b"{}")
        assert two.documents.get("refs", "name/1") is not None
        assert two.documents.get("statements", f"{'a' * 64}/{'b' * 64}") is not None  # it came before
