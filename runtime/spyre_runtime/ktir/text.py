"""Kernels as text: what is read and written, with limits on everything read.

Whatever text comes, the outcome is a module or one of our errors.
"""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Final

from xdsl.context import Context
from xdsl.dialects import arith, scf, tensor
from xdsl.dialects import math as math_dialect
from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    Builtin,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    Signedness,
)
from xdsl.dialects.func import Func
from xdsl.dialects.linalg import ops as linalg
from xdsl.dialects.linalg.attrs import IteratorTypeAttr
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import DiagnosticException, ParseError, VerifyException

from spyre_runtime.errors import KtirSyntaxError
from spyre_runtime.ktir.affine import print_map, print_set
from spyre_runtime.ktir.dialect import KTDP
from spyre_runtime.ktir.reduce import ReduceOp
from spyre_runtime.ktir.spaces import LEGACY_NAMES, MemorySpaceAttr, SpyreMemorySpaceAttr
from spyre_runtime.ktir.spyreop import SPYREOP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_BYTES: Final = 1 << 20
MAX_NESTING: Final = 48
MAX_OPS: Final = 20_000
MAX_ELEMENTS: Final = 1 << 22  # of a tensor: more never fits a core
MAX_DIGITS: Final = 19
_DIGITS: Final = re.compile(rf"\d{{{MAX_DIGITS + 1},}}")
_LONG_HEX: Final = re.compile(r"0[xX][0-9a-fA-F]{17,}")
_TENSOR: Final = re.compile(r"\b(?:tensor|vector)\s*<\s*((?:\d+\s*x\s*)+)")
_OTHER: Final = re.compile(r"\s*:\s*+(?!tensor\b)")
_BITS: Final = re.compile(r"\b0[xX]")
# What begins a string without ending it on its line is taken too, and given back never: else a line of quotes would be
# read over and over. The parser refuses it.
_STRINGS: Final = re.compile(r'"(?:[^"\\\n]|\\.)*+"?|//[^\n]*')

# Of linalg, what the emulator knows.
LINALG: Final = Dialect(
    "linalg",
    [
        linalg.GenericOp,
        linalg.YieldOp,
        linalg.IndexOp,
        linalg.MatmulOp,
        linalg.FillOp,
        linalg.BroadcastOp,
        linalg.TransposeOp,
        linalg.AddOp,
        linalg.SubOp,
        linalg.MulOp,
        ReduceOp,
    ],
    [IteratorTypeAttr],
)
_DIALECTS: Final = (Builtin, Func, arith.Arith, math_dialect.Math, scf.Scf, tensor.Tensor, LINALG, KTDP, SPYREOP)


def context() -> Context:
    """A context with the dialects a kernel may use; an operation of any other is refused."""
    made = Context()
    for dialect in _DIALECTS:
        made.load_dialect(dialect)
    return made


def parse_module(text: str | bytes) -> ModuleOp:
    """Reads a module, in the custom or the generic form, and checks what xDSL checks.

    Raises:
        KtirSyntaxError: no module, or beyond the limits; names the line.
    """
    text = _within_limits(text)
    try:
        module = Parser(context(), text, "kernel").parse_module()
        _count(module)
        module.verify()
    except KtirSyntaxError:
        raise
    except ParseError as error:
        raise KtirSyntaxError(f"line {_line(text, error.span.start)}: {_first_line(error)}") from None
    except (VerifyException, DiagnosticException) as error:
        raise KtirSyntaxError(f"an operation contradicts itself: {_first_line(error)}") from None
    except Exception as error:  # noqa: BLE001  the parser library asserts, indexes and converts what it reads
        raise KtirSyntaxError(f"this is no kernel: {type(error).__name__}: {_first_line(error)}") from None
    return module


def _within_limits(text: str | bytes) -> str:
    if len(text) > MAX_BYTES:
        raise KtirSyntaxError(f"a kernel has at most {MAX_BYTES} bytes, but {len(text)} came")
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise KtirSyntaxError("a kernel is UTF-8 text, but other bytes came") from None
    bare = _STRINGS.sub("", text)
    if _DIGITS.search(bare) or _LONG_HEX.search(bare):
        raise KtirSyntaxError(f"a number has at most {MAX_DIGITS} digits, but a longer one came")
    if any(_BITS.search(elements) for elements, _, _ in _dense(text)):
        # The library reads 0xFC00 as the integer 64512 here, others as the bits of -inf.
        raise KtirSyntaxError("elements of a dense constant are decimal numbers, but bits came: use a splat")
    _check_tensors(bare)
    depth = 0
    for character in bare:
        if character in "([{<":
            depth += 1
            if depth > MAX_NESTING:
                raise KtirSyntaxError(f"brackets are nested at most {MAX_NESTING} deep, but more came")
        elif character in ")]}" or (character == ">" and depth):
            depth = max(0, depth - 1)
    if bare.count("--") > MAX_NESTING:
        raise KtirSyntaxError("a run of minus signs came where a number is due")
    return text


def _check_tensors(text: str) -> None:
    # The library writes the elements of a dense constant out, however many they are.
    for found in _TENSOR.finditer(text):
        if math.prod(int(size) for size in found[1].replace("x", " ").split()) > MAX_ELEMENTS:
            raise KtirSyntaxError(f"a tensor has at most {MAX_ELEMENTS} elements, but {found[0][:60]!r} came")
    if any(end and _OTHER.match(rest) for _, end, rest in _dense(text)):
        raise KtirSyntaxError("a dense constant is a tensor, and its type says so")


def _dense(text: str) -> Iterator[tuple[str, str, str]]:
    """The elements of dense constants, the `>` if there is one, and what follows; in one pass, which no pattern is."""
    return (part.partition(">") for part in text.split("dense<")[1:])


def _count(module: ModuleOp) -> None:
    for number, _ in enumerate(module.walk()):
        if number > MAX_OPS:
            raise KtirSyntaxError(f"a kernel has at most {MAX_OPS} operations, but more came")


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _first_line(error: BaseException) -> str:
    lines = [line.strip(" ^\t") for line in str(getattr(error, "msg", error)).splitlines()]
    return next((line for line in lines if line), type(error).__name__)[:300]


class KernelPrinter(Printer):
    """Prints what other readers of the dialect take.

    Sizes of the grid are bare numbers (a reader that does not know `32 : i64` runs one core, and says nothing), sets
    and maps are in MLIR's own form, and memory spaces can be in the older spelling.
    """

    legacy: bool = False

    def print_attribute(self, attribute: Attribute) -> None:
        """See `Printer`."""
        if isinstance(attribute, AffineSetAttr):
            self.print_string(print_set(attribute.data))
        elif isinstance(attribute, AffineMapAttr):
            self.print_string(print_map(attribute.data))
        elif isinstance(attribute, ArrayAttr) and all(_plain(entry) for entry in attribute.data):
            self.print_string(f"[{', '.join(str(entry.value.data) for entry in attribute.data)}]")
        elif self.legacy and isinstance(attribute, MemorySpaceAttr):
            super().print_attribute(SpyreMemorySpaceAttr(LEGACY_NAMES[attribute.space], attribute.core))
        else:
            super().print_attribute(attribute)

    def print_op_attributes(
        self,
        attributes: Mapping[str, Attribute],
        *,
        reserved_attr_names: Iterable[str] = (),
        print_keyword: bool = False,
    ) -> bool:
        """See `Printer`; in the order of their names, whichever order they were read or set in."""
        ordered = dict(sorted(attributes.items()))
        return super().print_op_attributes(
            ordered, reserved_attr_names=reserved_attr_names, print_keyword=print_keyword
        )


def _plain(entry: Attribute) -> bool:
    if not isinstance(entry, IntegerAttr) or not isinstance(entry.type, IntegerType):
        return False
    return entry.type.width.data == 64 and entry.type.signedness.data is Signedness.SIGNLESS


def print_module(op: Operation, *, generic: bool = False, legacy: bool = False) -> str:
    """A module or function as text, ending with a newline.

    Args:
        op: what to print.
        generic: in MLIR's generic form, which needs no knowledge of the dialects.
        legacy: with `#ktdp.spyre_memory_space<HBM>`.
    """
    stream = io.StringIO()
    printer = KernelPrinter(stream, print_generic_format=generic, print_properties_as_attributes=generic)
    printer.legacy = legacy
    printer.print_op(op)
    return stream.getvalue() + "\n"
