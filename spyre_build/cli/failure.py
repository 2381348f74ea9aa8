"""The one place where exceptions become a line, a hint and an exit code."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from spyre_build.cli.output import one_line
from spyre_cache import errors as cache_errors
from spyre_cache.stores.urls import hide_passwords

OK, FAILED, USAGE, MISSING, REFUSED, INFRASTRUCTURE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130
BROKER_HINT = "--broker or SPYRE_BUILD_BROKER names it"

_CACHE_CODES: tuple[tuple[type[cache_errors.CacheError], int, str], ...] = (
    (
        cache_errors.CacheUnavailableError,
        INFRASTRUCTURE,
        "--cache or SPYRE_BUILD_CACHE names the cache's directory and tiers",
    ),
    (cache_errors.ReferenceError_, USAGE, "`spyre-build cache ls` lists the releases and manifests of this cache"),
    (cache_errors.BlobNotFoundError, MISSING, "`spyre-build verify REF` says what is missing; submit makes it again"),
)

_ERRNO_HINTS = {
    errno.ENOSPC: "free some space, or `spyre-build cache gc`",
    errno.EDQUOT: "the quota is used up: `spyre-build cache gc`, or another --cache",
    errno.EROFS: "the file system is read-only; --cache chooses another directory",
    errno.EACCES: "check the owner and the permissions",
    errno.EPERM: "check the owner and the permissions",
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What the shell shows of an error."""

    error: str
    hint: str
    code: int


def describe(error: BaseException) -> Failure:
    """Turns any exception into a failure; an unexpected one leaves its traceback in a file that the hint names."""
    known = _known(error)
    if known is None:
        where = save_traceback(error)
        said = one_line(hide_passwords(str(error)), 300)
        message = f"unexpected {type(error).__name__}{': ' + said if said else ''}"
        hint = f"this is a defect of spyre-build; the details are in {where}" if where else "this is a defect"
        return Failure(error=message, hint=hint, code=FAILED)
    return known


def _known(error: BaseException) -> Failure | None:
    message = one_line(str(error)) or type(error).__name__
    if isinstance(error, cache_errors.CacheError):
        remedy, exit_code = next(((h, c) for kind, c, h in _CACHE_CODES if isinstance(error, kind)), ("", FAILED))
        if isinstance(error, cache_errors.CacheUnavailableError) and error.service == "broker":
            remedy = BROKER_HINT
        return Failure(error=message, hint=remedy, code=exit_code)
    if isinstance(error, KeyboardInterrupt):
        return Failure(
            error="interrupted", hint="what was finished is kept; the same command goes on", code=INTERRUPTED
        )
    if isinstance(error, OSError) and error.errno in _ERRNO_HINTS:
        where = f": {error.filename}" if error.filename else ""
        text = one_line(f"{os.strerror(error.errno)}{where}")
        return Failure(error=text, hint=_ERRNO_HINTS[error.errno], code=INFRASTRUCTURE)
    if isinstance(error, MemoryError):
        return Failure(error="out of memory", hint="fewer --jobs, or --weights external", code=FAILED)
    # The runtime and the workers are not imported to be asked, because both bring torch; and typer's errors have moved
    # between its releases. All of them carry their exit code.
    code = getattr(error, "exit_code", None)
    if callable(said := getattr(error, "format_message", None)) and isinstance(code, int):
        return Failure(error=one_line(hide_passwords(said())), hint=_help_hint(error), code=code)
    if type(error).__module__.startswith("spyre_") and type(error).__module__.endswith("errors"):
        hint = one_line(getattr(error, "hint", "") or "")
        return Failure(error=message, hint=hint, code=code if isinstance(code, int) else FAILED)
    return None


def _help_hint(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "spyre-build")
    return f"`{path} --help` explains the command"


def save_traceback(error: BaseException) -> Path | None:
    """Writes the traceback to a new file in the user's state folder, else in the temporary one.

    Returns:
        The file, or None where nothing can be written.
    """
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if base.startswith("/") else Path.home() / ".local" / "state"
    text = hide_passwords("".join(traceback.format_exception(error)))
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(3)}.txt"
    for folder in (home / "spyre-build", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / name
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return None
