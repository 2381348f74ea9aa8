"""The one place where clients of Redis (or Valkey) are made, and where their errors become sentences.

    redis://[user:password@]host[:port][/database][?option=value&…]       rediss:// with TLS

Options of our own: `prefix` of every key (default `spyre`), `ttl` in seconds and `limit` in bytes (see
`spyre_cache.stores.redis`). Of the client's: `db`, `socket_timeout`, `socket_connect_timeout`, `ssl_ca_certs`,
`ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`, `ssl_check_hostname`. A password that shall not be in a URL comes from
`SPYRE_BUILD_REDIS_PASSWORD` (and `SPYRE_BUILD_REDIS_USERNAME`).
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from spyre_cache.errors import CacheUnavailableError, ReadOnlyCacheError
from spyre_cache.stores import urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

SCHEMES = ("redis", "rediss")
USERNAME_VARIABLE = "SPYRE_BUILD_REDIS_USERNAME"
PASSWORD_VARIABLE = "SPYRE_BUILD_REDIS_PASSWORD"  # noqa: S105  the name of a variable
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 3.0
RETRIES = 2
_SILENT_TRIES = 2
_BACKOFF_SECONDS = 0.05, 0.5  # base and cap of the jitter between tries
_IDLE_SECONDS = 15  # a connection unused for so long is tried out before it is trusted
_MAX_CONNECTIONS = 256
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_OURS = frozenset({"prefix", "ttl", "limit"})
_CLIENTS = frozenset({
    "db", "socket_timeout", "socket_connect_timeout", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs",
    "ssl_check_hostname",
})  # fmt: skip

_T = TypeVar("_T")


class RedisAddress(NamedTuple):
    """A URL taken apart.

    Attributes:
        url: for the client: with credentials, without our own options.
        shown: for people: without password or options.
        prefix: of every key.
        options: our own options that were given, as text.
    """

    url: str
    shown: str
    prefix: str
    options: dict[str, str]


def redis_address(url: str) -> RedisAddress:
    """Takes a `redis://` or `rediss://` URL apart and adds credentials from the environment.

    Raises:
        CacheUnavailableError: no such URL, or an option that is unknown.
    """
    shown = hide_password(url)
    try:
        parts = urlsplit(url)
        # Else it is not known where a password ends; and the library takes some characters out silently.
        sane = url.isprintable() and " " not in url and "@" not in parts.path + parts.query + parts.fragment
        sane = sane and parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        sane = False
    if not sane or not re.fullmatch(r"(/[0-9]{0,5})?", parts.path):
        escapes = "; in a password / is written %2F, ? %3F, # %23 and @ %40" if "@" in url else ""
        raise CacheUnavailableError(
            f"a Redis is given as redis://[user:password@]host[:port][/database] or rediss://…, not as {shown!r}"
            f"{escapes}"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(given) - _OURS - _CLIENTS)
    if unknown:
        known = ", ".join(sorted(_OURS | _CLIENTS))
        raise CacheUnavailableError(f"the Redis URL {shown} has the unknown option {unknown[0]!r}; known are {known}")
    prefix = given.get("prefix", "spyre")
    if not _PREFIX.fullmatch(prefix):
        raise CacheUnavailableError(
            f"a prefix of keys is letters, digits and '._:-', at most 64; {shown} has {prefix[:80]!r}"
        )
    query = urlencode({name: value for name, value in given.items() if name in _CLIENTS})
    full = urlunsplit((parts.scheme, _authority(parts.netloc), parts.path, query, ""))
    return RedisAddress(full, shown, prefix, {name: given[name] for name in _OURS & set(given)})


def with_credentials(url: str) -> str:
    """The URL with user and password from the environment, unless it has its own: for libraries that take URLs."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=_authority(parts.netloc)))


def _authority(netloc: str) -> str:
    if "@" in netloc or PASSWORD_VARIABLE not in os.environ:
        return netloc
    user = quote(os.environ.get(USERNAME_VARIABLE, ""), safe="")
    return f"{user}:{quote(os.environ[PASSWORD_VARIABLE], safe='')}@{netloc}"


def hide_password(url: str) -> str:
    """A URL fit for messages: no user, no password, no query; where it is not clear what these are, only its scheme."""
    return urls.shown(url)


def connect(
    address: RedisAddress | str,
    *,
    answer_seconds: float = ANSWER_SECONDS,
    connect_seconds: float = CONNECT_SECONDS,
    retries: int = RETRIES,
) -> redis.Redis:
    """A client that gives bytes; nothing is sent before its first command. Safe among threads and after a fork.

    Args:
        address: a URL, or one taken apart.
        answer_seconds: how long to wait for each answer; must exceed the time-out of any blocking command.
        connect_seconds: how long to wait for a connection.
        retries: further tries after a lost connection or answer, with jitter between.

    Raises:
        CacheUnavailableError: the URL or one of its options is wrong.
    """
    import redis

    if isinstance(address, str):
        address = redis_address(address)
    try:
        pool = redis.ConnectionPool.from_url(
            address.url,
            **_defaults(address.url, socket_timeout=answer_seconds, socket_connect_timeout=connect_seconds),
            socket_keepalive=True,
            health_check_interval=_IDLE_SECONDS,
            max_connections=_MAX_CONNECTIONS,
            retry=_retry(retries),
        )
    except (ValueError, TypeError, redis.RedisError) as error:
        raise CacheUnavailableError(f"the Redis URL {address.shown} cannot be used: {error}") from None
    return redis.Redis.from_pool(pool)


def _defaults(url: str, **options: float) -> dict[str, Any]:
    """Those that the URL does not set itself."""
    given = dict(parse_qsl(urlsplit(url).query))
    return {name: value for name, value in options.items() if name not in given}


def _retry(retries: int) -> Any:
    from redis import exceptions as of_redis
    from redis.backoff import FullJitterBackoff
    from redis.retry import Retry

    class Worthwhile(Retry):
        """Tries again what may go better then: a wrong password stays wrong, though the library files it here, and
        who has not answered twice has been waited for long enough (the library nests these, so it is four times).
        """

        def call_with_retry(
            self,
            do: Callable[[], _T],
            fail: Any,
            is_retryable: Callable[[Exception], bool] | None = None,
            with_failure_count: bool = False,
        ) -> _T:
            silent = 0

            def worthwhile(error: Exception) -> bool:
                nonlocal silent
                silent += isinstance(error, of_redis.TimeoutError)
                if silent >= _SILENT_TRIES or isinstance(error, of_redis.AuthenticationError):
                    return False
                return is_retryable is None or is_retryable(error)

            return super().call_with_retry(do, fail, worthwhile, with_failure_count)

    base, cap = _BACKOFF_SECONDS
    return Worthwhile(FullJitterBackoff(cap=cap, base=base), retries)


@contextmanager
def broker_unavailable(shown: str, tries: int = RETRIES + 1) -> Iterator[None]:
    """As `unavailable`, of the Redis that is the broker: its errors say so, for whoever gives a hint."""
    try:
        with unavailable(shown, tries):
            yield
    except CacheUnavailableError as error:
        error.service = "broker"
        raise


@contextmanager
def unavailable(shown: str, tries: int = RETRIES + 1) -> Iterator[None]:
    """Turns what a client raises into `CacheUnavailableError`, in words that say what to do.

    Args:
        shown: the URL as people may see it.
        tries: how often the client tries, for the message.
    """
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise _translated(error, shown, tries) from None
    except OSError as error:
        raise CacheUnavailableError(f"{shown} cannot be reached: {error.strerror or error}") from None


def _translated(error: redis.RedisError, shown: str, tries: int) -> CacheUnavailableError:
    from redis import exceptions as of_redis

    text = str(error)[:300]
    if isinstance(error, of_redis.ReadOnlyError):
        return ReadOnlyCacheError(f"{shown} is a read-only replica; give the URL of the primary")
    credentials = f"put them into the URL or into {USERNAME_VARIABLE} and {PASSWORD_VARIABLE}"
    # The first that fits: the library derives some of these from others.
    for kind, what in (
        (of_redis.AuthenticationError, f"refuses the user or password ({text}); {credentials}"),
        (of_redis.NoPermissionError, f"does not let this user do that ({text}); its ACL must allow it"),
        (of_redis.OutOfMemoryError, "is full: maxmemory is reached and its policy evicts nothing; give it more memory"),
        (of_redis.BusyLoadingError, "has started and is still loading its data; try again in a while"),
        (of_redis.MaxConnectionsError, f"is used by more than {_MAX_CONNECTIONS} threads at once; use fewer"),
        (of_redis.TimeoutError, f"did not answer in time, after {min(tries, _SILENT_TRIES)} tries: {text}"),
        (of_redis.ConnectionError, f"cannot be reached, after {tries} tries: {text}"),
    ):
        if isinstance(error, kind):
            return CacheUnavailableError(f"{shown} {what}")
    if text.startswith(("WRONGPASS", "NOAUTH")):
        return CacheUnavailableError(f"{shown} refuses the user or password ({text}); {credentials}")
    return CacheUnavailableError(f"{shown} answered with an error: {text}")
