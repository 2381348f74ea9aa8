"""Claims among machines, in the Redis that also is the broker: its clock is everybody's, its scripts decide.

    <prefix>:claim:<action key>   the claim's bytes; forgotten after a day without a change
    <prefix>:token:<token>        lives as long as Redis keeps it
    <prefix>:epoch                made once; another one means that everything was lost

That Redis must not evict (`maxmemory-policy noeviction`): an evicted claim is a second compilation.
"""

from __future__ import annotations

import re
import secrets
from itertools import islice
from typing import TYPE_CHECKING, Any

from spyre_cache.claims import CLAIM_SECONDS, MAX_CLAIM_BYTES, TOKEN_SECONDS, Claim, Claims, Standing
from spyre_cache.codec import decode, encode
from spyre_cache.errors import InvalidRecordError
from spyre_cache.leases import check_id
from spyre_cache.stores.redis_client import broker_unavailable, connect, redis_address
from spyre_cache.stores.redis_kinds import IS_FOREIGN, mended

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spyre_cache.stores.redis_client import RedisAddress

_KEY = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1000

# Compares exact bytes; an empty argument stands for "nothing is there", as does what is no string.
_SWAP = f"""{IS_FOREIGN}
if is_foreign(KEYS[1], 'string') then redis.call('DEL', KEYS[1]) end
local there = redis.call('GET', KEYS[1])
if (there or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""


class RedisClaims(Claims):
    """Claims in a Redis or Valkey."""

    def __init__(self, address: RedisAddress | str) -> None:
        """Sends nothing yet.

        Args:
            address: a `redis://` URL, or one taken apart.

        Raises:
            CacheUnavailableError: the URL is wrong.
        """
        self._address = redis_address(address) if isinstance(address, str) else address
        self._client: Any = connect(self._address)
        self._swap_script = self._client.register_script(_SWAP)

    def now(self) -> float:
        """Redis's clock."""
        with broker_unavailable(self._address.shown):
            seconds, micros = self._client.time()
            return float(seconds + micros / 1e6)

    def read(self, keys: Iterable[str]) -> Mapping[str, Standing]:
        """As `Claims.read`: two round trips for each thousand."""
        found: dict[str, Standing] = {}
        for chunk in _chunks(keys):
            names = [self._claim_key(key) for key in chunk]
            with broker_unavailable(self._address.shown):
                values = self._client.mget(names)
                claims = dict(zip(chunk, map(self._decoded, names, chunk, values), strict=True))
                # After the claims: a token found dead now was dead, or died, while its claim was as read.
                tokens = {t for c in claims.values() if c is not None for t in (c.owner, c.hedge) if t}
                living = self._alive(sorted(tokens))
            for key, claim in claims.items():
                mine = (claim.owner, claim.hedge) if claim is not None else ()
                found[key] = Standing(claim, frozenset(t for t in mine if t in living))
        return found

    def swap(self, key: str, old: Claim | None, new: Claim | None) -> bool:
        """As `Claims.swap`."""
        return key in self.swap_many([(key, old, new)])

    def swap_many(self, swaps: Iterable[tuple[str, Claim | None, Claim | None]]) -> set[str]:
        """As `Claims.swap_many`: a round trip for each thousand."""
        done: set[str] = set()
        for chunk in _chunks(swaps):
            with broker_unavailable(self._address.shown), self._client.pipeline(transaction=False) as pipe:
                for key, old, new in chunk:
                    arguments: list[bytes | int] = [encode(c) if c else b"" for c in (old, new)]
                    arguments.append(int(CLAIM_SECONDS * 1000))
                    self._swap_script(keys=[self._claim_key(key)], args=arguments, client=pipe)
                done |= {key for (key, _, _), answer in zip(chunk, pipe.execute(), strict=True) if answer}
        return done

    def begin(self, token: str, seconds: float = TOKEN_SECONDS, *, detached: bool = False) -> None:  # noqa: ARG002
        """As `Claims.begin`; a process that dies is noticed when its token lapses."""
        with broker_unavailable(self._address.shown):
            self._client.set(self._token_key(token), b"1", px=_millis(seconds))

    def renew(self, tokens: Iterable[str], seconds: float = TOKEN_SECONDS) -> set[str]:
        """As `Claims.renew`."""
        wanted = list(tokens)
        if not wanted:
            return set()
        with broker_unavailable(self._address.shown), self._client.pipeline(transaction=False) as pipe:
            for token in wanted:
                # Not `pexpire`: that would keep something alive which is no token and reads as none.
                pipe.set(self._token_key(token), b"1", px=_millis(seconds), xx=True)
            return {token for token, there in zip(wanted, pipe.execute(), strict=True) if not there}

    def end(self, token: str) -> None:
        """As `Claims.end`."""
        with broker_unavailable(self._address.shown):
            self._client.delete(self._token_key(token))

    def alive(self, tokens: Iterable[str]) -> set[str]:
        """As `Claims.alive`."""
        with broker_unavailable(self._address.shown):
            return self._alive(list(tokens))

    def epoch(self) -> str:
        """As `Claims.epoch`."""
        with broker_unavailable(self._address.shown):
            fresh = secrets.token_hex(8)
            name = f"{self._address.prefix}:epoch"
            kept: bytes | None = mended(
                self._client, {name: "string"}, lambda: self._client.set(name, fresh, nx=True, get=True)
            )
            return fresh if kept is None else kept.decode("ascii", "replace")

    def close(self) -> None:
        """Lets go of the connections."""
        self._client.close()

    def _alive(self, tokens: Sequence[str]) -> set[str]:
        living: set[str] = set()
        for chunk in _chunks(tokens):
            values = self._client.mget([self._token_key(token) for token in chunk])
            living |= {token for token, value in zip(chunk, values, strict=True) if value is not None}
        return living

    def _decoded(self, name: str, key: str, data: bytes | None) -> Claim | None:
        """The claim in these bytes; damaged ones are none, and are removed so that another can be put there."""
        if data is None:
            return None
        try:
            claim = decode(data, Claim, limit=MAX_CLAIM_BYTES)
            if claim.action == key and encode(claim) == data:
                return claim
        except InvalidRecordError:
            pass
        self._swap_script(keys=[name], args=[data, b"", 0])
        return None

    def _claim_key(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise InvalidRecordError(f"an action key is 64 lowercase hex digits, not {key[:80]!r}")
        return f"{self._address.prefix}:claim:{key}"

    def _token_key(self, token: str) -> str:
        return f"{self._address.prefix}:token:{check_id(token)}"


def _millis(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _chunks(items: Iterable[Any]) -> Iterator[list[Any]]:
    pending = iter(items)
    while chunk := list(islice(pending, _CHUNK)):
        yield chunk
