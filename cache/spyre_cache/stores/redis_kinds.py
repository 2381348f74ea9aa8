"""Keys of ours under which somebody has put another kind of value: damaged like bad bytes, so removed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_T = TypeVar("_T")
RedisKind = Literal["string", "list", "set", "zset", "hash", "stream"]

IS_FOREIGN: Final = """
local function is_foreign(key, kind)
  local there = redis.call('TYPE', key)['ok']
  return there ~= kind and there ~= 'none'
end
"""
"""For scripts that look before they read, since an error in a script is an error of everything in it."""

_REMOVE = IS_FOREIGN + "if is_foreign(KEYS[1], ARGV[1]) then return redis.call('DEL', KEYS[1]) else return 0 end"
_log = logging.getLogger(__name__)


def is_wrong_kind(error: BaseException) -> bool:
    """Whether a command failed since a key holds another kind of value."""
    import redis

    # Libraries on top of the client raise their own, from it.
    return "WRONGTYPE" in str(error) and any(
        isinstance(one, redis.ResponseError) for one in (error, error.__cause__, error.__context__)
    )


def remove_foreign(client: Any, kinds: Mapping[str, RedisKind]) -> int:
    """Removes those keys that hold another kind of value than theirs; tells how many there were."""
    gone = [key for key, kind in kinds.items() if client.eval(_REMOVE, 1, key, kind)]
    for key in gone:
        _log.warning("the key %s held another kind of value than %s and was removed", key, kinds[key])
    return len(gone)


def mended(client: Any, kinds: Mapping[str, RedisKind], do: Callable[[], _T]) -> _T:
    """What `do` gives; where it meets a wrong kind of value, keys that hold one are removed, and it is done again."""
    try:
        return do()
    except Exception as error:
        if not is_wrong_kind(error) or not remove_foreign(client, kinds):
            raise
    return do()
