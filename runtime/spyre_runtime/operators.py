"""From an operator's printed name to the operator itself, by allow-list and attribute lookup; nothing is imported."""

from __future__ import annotations

import re
from typing import Any, Final

import torch
from torch._ops import OpOverload, OpOverloadPacket

from spyre_runtime.errors import InvalidFragmentError, OperatorMissingError
from spyre_runtime.vocabulary import HIGHER_ORDER, NAMESPACES, REFUSED, SYM_OPS

_NAME: Final = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]{0,63})::([A-Za-z_][A-Za-z0-9_]{0,127})(?:\.([A-Za-z_][A-Za-z0-9_]{0,63}))?"
)


def resolve(text: str, custom_ops: frozenset[str] = frozenset(), *, mutable: bool = False) -> Any:
    """The callable that an operator's name stands for.

    Args:
        text: `namespace::name.overload`, `higher_order::name` or `sym::name`.
        custom_ops: what is allowed beyond the built-in namespaces: namespaces (`my`) or operators (`my::soft_clip`).
        mutable: accept an operator that writes to its arguments (inside a functional wrapper only).

    Raises:
        InvalidFragmentError: malformed, not in an allowed namespace, or writing to its arguments.
        OperatorMissingError: allowed, but not registered in this process.
    """
    match = _NAME.fullmatch(text)
    if match is None:
        raise InvalidFragmentError(f"an operator is namespace::name.overload, not {text[:80]!r}")
    namespace, name, overload = match[1], match[2], match[3]
    if namespace == "sym":
        if name not in SYM_OPS or overload is not None:
            raise InvalidFragmentError(f"arithmetic on sizes is one of {', '.join(sorted(SYM_OPS))}, not {text[:80]!r}")
        return SYM_OPS[name]
    if namespace == "higher_order":
        if name not in HIGHER_ORDER or overload is not None:
            raise InvalidFragmentError(
                f"a higher-order operator is one of {', '.join(sorted(HIGHER_ORDER))}, not {text[:80]!r}"
            )
        return _lookup(torch.ops.higher_order, name, text)
    base = f"{namespace}::{name}"
    if base in REFUSED:
        raise InvalidFragmentError(f"{base} reaches outside the process and is never run")
    if namespace not in NAMESPACES and not _declared(text, base, namespace, custom_ops):
        raise InvalidFragmentError(
            f"operators are of aten, prims or a declared custom operator, but {text!r} came: "
            "declare it as custom_ops=[…] of the model"
        )
    return _overload(namespace, name, overload or "default", text, mutable=mutable)


def _declared(text: str, base: str, namespace: str, custom_ops: frozenset[str]) -> bool:
    return namespace in custom_ops or base in custom_ops or text in custom_ops


def _overload(namespace: str, name: str, overload: str, text: str, *, mutable: bool) -> Any:
    packet = _lookup(getattr(torch.ops, namespace), name, text)
    if not isinstance(packet, OpOverloadPacket):
        raise InvalidFragmentError(f"{text!r} is not an operator")
    op = _lookup(packet, overload, text)
    if not isinstance(op, OpOverload):
        raise InvalidFragmentError(f"{text!r} is not an overload of an operator")
    if op._schema.is_mutable and not mutable:  # noqa: SLF001  the only way to an operator's schema
        raise InvalidFragmentError(f"a fragment is functional, but {text} writes to its arguments")
    return op


def _lookup(owner: Any, name: str, text: str) -> Any:
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        raise OperatorMissingError(
            f"the operator {text} is not registered in this process: import the library that defines it"
            f" (or use the torch version the model was built with; this is {torch.__version__})"
        ) from None
