"""Attributes and types of `ktdp`: memory spaces in both spellings, and access tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from xdsl.dialects.builtin import DYNAMIC_INDEX, ArrayAttr, IndexType, IntAttr, StringAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.parser import AttrParser
    from xdsl.printer import Printer

GLOBAL: Final = "global"
LOCAL: Final = "ct_local"
_LEGACY: Final = {"HBM": GLOBAL, "LX": LOCAL}
LEGACY_NAMES: Final = {new: old for old, new in _LEGACY.items()}


class _Space(ParametrizedAttribute):
    kind: StringAttr
    core: IntAttr

    WORDS: ClassVar[tuple[str, ...]] = ()
    CORE_WORD: ClassVar[str] = ""

    def __init__(self, kind: str | StringAttr, core: int | IntAttr = -1) -> None:
        super().__init__(
            kind if isinstance(kind, StringAttr) else StringAttr(kind),
            core if isinstance(core, IntAttr) else IntAttr(core),
        )

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            kind = parser.parse_identifier()
            if kind not in cls.WORDS:
                parser.raise_error(f"a memory space is one of {', '.join(cls.WORDS)}")
            core = -1
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword(cls.CORE_WORD)
                parser.parse_punctuation("=")
                core = parser.parse_integer(allow_boolean=False, allow_negative=False)
        return [StringAttr(kind), IntAttr(core)]

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string(f"<{self.kind.data}")
        if self.core.data >= 0:
            printer.print_string(f", {self.CORE_WORD} = {self.core.data}")
        printer.print_string(">")


@irdl_attr_definition
class MemorySpaceAttr(_Space):
    """`#ktdp.memory_space<global>`, `<ct_local>`, `<ct_local, ct_id = 3>`."""

    name = "ktdp.memory_space"
    WORDS: ClassVar[tuple[str, ...]] = (GLOBAL, LOCAL)
    CORE_WORD: ClassVar[str] = "ct_id"

    @property
    def space(self) -> str:
        """`global` or `ct_local`."""
        return self.kind.data


@irdl_attr_definition
class SpyreMemorySpaceAttr(_Space):
    """The older spelling: `#ktdp.spyre_memory_space<HBM>`, `<LX, core = 3>`."""

    name = "ktdp.spyre_memory_space"
    WORDS: ClassVar[tuple[str, ...]] = ("HBM", "LX")
    CORE_WORD: ClassVar[str] = "core"

    @property
    def space(self) -> str:
        """`global` or `ct_local`."""
        return _LEGACY[self.kind.data]


@irdl_attr_definition
class AccessTileType(ParametrizedAttribute, TypeAttribute):
    """`!ktdp.access_tile<4x64xindex>`: coordinates of a view."""

    name = "ktdp.access_tile"
    shape: ArrayAttr[IntAttr]

    def __init__(self, shape: Sequence[int] | ArrayAttr[IntAttr]) -> None:
        super().__init__(shape if isinstance(shape, ArrayAttr) else ArrayAttr([IntAttr(size) for size in shape]))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The dims."""
        return tuple(size.data for size in self.shape.data)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
            if not isinstance(element, IndexType):
                parser.raise_error("an access tile is of index")
        return [ArrayAttr([IntAttr(size) for size in shape])]

    def print_parameters(self, printer: Printer) -> None:
        dims = "".join(("?" if size == DYNAMIC_INDEX else str(size)) + "x" for size in self.sizes)
        printer.print_string(f"<{dims}index>")
