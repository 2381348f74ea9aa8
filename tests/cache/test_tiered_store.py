"""Blobs and documents over a directory, a real Redis and an object store: the promises of every store."""

import pytest

from spyre_cache import Cache
from tests.cache.document_conformance import DocumentConformance
from tests.cache.store_conformance import SAMPLES, LocalStoreConformance


def tiers(request, tmp_path):
    """Tiers beyond a directory."""
    match request.param:
        case "redis":
            return request.getfixturevalue("redis_url")
        case "s3":
            return request.getfixturevalue("s3_url")
        case _:
            return f"{request.getfixturevalue('redis_url')},file://{tmp_path}/shared"


@pytest.fixture(params=["redis+file", "s3"])
def url(request, tmp_path):
    return tiers(request, tmp_path)


@pytest.fixture
def open_cache(url, request):
    opened = []
    write = "back" if "back" in request.node.name else "through"

    def another(directory):
        opened.append(Cache.open(f"{directory},{url}", write=write))
        return opened[-1]

    yield another
    for cache in opened:
        cache.close()


class TestTieredStore(LocalStoreConformance):
    @pytest.fixture(params=["text", "small", "large_noise"])
    def sample(self, request):
        return SAMPLES[request.param]

    @pytest.fixture
    def store(self, open_cache, tmp_path):
        return open_cache(tmp_path / "cache").blobs


class TestWritingBack(TestTieredStore):
    @pytest.fixture(params=["back"])
    def url(self, request, tmp_path):
        return tiers(request, tmp_path)


class TestTieredDocuments(DocumentConformance):
    """Two that share a directory and the tiers."""

    @pytest.fixture(params=["redis+file", "redis"])
    def url(self, request, tmp_path):
        return tiers(request, tmp_path)

    @pytest.fixture(params=["actions", "documents", "builds"])  # the others are like one of these
    def kind(self, request):
        return request.param

    @pytest.fixture
    def documents(self, open_cache, tmp_path):
        return open_cache(tmp_path / "cache").documents

    @pytest.fixture
    def another(self, open_cache, tmp_path):
        return open_cache(tmp_path / "cache").documents


class TestDocumentsOfTwoHosts(DocumentConformance):
    """Two that share the tiers and nothing else."""

    @pytest.fixture(params=["redis+file"])
    def url(self, request, tmp_path):
        return tiers(request, tmp_path)

    @pytest.fixture(params=["actions", "refs"])  # of what is written once, everybody writes the same
    def kind(self, request):
        return request.param

    @pytest.fixture
    def documents(self, open_cache, tmp_path):
        return open_cache(tmp_path / "cache").documents

    @pytest.fixture
    def another(self, open_cache, tmp_path):
        return open_cache(tmp_path / "other").documents
