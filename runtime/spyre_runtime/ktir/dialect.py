"""The `ktdp` dialect: views of memory, tiles of views, and what moves them.

Custom forms follow the dialect's own printer. Two spellings of memory spaces are read: `#ktdp.memory_space<global>`
and the older `#ktdp.spyre_memory_space<HBM>`.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, ClassVar, Final

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    IndexType,
    IntAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.dialects.utils.dynamic_index_list import (
    parse_dynamic_index_list_without_types,
    print_dynamic_index_list,
)
from xdsl.ir import Attribute, Block, Dialect, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.ir.affine import AffineDimExpr, AffineExpr, AffineMap
from xdsl.irdl import (
    AnyOf,
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.traits import IsTerminator, NoMemoryEffect

from spyre_runtime.ktir.affine import ValueMap, print_expr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.parser import AttrParser, Parser, UnresolvedOperand
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


def _parse_tile_type(parser: Parser) -> Attribute:
    """Reads a tile's type, also in the short form `<4x64xindex>` that MLIR prints."""
    position = parser.pos
    if parser.parse_optional_punctuation("<"):
        shape, element = parser.parse_ranked_shape()
        parser.parse_punctuation(">")
        if not isinstance(element, IndexType):
            parser.raise_error("an access tile is of index", position)
        return AccessTileType(shape)
    kind = parser.parse_type()
    if not isinstance(kind, AccessTileType):
        parser.raise_error("an access tile type is due", position)
    return kind


def _print_types(printer: Printer, types: Sequence[Attribute]) -> None:
    printer.print_list(types, printer.print_attribute)


@irdl_op_definition
class RegionTerminatorOp(IRDLOperation):
    """Ends the region of an indirect tile."""

    name = "ktdp.region_terminator"
    traits = traits_def(IsTerminator())
    assembly_format = "attr-dict"


@irdl_op_definition
class GetComputeTileIdOp(IRDLOperation):
    """The coordinates of the core in the grid, one result a dim."""

    name = "ktdp.get_compute_tile_id"
    ids = var_result_def(IndexType)
    traits = traits_def(NoMemoryEffect())
    assembly_format = "attr-dict `:` type($ids)"

    def __init__(self, rank: int = 1) -> None:
        super().__init__(result_types=[[IndexType()] * rank])


@irdl_op_definition
class ConstructMemoryViewOp(IRDLOperation):
    """A shape and strides laid over memory that begins at an element offset."""

    name = "ktdp.construct_memory_view"
    offset = operand_def(IndexType)
    sizes = var_operand_def(IndexType)
    strides = var_operand_def(IndexType)
    static_sizes = prop_def(DenseArrayBase)
    static_strides = prop_def(DenseArrayBase)
    memory_space = prop_def(AnyOf((BaseAttr(MemorySpaceAttr), BaseAttr(SpyreMemorySpaceAttr))))
    coordinate_set = prop_def(AffineSetAttr)
    result = result_def(MemRefType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoMemoryEffect())

    def __init__(
        self,
        offset: SSAValue,
        sizes: Sequence[int],
        strides: Sequence[int],
        space: Attribute,
        coordinates: AffineSetAttr,
        element: Attribute,
        *,
        dynamic_sizes: Sequence[SSAValue] = (),
        dynamic_strides: Sequence[SSAValue] = (),
    ) -> None:
        super().__init__(
            operands=[offset, dynamic_sizes, dynamic_strides],
            properties={
                "static_sizes": DenseArrayBase.from_list(i64, list(sizes)),
                "static_strides": DenseArrayBase.from_list(i64, list(strides)),
                "memory_space": space,
                "coordinate_set": coordinates,
            },
            result_types=[MemRefType(element, list(sizes))],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.offset)
        for word, dynamic, static in (
            ("sizes", self.sizes, self.static_sizes),
            ("strides", self.strides, self.static_strides),
        ):
            printer.print_string(f", {word}: ")
            print_dynamic_index_list(printer, DYNAMIC_INDEX, dynamic, _integers(static))
        _print_attrs(printer, self, ("coordinate_set", "memory_space"))
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstructMemoryViewOp:
        offset = parser.resolve_operand(parser.parse_unresolved_operand(), IndexType())
        lists: list[tuple[list[SSAValue], list[int]]] = []
        for word in ("sizes", "strides"):
            parser.parse_punctuation(",")
            parser.parse_keyword(word)
            parser.parse_punctuation(":")
            names, static = parse_dynamic_index_list_without_types(parser, DYNAMIC_INDEX)
            lists.append(([parser.resolve_operand(name, IndexType()) for name in names], list(static)))
        attrs = _parse_attrs(parser, ("coordinate_set", "memory_space"))
        parser.parse_punctuation(":")
        kind = parser.parse_type()
        (sizes, static_sizes), (strides, static_strides) = lists
        return cls.create(
            operands=[offset, *sizes, *strides],
            properties={
                "static_sizes": DenseArrayBase.from_list(i64, static_sizes),
                "static_strides": DenseArrayBase.from_list(i64, static_strides),
                "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, len(sizes), len(strides)]),
                **attrs,
            },
            result_types=[kind],
        )


@irdl_op_definition
class ConstructDistributedMemoryViewOp(IRDLOperation):
    """One view made of several. Read and printed; the verifier refuses it by name."""

    name = "ktdp.construct_distributed_memory_view"
    memrefs = var_operand_def(MemRefType)
    result = result_def(MemRefType)
    traits = traits_def(NoMemoryEffect())
    assembly_format = "`(` $memrefs `:` type($memrefs) `)` attr-dict `:` type($result)"


@irdl_op_definition
class ConstructAccessTileOp(IRDLOperation):
    """A box of a view's coordinates that begins at `base_map(indices)`."""

    name = "ktdp.construct_access_tile"
    base = operand_def(MemRefType)
    indices = var_operand_def(IndexType)
    symbol_operands = var_operand_def(IndexType)
    base_map = prop_def(AffineMapAttr)
    access_tile_set = prop_def(AffineSetAttr)
    access_tile_order = prop_def(AffineMapAttr)
    result = result_def(AccessTileType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoMemoryEffect())

    def __init__(
        self,
        base: SSAValue,
        base_map: AffineMap,
        indices: Sequence[SSAValue],
        shape: Sequence[int],
        box: AffineSetAttr,
        order: AffineMap,
    ) -> None:
        super().__init__(
            operands=[base, indices, []],
            properties={
                "base_map": AffineMapAttr(base_map),
                "access_tile_set": box,
                "access_tile_order": AffineMapAttr(order),
            },
            result_types=[AccessTileType(shape)],
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.base)
        _print_map_of_values(printer, self.base_map.data.results, tuple(self.indices), "[]")
        if self.symbol_operands:
            printer.print_string(" symbols(")
            printer.print_list(self.symbol_operands, printer.print_ssa_value)
            printer.print_string(")")
        _print_attrs(printer, self, ("access_tile_order", "access_tile_set"))
        printer.print_string(" : ")
        printer.print_attribute(self.base.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstructAccessTileOp:
        name = parser.parse_unresolved_operand()
        exprs, spans = _parse_map_of_values(parser, parser.Delimiter.SQUARE)
        symbols = _parse_symbols(parser)
        attrs = _parse_attrs(parser, ("access_tile_set", "access_tile_order"))
        parser.parse_punctuation(":")
        base = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        kind = _parse_tile_type(parser)
        indices = [parser.resolve_operand(span, IndexType()) for span in spans]
        return cls.create(
            operands=[base, *indices, *symbols],
            properties={
                "base_map": AffineMapAttr(AffineMap(len(indices), 0, exprs)),
                "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, len(indices), len(symbols)]),
                **attrs,
            },
            result_types=[kind],
        )


@irdl_op_definition
class ConstructIndirectAccessTileOp(IRDLOperation):
    """Coordinates of a view of which some are read from other views."""

    name = "ktdp.construct_indirect_access_tile"
    base = operand_def(MemRefType)
    indirect_memrefs = var_operand_def(MemRefType)
    captured_variables = var_operand_def(IndexType)
    symbol_operands = var_operand_def(IndexType)
    per_dim_subscript_kinds = prop_def(ArrayAttr[BoolAttr])
    per_dim_subscript_maps = prop_def(ArrayAttr[AffineMapAttr])
    variables_space_set = prop_def(AffineSetAttr)
    variables_space_order = prop_def(AffineMapAttr)
    variables = region_def("single_block")
    result = result_def(AccessTileType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(NoMemoryEffect())

    def __init__(
        self,
        base: SSAValue,
        subscripts: Sequence[tuple[SSAValue | None, AffineMap]],
        captured: Sequence[SSAValue],
        shape: Sequence[int],
        space: AffineSetAttr,
        order: AffineMap,
    ) -> None:
        """Builds one.

        Args:
            base: the view.
            subscripts: for each dim of the view, the view its coordinate is read from (None: it is computed), and the
                map from `(captured…, variables…)` to the coordinate, or to the place it is read from.
            captured: values from outside that the maps use.
            shape: of the tile.
            space: the domain of the variables.
            order: of the variables in the tile.
        """
        kinds = [BoolAttr.from_bool(memref is not None) for memref, _ in subscripts]
        block = Block(arg_types=[IndexType()] * space.data.num_dims)
        for number, argument in enumerate(block.args):
            argument.name_hint = f"v{number}"
        block.add_op(RegionTerminatorOp.create())
        super().__init__(
            operands=[base, [memref for memref, _ in subscripts if memref is not None], captured, []],
            properties={
                "per_dim_subscript_kinds": ArrayAttr(kinds),
                "per_dim_subscript_maps": ArrayAttr([AffineMapAttr(mapping) for _, mapping in subscripts]),
                "variables_space_set": space,
                "variables_space_order": AffineMapAttr(order),
            },
            regions=[Region(block)],
            result_types=[AccessTileType(shape)],
        )

    def print(self, printer: Printer) -> None:
        variables = self.variables.block.args
        printer.print_string(" intermediate_variables(")
        printer.print_list(variables, printer.print_ssa_value)
        printer.print_string(") ")
        printer.print_ssa_value(self.base)
        printer.print_string("[")
        values = (*self.captured_variables, *variables)
        memrefs = iter(self.indirect_memrefs)
        pairs = zip(self.per_dim_subscript_kinds.data, self.per_dim_subscript_maps.data, strict=True)
        for number, (indirect, mapping) in enumerate(pairs):
            if number:
                printer.print_string(", ")
            if indirect.value.data:
                printer.print_string("ind(")
                printer.print_ssa_value(next(memrefs))
                _print_map_of_values(printer, mapping.data.results, values, "[]")
                printer.print_string(")")
            else:
                _print_map_of_values(printer, mapping.data.results, values, "()")
        printer.print_string("]")
        if self.symbol_operands:
            printer.print_string(" symbols(")
            printer.print_list(self.symbol_operands, printer.print_ssa_value)
            printer.print_string(")")
        _print_attrs(printer, self, ("variables_space_order", "variables_space_set"))
        printer.print_string(" : ")
        _print_types(printer, [self.base.type, *(memref.type for memref in self.indirect_memrefs)])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstructIndirectAccessTileOp:
        parser.parse_keyword("intermediate_variables")
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        variables = [name.operand_name for name in names]
        base_name = parser.parse_unresolved_operand()
        subscripts = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_subscript(parser))
        symbols = _parse_symbols(parser)
        attrs = _parse_attrs(parser, ("variables_space_set", "variables_space_order"))
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation("->")
        kind = _parse_tile_type(parser)
        memref_names = [memref for memref, _, _ in subscripts if memref is not None]
        if len(types) != 1 + len(memref_names):
            parser.raise_error(f"{1 + len(memref_names)} types of views are due")
        captured: dict[str, Any] = {}
        for _, _, spans in subscripts:
            for span in spans:
                if span.operand_name not in variables:
                    captured.setdefault(span.operand_name, span)
        place = {name: number for number, name in enumerate([*captured, *variables])}
        maps = []
        for _, mapping, spans in subscripts:
            dims = [AffineExpr.dimension(place[span.operand_name]) for span in spans]
            replaced = tuple(expr.replace_dims_and_symbols(dims, []) for expr in mapping.results)
            maps.append(AffineMapAttr(AffineMap(len(place), 0, replaced)))
        block = Block(arg_types=[IndexType()] * len(variables))
        for argument, name in zip(block.args, variables, strict=True):
            if not name[0].isdigit():
                argument.name_hint = name
        block.add_op(RegionTerminatorOp.create())
        memrefs = [parser.resolve_operand(n, t) for n, t in zip(memref_names, types[1:], strict=True)]
        outside = [parser.resolve_operand(span, IndexType()) for span in captured.values()]
        return cls.create(
            operands=[parser.resolve_operand(base_name, types[0]), *memrefs, *outside, *symbols],
            properties={
                "per_dim_subscript_kinds": ArrayAttr([BoolAttr.from_bool(m is not None) for m, _, _ in subscripts]),
                "per_dim_subscript_maps": ArrayAttr(maps),
                "operandSegmentSizes": DenseArrayBase.from_list(i32, [1, len(memrefs), len(outside), len(symbols)]),
                **attrs,
            },
            regions=[Region(block)],
            result_types=[kind],
        )


@irdl_op_definition
class LoadOp(IRDLOperation):
    """Moves a tile of memory into the core."""

    name = "ktdp.load"
    access_tile = operand_def(AccessTileType)
    result = result_def(TensorType)

    def __init__(self, tile: SSAValue, kind: Attribute) -> None:
        super().__init__(operands=[tile], result_types=[kind])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.access_tile)
        printer.print_string(" : ")
        printer.print_attribute(self.access_tile.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LoadOp:
        name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        tile = parser.resolve_operand(name, _parse_tile_type(parser))
        parser.parse_punctuation("->")
        return cls(tile, parser.parse_type())


@irdl_op_definition
class StoreOp(IRDLOperation):
    """Moves a tile of the core into memory."""

    name = "ktdp.store"
    data_tile = operand_def(TensorType)
    access_tile = operand_def(AccessTileType)

    def __init__(self, data: SSAValue, tile: SSAValue) -> None:
        super().__init__(operands=[data, tile])

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.data_tile)
        printer.print_string(", ")
        printer.print_ssa_value(self.access_tile)
        printer.print_string(" : ")
        _print_types(printer, [self.data_tile.type, self.access_tile.type])

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        data_name = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        tile_name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        data = parser.resolve_operand(data_name, parser.parse_type())
        parser.parse_punctuation(",")
        return cls(data, parser.resolve_operand(tile_name, _parse_tile_type(parser)))


def _integers(static: DenseArrayBase) -> list[int]:
    return [int(value) for value in static.get_values()]  # type: ignore[misc]  # of i64, as built


def _print_attrs(printer: Printer, op: IRDLOperation, names: Sequence[str]) -> None:
    entries = {name: op.properties[name] for name in names if name in op.properties}
    printer.print_op_attributes({**entries, **op.attributes}, print_keyword=False)


def _parse_attrs(parser: Parser, names: Sequence[str]) -> dict[str, Attribute]:
    attrs = dict(parser.parse_optional_attr_dict())
    if sorted(attrs) != sorted(names):
        parser.raise_error(f"the attributes {', '.join(names)} are due")
    return attrs


def _print_map_of_values(
    printer: Printer, results: Sequence[AffineExpr], values: Sequence[SSAValue], brackets: str
) -> None:
    def name(expr: AffineExpr) -> str:
        # The printer names values as it goes; a name is taken from it without printing.
        assert isinstance(expr, AffineDimExpr)
        return _name_of(printer, values[expr.position])

    printer.print_string(brackets[0])
    printer.print_string(", ".join(print_expr(result, name) for result in results))
    printer.print_string(brackets[1])


def _name_of(printer: Printer, value: SSAValue) -> str:
    text = io.StringIO()
    stream, printer.stream = printer.stream, text
    try:
        printer.print_ssa_value(value)
    finally:
        printer.stream = stream
    return text.getvalue()


def _parse_map_of_values(
    parser: Parser, delimiter: Parser.Delimiter
) -> tuple[tuple[AffineExpr, ...], list[UnresolvedOperand]]:
    reader = ValueMap(parser)
    exprs = parser.parse_comma_separated_list(delimiter, reader.expression)
    return tuple(exprs), reader.spans


def _parse_symbols(parser: Parser) -> list[SSAValue]:
    if not parser.parse_optional_keyword("symbols"):
        return []
    names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
    return [parser.resolve_operand(name, IndexType()) for name in names]


def _parse_subscript(
    parser: Parser,
) -> tuple[UnresolvedOperand | None, AffineMap, list[UnresolvedOperand]]:
    if not parser.parse_optional_keyword("ind"):
        exprs, spans = _parse_map_of_values(parser, parser.Delimiter.PAREN)
        if len(exprs) != 1:
            parser.raise_error("a subscript is one expression")
        return None, AffineMap(len(spans), 0, exprs), spans
    parser.parse_punctuation("(")
    memref = parser.parse_unresolved_operand()
    exprs, spans = _parse_map_of_values(parser, parser.Delimiter.SQUARE)
    parser.parse_punctuation(")")
    return memref, AffineMap(len(spans), 0, exprs), spans


KTDP = Dialect(
    "ktdp",
    [
        RegionTerminatorOp,
        GetComputeTileIdOp,
        ConstructMemoryViewOp,
        ConstructDistributedMemoryViewOp,
        ConstructAccessTileOp,
        ConstructIndirectAccessTileOp,
        LoadOp,
        StoreOp,
    ],
    [MemorySpaceAttr, SpyreMemorySpaceAttr, AccessTileType],
)
