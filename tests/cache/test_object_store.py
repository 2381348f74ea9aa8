"""The durable tier over a real S3 and over a directory: the store's promises, and what objects add to them."""

import pytest

from spyre_cache.stores.object import ObjectStore
from spyre_cache.stores.object_client import open_objects
from tests.cache.store_conformance import StoreConformance


@pytest.fixture(params=["s3", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    return request.getfixturevalue("s3_url")


@pytest.fixture
def objects(url):
    objects = open_objects(url)
    yield objects
    objects.close()


class TestObjectStore(StoreConformance):
    @pytest.fixture
    def store(self, objects):
        return ObjectStore(objects)
