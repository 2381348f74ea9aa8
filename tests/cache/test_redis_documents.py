"""Documents in a real Redis: the common promises, and what Redis adds to them."""

import time

import pytest

from spyre_cache.stores.redis_client import connect, redis_address
from spyre_cache.stores.redis_documents import RedisDocuments
from tests.cache.document_conformance import DocumentConformance


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


@pytest.fixture
def documents(client, redis_url):
    return RedisDocuments(client, redis_address(redis_url), ttl=3600)


class TestRedisDocuments(DocumentConformance):
    @pytest.fixture(params=["actions", "documents"])  # what it keeps
    def kind(self, request):
        return request.param

    @pytest.fixture
    def another(self, redis_url):
        with connect(redis_url) as second:
            yield RedisDocuments(second, redis_address(redis_url), ttl=3600)

    def make_old(self, documents, kind, key, seconds):
        stamp = int((time.time() - seconds) * 1e6).to_bytes(8, "big")
        documents._client.setrange(documents._key(kind, key), 17, stamp)
