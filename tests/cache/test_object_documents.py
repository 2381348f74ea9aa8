"""Documents in a real bucket and in a directory: the common promises, and what objects add to them."""

import os
import time

import pytest

from spyre_cache.stores.object_documents import ObjectDocuments, document_path
from spyre_cache.stores.object_opening import open_objects
from tests.cache.document_conformance import DocumentConformance


@pytest.fixture(params=["s3", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    return request.getfixturevalue("s3_url")


@pytest.fixture
def open_documents(url):
    opened = []

    def another(**options):
        opened.append(ObjectDocuments(open_objects(url), **options))
        return opened[-1]

    yield another
    for documents in opened:
        documents.close()


@pytest.fixture
def documents(open_documents):
    return open_documents()


class TestObjectDocuments(DocumentConformance):
    @pytest.fixture(
        params=["actions", "refs", "builds"]
    )  # the kinds do not differ here, but for the form of their keys
    def kind(self, request):
        return request.param

    @pytest.fixture
    def another(self, open_documents):
        return open_documents()

    def make_old(self, documents, kind, key, seconds):
        if documents.objects.directory is None:
            pytest.skip("a bucket's clock cannot be turned")
        path = documents.objects.directory / document_path(kind, key)
        os.utime(path, (time.time() - seconds,) * 2)
