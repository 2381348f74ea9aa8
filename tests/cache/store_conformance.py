"""What `BlobStore` promises, as tests. A store's own test module subclasses these and gives the `store` fixture."""

from __future__ import annotations

import io
import itertools
import random
import threading
from pathlib import Path

import pytest

from spyre_cache import BlobNotFoundError, BlobStore, Digest, LocalBlobStore

MIB = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not shrink, the same every time."""
    return random.Random(seed).randbytes(size)


SAMPLES = {
    "empty": b"",
    "one_byte": b"\0",
    "small": b"hello",
    "text": b"the same words again and again, " * 8192,
    "text_of_many_frames": b"0123456789abcdef" * (5 * MIB // 16) + b"tail",
    "exactly_one_frame": b"ab" * (MIB // 2),
    "noise": noise(70_000),
    "large_noise": noise(6 * MIB + 123),
    "starts_like_an_envelope": b"SPYREBLB\x01\x00\x01\x00\x00\x00\x10\x00" + noise(40_000, 1),
}


class StoreConformance:
    """Holds for every store."""

    @pytest.fixture(params=SAMPLES, ids=str)
    def sample(self, request):
        return SAMPLES[request.param]

    @pytest.mark.parametrize("raw", [False, True])
    def test_put_then_get_gives_the_same_bytes(self, store: BlobStore, sample, raw):
        digest = store.put(sample, raw=raw)
        assert digest == Digest.of(sample)
        assert store.get(digest) == sample

    @pytest.mark.parametrize("raw", [False, True])
    def test_put_stream_of_any_pieces_gives_the_digest_of_the_whole(self, store, sample, raw):
        cuts = sorted({0, len(sample), *(len(sample) * part // 7 for part in range(7)), min(1, len(sample))})
        pieces = [sample[a:b] for a, b in itertools.pairwise(cuts)]
        assert store.put_stream(iter(pieces), raw=raw) == Digest.of(sample)
        assert store.put_stream(io.BytesIO(sample), raw=raw) == Digest.of(sample)
        assert store.get(Digest.of(sample)) == sample

    def test_open_reads_from_anywhere(self, store, sample):
        digest = store.put(sample)
        with store.open(digest) as reader:
            for start in (0, len(sample) // 2, len(sample) - 1 if sample else 0, MIB - 1, len(sample) + 5):
                reader.seek(start)
                assert reader.read(100) == sample[start : start + 100]
            reader.seek(0)
            assert reader.read() == sample

    def test_put_of_other_buffers_is_put_of_their_bytes(self, store):
        data = bytes(range(256)) * 64
        wide = memoryview(data).cast("I")
        assert store.put(bytearray(data)) == store.put(memoryview(data)) == store.put(wide) == Digest.of(data)

    def test_missing_names_exactly_those_that_are_absent(self, store):
        there = {store.put(noise(100, n)) for n in range(20)}
        absent = {Digest.of(noise(100, n)) for n in range(100, 120)}
        assert store.missing(there | absent) == absent
        assert store.missing([]) == set()
        assert all(digest in store for digest in there)

    def test_get_of_an_absent_blob_raises_not_found(self, store):
        absent = Digest.of(b"never stored")
        for read in (store.get, store.open):
            with pytest.raises(BlobNotFoundError, match=absent.hash):
                read(absent)

    def test_digest_of_another_size_names_no_blob(self, store, sample):
        digest = store.put(sample)
        for size in {digest.size + 1, max(0, digest.size - 1)} - {digest.size}:
            with pytest.raises(BlobNotFoundError):
                store.get(Digest(digest.hash, size))
        assert store.get(digest) == sample

    def test_delete_removes_once(self, store, sample):
        digest = store.put(sample)
        assert store.delete(digest)
        assert store.missing([digest]) == {digest}
        assert not store.delete(digest)
        assert store.put(sample) == digest
        assert store.get(digest) == sample

    def test_iter_gives_every_blob_once(self, store):
        stored = {store.put(data, raw=raw) for data in SAMPLES.values() for raw in (False, True)}
        listed = list(store.iter())
        assert set(listed) == stored
        assert len(listed) == len(stored)

    def test_batch_shows_this_process_its_blobs_at_once(self, store):
        with store.batch(), store.batch():
            digests = [store.put(noise(50, n)) for n in range(200)]
            assert store.missing(digests) == set()
            assert store.get(digests[-1]) == noise(50, 199)
        assert store.missing(digests) == set()

    def test_batch_left_by_an_error_keeps_what_was_put(self, store):
        with pytest.raises(KeyError), store.batch():  # noqa: PT012  that it comes later is the point
            digest = store.put(b"before the error")
            raise KeyError
        assert store.get(digest) == b"before the error"

    def test_threads_that_put_the_same_blobs_agree(self, store):
        data = [noise(2000, n) for n in range(8)] + [SAMPLES["text"], SAMPLES["large_noise"]]
        errors: list[BaseException] = []

        def work(seed: int) -> None:
            try:
                for item in random.Random(seed).sample(data, len(data)):
                    digest = store.put(item, raw=bool(seed % 2))
                    assert store.get(digest) == item
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []

    def test_stream_that_fails_leaves_nothing(self, store):
        def broken():
            yield noise(3 * MIB)
            yield noise(3 * MIB, 1)
            raise ConnectionError("the other side went away")

        before = set(store.iter())
        with pytest.raises(ConnectionError):
            store.put_stream(broken(), raw=True)
        assert set(store.iter()) == before


class LocalStoreConformance(StoreConformance):
    """Holds, besides, for every store of files."""

    @pytest.mark.parametrize("raw", [False, True])
    def test_map_gives_the_bytes_and_keeps_writes_private(self, store: LocalBlobStore, sample, raw):
        digest = store.put(sample, raw=raw)
        view = store.map(digest)
        assert bytes(view) == sample
        if sample:
            view[0] ^= 0xFF
            assert bytes(store.map(digest)) == sample
            assert store.get(digest) == sample

    def test_map_outlives_the_blob(self, store, sample):
        digest = store.put(sample, raw=True)
        view = store.map(digest)
        store.delete(digest)
        assert bytes(view) == sample

    def test_map_keeps_no_descriptor(self, store):
        digests = [store.put(noise(5000, n), raw=True) for n in range(50)]
        before = len(list(Path("/proc/self/fd").iterdir()))
        views = [store.map(digest) for digest in digests]
        assert len(list(Path("/proc/self/fd").iterdir())) <= before
        assert all(len(view) == 5000 for view in views)

    @pytest.mark.parametrize("raw", [False, True])
    def test_path_is_a_file_of_the_plain_bytes(self, store, sample, raw):
        digest = store.put(sample, raw=raw)
        assert store.path(digest).read_bytes() == sample

    def test_raw_blob_stored_compressed_before_gets_its_file(self, store):
        data = SAMPLES["text"]
        store.put(data)
        digest = store.put(data, raw=True)
        assert store.path(digest).read_bytes() == data
        assert store.get(digest) == data
