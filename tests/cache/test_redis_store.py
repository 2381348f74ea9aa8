"""The hot tier over a real Redis: the store's promises, and what Redis adds to them."""

import pytest

from spyre_cache.stores.redis import RedisStore
from spyre_cache.stores.redis_client import connect, redis_address
from tests.cache.store_conformance import StoreConformance


@pytest.fixture
def client(redis_url):
    with connect(redis_url) as client:
        yield client


class TestRedisStore(StoreConformance):
    @pytest.fixture
    def store(self, client, redis_url):
        return RedisStore(client, redis_address(redis_url), limit=16 << 20)
