"""The one place where object stores are opened, through `obstore`.

    s3://bucket/prefix        AWS_* environment: credentials, region, AWS_ENDPOINT_URL for other servers
    gs://bucket/prefix        GOOGLE_* environment
    az://container/prefix     AZURE_* environment
    file:///dir               a directory, which machines may share

S3 and directories are tested; Google's and Azure's come with the library and have never been run by this project.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from spyre_cache.errors import CacheUnavailableError
from spyre_cache.stores import urls
from spyre_cache.stores.object_client import Objects
from spyre_cache.stores.object_errors import translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore as AnyStore

SCHEMES = ("s3", "gs", "az", "file")
CONNECT_SECONDS = 3
REQUEST_SECONDS = 10  # for one request with at most a chunk of 2 MiB, or a document
RETRIES = 5
RETRY_SECONDS = 15  # after so long no other try is begun


def open_objects(url: str) -> Objects:
    """The objects at a URL; nothing is asked of the store yet.

    Raises:
        CacheUnavailableError: no URL of an object store, or settings that the store does not understand.
    """
    from obstore.exceptions import BaseError

    shown = urls.shown(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    # The library that takes URLs apart takes control characters out silently.
    sane = not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in unquote(url))
    sane = sane and parts.scheme in SCHEMES and not parts.query and not parts.fragment and "@" not in parts.netloc
    if parts.scheme == "file":
        sane = sane and parts.netloc in {"", "localhost"} and parts.path.startswith("/") and "%00" not in parts.path
    else:
        sane = sane and bool(parts.netloc)
    if not sane or ".." in parts.path.split("/"):
        raise CacheUnavailableError(
            f"an object store is given as s3://bucket/prefix, gs://…, az://… or file:///dir, not as {shown!r}; "
            "credentials come from the environment"
        )
    try:
        if parts.scheme == "file":
            directory = Path(unquote(parts.path))
            return Objects(_local(directory), shown, directory)
        return Objects(_bucket(parts.scheme, parts.netloc, parts.path.strip("/")), shown)
    except (BaseError, OSError, ValueError) as error:
        raise translated(error, shown, "opening it") from None


def _local(directory: Path) -> AnyStore:
    from obstore.store import LocalStore

    return LocalStore(directory, mkdir=True)


def _bucket(scheme: str, bucket: str, prefix: str) -> AnyStore:
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    return kinds[scheme](  # type: ignore[no-any-return]
        bucket,
        prefix=prefix or None,
        client_options={
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            # Without TLS only where somebody wrote http:// on purpose.
            "allow_http": _endpoint(scheme).startswith("http://"),
        },
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
        **_settings(scheme),
    )


def _endpoint(scheme: str) -> str:
    if scheme != "s3":
        return ""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _settings(scheme: str) -> dict[str, Any]:
    """What the library does not take from the environment as the AWS tools do."""
    if scheme != "s3":
        return {}
    settings = {}
    if endpoint := _endpoint(scheme):
        settings["endpoint"] = endpoint
    if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
        settings["region"] = "us-east-1"
    return settings
