"""What `DocumentStore` promises, as tests. A store's own test module subclasses this and gives the fixtures."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

import pytest

from spyre_cache import InvalidRecordError, LimitExceededError
from spyre_cache.stores.documents import MAX_DOCUMENT_BYTES, PAIRED, Document, DocumentStore, Kind

CONTENTS = [b"", b"{}", bytes(range(256)), b"word " * 100_000]
MALFORMED = ["", "/", "a/", "/a", "a/b/c", "..", ".", "../x", "a/..", "a/.b", "a b", "a\0", "a\n", "ä", "x" * 400]


def key_of(kind: Kind, number: int) -> str:
    """The key of a document, in the form that keys of its kind have."""
    if kind in PAIRED:
        return f"name{number // 10}/1.{number % 10}"
    return f"{number:064x}"[::-1] if kind != "builds" else f"2026-{number}"


class DocumentConformance:
    """Holds for every store.

    Fixtures to give: `documents`, an empty store, and `another`, a second client of the very same one.
    """

    @pytest.fixture(params=get_args(Kind))
    def kind(self, request, documents: DocumentStore) -> Kind:
        if not documents.keeps(request.param):
            pytest.skip(f"this store keeps no {request.param}")
        return request.param

    @pytest.fixture
    def key(self, kind):
        return key_of(kind, 1)

    def make_old(self, documents: DocumentStore, kind: Kind, key: str, seconds: float) -> None:
        """Makes a stored document that much older, where the test can."""
        pytest.skip("this store's clock cannot be turned")

    # --- reading ---

    def test_absent_document_is_none(self, documents, kind, key):
        assert documents.get(kind, key) is None
        assert documents.get_many(kind, [key, key_of(kind, 2)]) == {}
        assert documents.get_many(kind, []) == {}

    @pytest.mark.parametrize("data", CONTENTS, ids=len)
    def test_created_document_is_read_back(self, documents, another, kind, key, data):
        assert documents.create(kind, key, data)
        for client in (documents, another):
            found = client.get(kind, key)
            assert found.data == data
            assert 0 <= found.age < 60

    def test_many_are_read_at_once(self, documents, kind):
        stored = {key_of(kind, n): b"document %d" % n for n in range(120)}
        for key, data in stored.items():
            documents.create(kind, key, data)
        asked = [*stored, *(key_of(kind, n) for n in range(200, 230))]
        assert {key: found.data for key, found in documents.get_many(kind, iter(asked)).items()} == stored

    def test_kinds_do_not_meet(self, documents):
        kept = [kind for kind in get_args(Kind) if documents.keeps(kind)]
        for kind in kept:
            assert documents.create(kind, "name/1" if kind in PAIRED else "name", kind.encode())
        for kind in kept:
            assert documents.get(kind, "name/1" if kind in PAIRED else "name").data == kind.encode()

    def test_keys_are_listed_sorted(self, documents, kind):
        stored = [key_of(kind, n) for n in (31, 4, 15, 9, 2, 6)]
        for key in stored:
            documents.create(kind, key, b"x")
        assert list(documents.keys(kind)) == sorted(stored)

    def test_keys_with_a_prefix_are_those_of_its_first_part(self, documents):
        kind: Kind = "refs"
        if not documents.keeps(kind):
            pytest.skip("this store keeps no pairs")
        for key in ("name/1", "name/2", "name-x/1", "nam/1", "name.y/3"):
            documents.create(kind, key, b"x")
        assert list(documents.keys(kind, "name")) == ["name/1", "name/2"]
        assert list(documents.keys(kind, "na")) == []
        assert list(documents.keys(kind)) == ["nam/1", "name-x/1", "name.y/3", "name/1", "name/2"]

    def test_ages_are_those_of_the_documents(self, documents, kind):
        stored = [key_of(kind, n) for n in range(5)]
        for key in stored:
            documents.create(kind, key, b"x")
        ages = documents.ages(kind)
        assert set(ages) == set(stored)
        assert all(0 <= age < 60 for age in ages.values())

    # --- conditional writes ---

    def test_second_create_changes_nothing(self, documents, another, kind, key):
        assert documents.create(kind, key, b"first")
        assert not another.create(kind, key, b"second")
        assert not documents.create(kind, key, b"first")
        assert documents.get(kind, key).data == b"first"

    def test_replace_stores_whatever_was_there(self, documents, another, kind, key):
        assert documents.replace(kind, key, b"one")
        assert documents.replace(kind, key, b"two and longer")
        assert another.get(kind, key).data == b"two and longer"

    def test_replace_of_what_was_read_succeeds_once(self, documents, another, kind, key):
        documents.create(kind, key, b"one")
        read = documents.get(kind, key)
        assert another.replace(kind, key, b"two", expected=another.get(kind, key))
        assert not documents.replace(kind, key, b"three", expected=read)
        assert documents.get(kind, key).data == b"two"

    def test_replace_of_what_is_gone_fails(self, documents, kind, key):
        documents.create(kind, key, b"one")
        read = documents.get(kind, key)
        assert documents.remove(kind, key)
        assert not documents.replace(kind, key, b"two", expected=read)
        assert documents.get(kind, key) is None

    def test_remove_is_of_what_was_read_and_once(self, documents, another, kind, key):
        documents.create(kind, key, b"one")
        read = documents.get(kind, key)
        documents.replace(kind, key, b"two")
        assert not another.remove(kind, key, expected=read)
        assert another.remove(kind, key, expected=documents.get(kind, key))
        assert not documents.remove(kind, key)
        assert documents.get(kind, key) is None
        assert list(documents.keys(kind)) == []
        assert documents.create(kind, key, b"again")

    def test_damaged_document_set_aside_is_gone_unless_it_was_replaced(self, documents, kind, key):
        documents.create(kind, key, b"damaged")
        read = documents.get(kind, key)
        documents.replace(kind, key, b"sound")
        documents.set_aside(kind, key, read)
        assert documents.get(kind, key).data == b"sound"
        documents.set_aside(kind, key, documents.get(kind, key))
        assert documents.get(kind, key) is None
        documents.set_aside(kind, key, Document(b"never there", 0.0, "none"))

    # --- time ---

    def test_touch_makes_young_and_changes_nothing_else(self, documents, kind, key):
        documents.create(kind, key, b"one")
        self.make_old(documents, kind, key, 5000)
        assert 4900 < documents.get(kind, key).age < 5100
        assert 4900 < documents.ages(kind)[key] < 5100
        documents.touch_many(kind, [key])
        assert documents.get(kind, key).age < 60
        assert documents.get(kind, key).data == b"one"

    def test_touch_of_what_is_absent_is_nothing(self, documents, kind, key):
        documents.touch(kind, key)
        documents.touch_many(kind, [key, key_of(kind, 2)])
        assert documents.get(kind, key) is None

    # --- many at once ---

    def test_one_of_many_creators_wins(self, documents, another, kind):
        barrier = threading.Barrier(8)

        def create(number: int) -> list[bool]:
            barrier.wait()
            client = (documents, another)[number % 2]
            return [client.create(kind, key_of(kind, n), b"by %d" % number) for n in range(5)]

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        for n in range(5):
            (winner,) = [number for number in range(8) if won[number][n]]
            assert documents.get(kind, key_of(kind, n)).data == b"by %d" % winner

    def test_counting_by_conditional_replaces_loses_nothing(self, documents, another, kind, key):
        documents.create(kind, key, b"0")

        def count(client: DocumentStore) -> None:
            for _ in range(5):
                while True:
                    read = client.get(kind, key)
                    if client.replace(kind, key, b"%d" % (int(read.data) + 1), expected=read):
                        break

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, [documents, another, documents, another]))
        assert documents.get(kind, key).data == b"20"

    def test_readers_see_one_document_or_another_but_no_mixture(self, documents, another, kind, key):
        versions = [bytes([n]) * (1000 + 50_000 * n) for n in range(4)]
        documents.create(kind, key, versions[0])
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                assert another.get(kind, key).data in versions

        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            try:
                for n in range(12):
                    documents.replace(kind, key, versions[n % 4])
            finally:
                done.set()
            reading.result()

    # --- bad input ---

    @pytest.mark.parametrize("malformed", MALFORMED, ids=repr)
    def test_malformed_key_is_refused_by_every_method(self, documents, malformed):
        there = Document(b"", 0.0, "v")
        for call in (
            lambda: documents.get("actions", malformed),
            lambda: documents.create("actions", malformed, b""),
            lambda: documents.replace("actions", malformed, b""),
            lambda: documents.replace("actions", malformed, b"", expected=there),
            lambda: documents.touch("actions", malformed),
            lambda: documents.remove("actions", malformed),
            lambda: documents.set_aside("actions", malformed, there),
        ):
            with pytest.raises(InvalidRecordError):
                call()

    def test_document_that_is_too_large_is_refused(self, documents, kind, key):
        data = bytes(MAX_DOCUMENT_BYTES + 1)
        with pytest.raises(LimitExceededError):
            documents.create(kind, key, data)
        with pytest.raises(LimitExceededError):
            documents.replace(kind, key, data)
        assert documents.get(kind, key) is None

    # --- collection ---

    def test_holding_and_steadiness_may_nest(self, documents, kind, key):
        with documents.steady(), documents.steady():
            documents.hold(["ab" * 32])
            assert documents.create(kind, key, b"x")
