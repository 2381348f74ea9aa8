"""The words of fragments and what they mean in torch: the one table that both the encoder and the decoder use."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES: Final[dict[str, torch.dtype]] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e4m3fnuz": torch.float8_e4m3fnuz,
    "float8_e5m2": torch.float8_e5m2,
    "float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex32": torch.complex32,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
DTYPE_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}

LAYOUTS: Final[dict[str, torch.layout]] = {
    "strided": torch.strided,
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
}
LAYOUT_NAMES: Final = {layout: name for name, layout in LAYOUTS.items()}

MEMORY_FORMATS: Final[dict[str, torch.memory_format]] = {
    "contiguous": torch.contiguous_format,
    "preserve": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}
MEMORY_FORMAT_NAMES: Final = {memory_format: name for name, memory_format in MEMORY_FORMATS.items()}

DEVICES: Final[frozenset[str]] = frozenset({"cpu", "meta"})
"""Devices without an index; a fragment has no others."""

NAMESPACES: Final[frozenset[str]] = frozenset({"aten", "prims"})
"""Operator namespaces that need no declaration."""

REFUSED: Final[frozenset[str]] = frozenset({"aten::from_file"})
"""Operators that reach outside the process: never decoded, whatever a fragment says."""

HIGHER_ORDER: Final[frozenset[str]] = frozenset(
    {
        "associative_scan",
        "auto_functionalized",
        "auto_functionalized_v2",
        "cond",
        "flex_attention",
        "invoke_subgraph",
        "map_impl",
        "out_dtype",
        "scan",
        "while_loop",
    }
)
"""Names that may follow `higher_order::`."""

SYM_OPS: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "not": torch.sym_not,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "int": torch.sym_int,
    "float": torch.sym_float,
    "ite": torch.sym_ite,
}
"""Arithmetic on sizes that stands in a graph as a node: `sym::add` and so on."""
SYM_ARITY: Final[dict[str, int]] = {name: 1 if name in {"neg", "not", "int", "float"} else 2 for name in SYM_OPS} | {
    "ite": 3
}
SYM_OP_NAMES: Final = {function: name for name, function in SYM_OPS.items()}

EXPR_OPS: Final[dict[str, str]] = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "//": "floordiv",
    "%": "mod",
    "==": "eq",
    "!=": "ne",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "neg": "neg",
    "and": "and",
    "or": "or",
    "not": "not",
    "min": "min",
    "max": "max",
}
"""Operators of size expressions (`spyre_runtime.symbols`) as keys of `SYM_OPS`."""
