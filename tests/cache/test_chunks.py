"""Content-defined chunks."""

from __future__ import annotations

import msgspec
import pytest

from spyre_cache import CorruptBlobError, Digest, InvalidRecordError
from spyre_cache.chunks import MAX_BYTES, MIN_BYTES, ChunkList, cut, is_chunked, join, split
from spyre_cache.codec import decode, encode
from tests.cache.store_conformance import MIB, noise

DATA = noise(12 * MIB)
FROZEN = [703080, 881173, 542589, 705760, 313126]


def kept(data):
    pieces: dict[Digest, bytes] = {}

    def put(piece):
        digest = Digest.of(piece)
        pieces[digest] = bytes(piece)
        return digest

    return split(data, put), pieces


@pytest.mark.parametrize("data", [b"", b"x", noise(MIN_BYTES), DATA, bytes(5 * MIB)], ids=len)
def test_split_then_join_gives_the_same_bytes(data):
    chunks, pieces = kept(data)
    assert b"".join(join(chunks, pieces.__getitem__)) == data
    assert chunks.blob == Digest.of(data)
    assert decode(encode(chunks), ChunkList) == chunks


def test_chunks_have_their_sizes():
    sizes = [len(piece) for piece in cut(DATA)]
    assert all(MIN_BYTES <= size <= MAX_BYTES for size in sizes[:-1])
    assert 300 * 1024 < sum(sizes) / len(sizes) < 900 * 1024
    assert not is_chunked(2 * MIB)
    assert is_chunked(2 * MIB + 1)


def test_inserted_bytes_change_few_chunks():
    changed = DATA[: 6 * MIB] + b"inserted" + DATA[6 * MIB :]
    _, before = kept(DATA)
    _, after = kept(changed)
    fresh = sum(digest.size for digest in after.keys() - before.keys())
    assert fresh <= 2 * MAX_BYTES
    assert len(after.keys() & before.keys()) >= len(after) - 3


def test_cut_is_the_same_everywhere():
    """Frozen: other ends would make every remote chunk useless."""
    assert [len(piece) for piece in cut(noise(3 * MIB, 5))] == FROZEN


def test_damaged_or_exchanged_chunk_is_refused():
    chunks, pieces = kept(DATA)
    first, second = chunks.chunks[:2]
    with pytest.raises(CorruptBlobError, match="came damaged"):
        list(join(chunks, lambda digest: pieces[second] if digest == first else pieces[digest]))
    swapped = msgspec.structs.replace(chunks, chunks=(second, first, *chunks.chunks[2:]))
    with pytest.raises(CorruptBlobError, match="do not make up"):
        list(join(swapped, pieces.__getitem__))


def test_list_that_does_not_add_up_is_refused():
    chunks, _ = kept(DATA)
    data = encode(chunks).replace(b'"size":%d' % len(DATA), b'"size":%d' % (len(DATA) + 1))
    with pytest.raises(InvalidRecordError, match="make up"):
        decode(data, ChunkList)
    big = Digest("ab" * 32, MAX_BYTES + 1)
    with pytest.raises(InvalidRecordError, match="a chunk has 1 to"):
        ChunkList(blob=big, chunks=(big,))
