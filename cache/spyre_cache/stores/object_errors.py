"""What object stores raise, as sentences that say what to do and never hold credentials."""

from __future__ import annotations

import re

from spyre_cache.errors import CacheUnavailableError, ReadOnlyCacheError

_METADATA = "169.254.169.254"  # where clouds give credentials to their machines: asked when there are no others
_FAILED = re.compile(r"Error performing ([A-Z]+ [^ ]+) in [0-9.]+[mµ]?s(?:, after ([0-9]+) retries[^-]*)? ?- (.*)")
_MAX_TEXT = 10_000  # of an answer that may be a whole page
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{0,300})</Message>")
_STATUS = re.compile(r"status code: ([0-9]{3} [A-Za-z ]{2,40})")
_SECRET = re.compile(r"(Signature|Credential|AWSAccessKeyId|X-Amz-[A-Za-z-]+|SecurityToken)([=>][^&<\s\"]*)")


def translated(error: Exception, shown: str, doing: str) -> CacheUnavailableError:
    """The sentence for what a store raised; never with credentials in it."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text = str(error).partition("\n\nDebug source:")[0]
    code = _CODE.search(text)
    name = code[1] if code else ""
    if name == "NoSuchBucket":
        return CacheUnavailableError(f"{shown}: there is no such bucket; make it, or correct the URL")
    said = _said(text)
    if name in {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed"}:
        return CacheUnavailableError(
            f"{shown} refuses the credentials ({said}); set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or whatever your provider uses"
        )
    if isinstance(error, UnauthenticatedError) or _METADATA in text:
        return CacheUnavailableError(
            f"{shown} was asked without credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or whatever your provider uses"
        )
    if isinstance(error, (PermissionDeniedError, PermissionError)):
        kind = ReadOnlyCacheError if doing.startswith(("writing", "removing", "locking", "touching")) else None
        return (kind or CacheUnavailableError)(f"{shown} does not permit {doing} with these credentials ({said})")
    return CacheUnavailableError(f"{shown} cannot be used: {doing} failed: {said}")


def _said(text: str) -> str:
    """What a store answered, short and without secrets."""
    text = " ".join(text[:_MAX_TEXT].split())
    failed = _FAILED.search(text)
    tries = f" after {failed[2]} retries" if failed and failed[2] else ""
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _STATUS.search(text)
    if code or status:
        parts = [status[1].strip() if status else "", code[1] if code else "", message[1] if message else ""]
        said = ": ".join(part for part in parts if part) + tries
    else:
        said = f"{failed[1]}{tries}: {failed[3]}" if failed else text
    return _SECRET.sub(r"\1=…", said)[:400]
