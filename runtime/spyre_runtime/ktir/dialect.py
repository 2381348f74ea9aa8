"""The `ktdp` dialect: views of memory, tiles of views, and what moves them.

Custom forms follow the dialect's own printer. Two spellings of memory spaces are read: `#ktdp.memory_space<global>`
and the older `#ktdp.spyre_memory_space<HBM>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    IndexType,
    MemRefType,
    TensorType,
    i32,
    i64,
)
from xdsl.dialects.utils.dynamic_index_list import (
    parse_dynamic_index_list_without_types,
    print_dynamic_index_list,
)
from xdsl.ir import Attribute, Block, Dialect, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.irdl import (
    AnyOf,
    AttrSizedOperandSegments,
    BaseAttr,
    IRDLOperation,
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

from spyre_runtime.ktir.forms import (
    integers,
    parse_attrs,
    parse_map_of_values,
    parse_subscript,
    parse_symbols,
    parse_tile_type,
    print_attrs,
    print_map_of_values,
    print_types,
)
from spyre_runtime.ktir.spaces import AccessTileType, MemorySpaceAttr, SpyreMemorySpaceAttr

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.parser import Parser
    from xdsl.printer import Printer


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
            print_dynamic_index_list(printer, DYNAMIC_INDEX, dynamic, integers(static))
        print_attrs(printer, self, ("coordinate_set", "memory_space"))
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
        attrs = parse_attrs(parser, ("coordinate_set", "memory_space"))
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
        print_map_of_values(printer, self.base_map.data.results, tuple(self.indices), "[]")
        if self.symbol_operands:
            printer.print_string(" symbols(")
            printer.print_list(self.symbol_operands, printer.print_ssa_value)
            printer.print_string(")")
        print_attrs(printer, self, ("access_tile_order", "access_tile_set"))
        printer.print_string(" : ")
        printer.print_attribute(self.base.type)
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstructAccessTileOp:
        name = parser.parse_unresolved_operand()
        exprs, spans = parse_map_of_values(parser, parser.Delimiter.SQUARE)
        symbols = parse_symbols(parser)
        attrs = parse_attrs(parser, ("access_tile_set", "access_tile_order"))
        parser.parse_punctuation(":")
        base = parser.resolve_operand(name, parser.parse_type())
        parser.parse_punctuation("->")
        kind = parse_tile_type(parser)
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
                print_map_of_values(printer, mapping.data.results, values, "[]")
                printer.print_string(")")
            else:
                print_map_of_values(printer, mapping.data.results, values, "()")
        printer.print_string("]")
        if self.symbol_operands:
            printer.print_string(" symbols(")
            printer.print_list(self.symbol_operands, printer.print_ssa_value)
            printer.print_string(")")
        print_attrs(printer, self, ("variables_space_order", "variables_space_set"))
        printer.print_string(" : ")
        print_types(printer, [self.base.type, *(memref.type for memref in self.indirect_memrefs)])
        printer.print_string(" -> ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ConstructIndirectAccessTileOp:
        parser.parse_keyword("intermediate_variables")
        names = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        variables = [name.operand_name for name in names]
        base_name = parser.parse_unresolved_operand()
        subscripts = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_subscript(parser))
        symbols = parse_symbols(parser)
        attrs = parse_attrs(parser, ("variables_space_set", "variables_space_order"))
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        parser.parse_punctuation("->")
        kind = parse_tile_type(parser)
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
        tile = parser.resolve_operand(name, parse_tile_type(parser))
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
        print_types(printer, [self.data_tile.type, self.access_tile.type])

    @classmethod
    def parse(cls, parser: Parser) -> StoreOp:
        data_name = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        tile_name = parser.parse_unresolved_operand()
        parser.parse_punctuation(":")
        data = parser.resolve_operand(data_name, parser.parse_type())
        parser.parse_punctuation(",")
        return cls(data, parser.resolve_operand(tile_name, parse_tile_type(parser)))


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
