"""A kernel as text with holes: each mutation of it breaks one rule, and the rules are refused by name."""

from __future__ import annotations

import dataclasses

from spyre_runtime.ktir.kernel import Buffer, Kernel, kernel_from_text

ROWS, COLUMNS = 64, 128

_TEXT = """
#tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + {last_row} >= 0, d1 >= 0, -d1 + {last_column} >= 0)>
#view = affine_set<(d0, d1) : (d0 >= 0, -d0 + {view_last} >= 0, d1 >= 0, -d1 + 127 >= 0)>
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @add({arguments}) attributes {{grid = {grid}}} {{
  {core} = ktdp.get_compute_tile_id : {ids}
  %c0 = arith.constant 0 : index
  %rows = arith.constant {rows_per_core} : index
  %shift = arith.constant {shift} : index
  %column = arith.constant {column} : index
  %scaled = arith.muli {who}, %rows : index
  %row = arith.addi %scaled, %shift : index
  {before}
  %x_view = ktdp.construct_memory_view {x}, sizes: [{view_rows}, 128], strides: [{stride}, 1] {{
    coordinate_set = #view, memory_space = {space}}} : memref<{view_rows}x128x{dtype}>
  %y_view = ktdp.construct_memory_view {y}, sizes: [64, 128], strides: [128, 1] {{
    coordinate_set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 127 >= 0)>,
    memory_space = #ktdp.memory_space<global>}} : memref<64x128xf16>
  %x_tile = ktdp.construct_access_tile %x_view[%row, %column] {{access_tile_set = #tile, access_tile_order = #id}}
    : memref<{view_rows}x128x{dtype}> -> !ktdp.access_tile<{tile}xindex>
  %x_data = ktdp.load %x_tile : <{tile}xindex> -> tensor<{tile}x{dtype}>
  %empty = tensor.empty() : tensor<{tile}xf16>
  %sum = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}}
    ins(%x_data : tensor<{tile}x{dtype}>) outs({out} : tensor<{tile}xf16>) {{
  ^bb0(%a: {dtype}, %o: f16):
    {body}
    linalg.yield %r : f16
  }} -> tensor<{tile}xf16>
  %y_tile = ktdp.construct_access_tile %y_view[%row, %column] {{access_tile_set = #tile, access_tile_order = #id}}
    : memref<64x128xf16> -> !ktdp.access_tile<{tile}xindex>
  ktdp.store %sum, %y_tile : tensor<{tile}xf16>, <{tile}xindex>
  {after}
  return
}}
"""

_HOLES = {
    "arguments": "%x: index, %y: index",
    "grid": "[32]",
    "core": "%core",
    "ids": "index",
    "who": "%core",
    "rows_per_core": 2,
    "shift": 0,
    "column": 0,
    "before": "",
    "after": "",
    "x": "%x",
    "y": "%y",
    "view_rows": ROWS,
    "stride": COLUMNS,
    "space": "#ktdp.memory_space<global>",
    "dtype": "f16",
    "rows": 2,
    "columns": COLUMNS,
    "out": "%empty",
    "body": "%r = arith.addf %a, %a : f16",
}

BUFFERS = (Buffer.rows("x", "f16", (ROWS, COLUMNS)), Buffer.rows("y", "f16", (ROWS, COLUMNS), "out"))


def text(**holes) -> str:
    filled = {**_HOLES, **holes}
    filled["tile"] = f"{filled['rows']}x{filled['columns']}"
    filled["last_row"], filled["last_column"] = filled["rows"] - 1, filled["columns"] - 1
    filled["view_last"] = filled["view_rows"] - 1
    return _TEXT.format(**filled)


def mutant(*, buffers=BUFFERS, cores=32, **holes) -> Kernel:
    return kernel_from_text(text(**holes), buffers, cores=cores)


def changed(number: int, **fields) -> tuple[Buffer, ...]:
    """The buffers with one of them changed."""
    return tuple(dataclasses.replace(b, **fields) if n == number else b for n, b in enumerate(BUFFERS))


_STEP = "%thirty = arith.constant 30 : index\n  %who = arith.minui %core, %thirty : index\n"

# name -> (rules that must be among the findings, mutation)
MUTANTS = {
    "race: cores take overlapping rows": ({"race"}, {"rows_per_core": 1}),
    "race: all cores take the same rows": ({"race", "gap"}, {"who": "%c0"}),
    "race: two cores take one part, and the last part is nobody's": (
        {"race", "gap"},
        {"who": "%who", "prelude": _STEP},
    ),
    "overlap: a core stores twice": (
        {"overlap"},
        {"after": "ktdp.store %sum, %y_tile : tensor<2x128xf16>, <2x128xindex>"},
    ),
    "gap: half of the columns": ({"gap"}, {"columns": 64}),
    "gap: one of two rows": ({"gap"}, {"rows": 1}),
    "out of view: rows begin one late": ({"tile"}, {"shift": 1}),
    "out of view: columns begin a stick late": ({"tile"}, {"column": 64}),
    "out of view: rows begin before the first": ({"tile"}, {"shift": -1}),
    "out of buffer: a view is longer than what it views": ({"view"}, {"view_rows": 65}),
    "out of buffer: a view begins too late": (
        {"view"},
        {"before": "%off = arith.constant 128 : index\n  %moved = arith.addi %x, %off : index", "x": "%moved"},
    ),
    "missing core: one core less": ({"missing-core", "gap"}, {"grid": "[31]", "cores": 31}),
    "lx: one core takes all": (
        {"lx"},
        {
            "rows": 4096,
            "view_rows": 4096,
            "rows_per_core": 0,
            "buffers": (Buffer.rows("x", "f16", (4096, 128)), Buffer.rows("y", "f16", (4096, 128), "out")),
        },
    ),
    "stick: columns begin within a stick": ({"stick"}, {"column": 1, "columns": 64}),
    "stick: a view begins within a stick": (
        {"stick"},
        {
            "before": "%off = arith.constant 1 : index\n  %moved = arith.addi %x, %off : index",
            "x": "%moved",
            "buffers": changed(0, shape=(65, 128)),
        },
    ),
    "stick: rows are no whole number of sticks apart": ({"stick"}, {"stride": 127}),
    "stick: a buffer lies within a stick": ({"stick"}, {"buffers": changed(0, address=64)}),
    "dtype: a type the device lacks": (
        {"dtype"},
        {"dtype": "f64", "body": "%r = arith.truncf %a : f64 to f16"},
    ),
    "dtype: bfloat16": (
        {"dtype"},
        {"dtype": "bf16", "body": "%w = arith.extf %a : bf16 to f32\n    %r = arith.truncf %w : f32 to f16"},
    ),
    "dtype: fp32 over a buffer of fp16": (
        {"dtype"},
        {"dtype": "f32", "body": "%r = arith.truncf %a : f32 to f16"},
    ),
    "dtype: a buffer of a type the device lacks": ({"dtype"}, {"buffers": changed(0, dtype="f64")}),
    "alias: an output operand is an input": ({"alias"}, {"out": "%x_data"}),
    "alias: an input is stored to": ({"alias"}, {"y": "%x"}),
    "alias: an output is loaded from": ({"alias"}, {"x": "%y"}),
    "alias: an output lies on an input": (
        {"alias"},
        {"buffers": (dataclasses.replace(BUFFERS[0], address=0), dataclasses.replace(BUFFERS[1], address=8192))},
    ),
    "grid: more cores than there are": ({"grid"}, {"grid": "[33]", "cores": 33}),
    "grid: none": ({"grid"}, {"grid": "[0]", "cores": 0}),
    "grid: not the plan's": ({"grid"}, {"grid": "[16]"}),
    "grid: more ids than dims": ({"grid"}, {"core": "%core, %other", "ids": "index, index"}),
    "grid: no list": ({"grid"}, {"grid": '"32"', "cores": 32}),
    "space: a core's memory": ({"space"}, {"space": "#ktdp.memory_space<ct_local>"}),
    "segments: a buffer of more than a segment": ({"segments"}, {"buffers": changed(0, shape=(1 << 27, 128))}),
    "set: not the shape of the tile": (
        {"set"},
        {"tile_override": "-d0 + 0 >= 0"},
    ),
    "dynamic: a bound that is read": (
        {"dynamic"},
        {
            "after": "%e = tensor.extract %x_data[%c0, %c0] : tensor<2x128xf16>\n"
            "  %n = arith.fptosi %e : f16 to i32\n  %m = arith.index_cast %n : i32 to index\n"
            "  scf.for %i = %c0 to %m step %rows {}"
        },
    ),
    "steps: a loop without end": (
        {"steps"},
        {
            "after": "%big = arith.constant 1000000000 : index\n  %step = arith.constant 1 : index\n"
            "  scf.for %i = %c0 to %big step %step {}"
        },
    ),
    "dynamic: a loop that stands": (
        {"dynamic"},
        {"after": "scf.for %i = %c0 to %rows step %c0 {}"},
    ),
}


def build(case: dict) -> Kernel:
    """The kernel of a case."""
    holes = dict(case)
    prelude, override = holes.pop("prelude", ""), holes.pop("tile_override", "")
    buffers, cores = holes.pop("buffers", BUFFERS), holes.pop("cores", 32)
    made = text(**holes)
    if prelude:
        made = made.replace("  %scaled =", f"  {prelude}  %scaled =", 1)
    if override:
        made = made.replace("-d0 + 1 >= 0", override, 1)
    return kernel_from_text(made, buffers, cores=cores)
