from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spyre_cache.codec import Record, decode, encode
from spyre_cache.objects import program as p
from spyre_runtime.errors import InvalidProgramError, TypeUnknownError
from spyre_runtime.plain import from_plain, same, to_plain
from spyre_runtime.trees import UnsupportedValueError, build, flatten, plain_leaf


class Pair(NamedTuple):
    left: object
    right: object


@dataclasses.dataclass
class Box:
    content: object
    size: int = 0
    late: int = dataclasses.field(init=False, default=5)


class Holder(Record, frozen=True, kw_only=True):
    tree: p.Tree


def through_bytes(tree):
    return decode(encode(Holder(tree=tree)), Holder).tree


def flatten_tensors(value):
    leaves = []

    def leaf(path, item):
        if isinstance(item, torch.Tensor):
            leaves.append(item)
            return p.Leaf(v=len(leaves) - 1)
        return plain_leaf(path, item)

    return through_bytes(flatten(value, leaf)), leaves


PLAINS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.complex_numbers(), st.just(...), st.just(slice(1, None, -2)),
)  # fmt: skip
KEYS = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.booleans())
VALUES = st.recursive(
    PLAINS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.tuples(inner, inner).map(lambda t: Pair(*t)),
        inner.map(lambda v: Box(v, 3)),
    ),
    max_leaves=12,
)


def alike(a, b):
    """Equal in type, order and content, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Box):
        return alike([a.content, a.size, a.late], [b.content, b.size, b.late])
    return same(a, b)


@given(VALUES)
def test_value_survives_its_tree(value):
    tree, leaves = flatten_tensors(value)
    assert alike(build(tree, leaves, types=[Box, Pair]), value)


@given(PLAINS)
def test_plain_value_survives_its_record(value):
    assert same(from_plain(to_plain(value)), value)


@pytest.mark.parametrize("value", [torch.float16, torch.device("cpu"), torch.device("meta")])
def test_torch_words_survive_their_record(value):
    assert from_plain(to_plain(value)) == value


@pytest.mark.parametrize("value", [1 << 63, object(), {1}, "\ud800", type("Word", (str,), {})("x"), torch.zeros(1)])
def test_value_that_is_not_plain_has_no_record(value):
    assert to_plain(value) is None


@pytest.mark.parametrize(
    ("kind", "v"),
    [
        ("int", "1"),
        ("bool", 1),
        ("float", "1.5"),
        ("dtype", "float99"),
        ("device", "nonsense!"),
        ("bytes", "0"),
        ("slice", "1"),
        ("none", 1),
        ("complex", "00"),
    ],
)
def test_plain_record_that_contradicts_itself_is_refused(kind, v):
    with pytest.raises(InvalidProgramError, match=f"of type {kind} cannot be"):
        from_plain(p.Plain(type=kind, v=v))


def test_values_differ_by_type_and_sign_of_zero():
    assert not same(1, True)
    assert not same(1, 1.0)
    assert not same(0.0, -0.0)
    assert same(math.nan, math.nan)


def test_tensors_keep_their_places():
    a, b = torch.ones(2), torch.zeros(3)
    value = {"loss": None, "more": [a, (b, a), ()], "count": 3}
    tree, leaves = flatten_tensors(value)
    again = build(tree, leaves)
    assert again["more"][1][1] is a
    assert again == value


def test_torch_named_result_and_size_survive():
    value = (torch.max(torch.arange(6).view(2, 3), 0), torch.Size([2, 3]))
    tree, leaves = flatten_tensors(value)
    again = build(tree, leaves)
    assert type(again[0]) is type(value[0])
    assert torch.equal(again[0].indices, value[0].indices)
    assert again[1] == torch.Size([2, 3])
    assert type(again[1]) is torch.Size


def test_transformers_output_is_rebuilt_with_its_empty_fields():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    value = outputs.CausalLMOutputWithPast(logits=torch.ones(1), loss=None)
    tree, leaves = flatten_tensors(value)
    again = build(tree, leaves)
    assert type(again) is type(value)
    assert list(again) == ["logits"]
    assert again.loss is None
    assert build(tree, leaves, plain=True)["loss"] is None


def test_sizes_in_a_result_are_computed():
    tree = p.TupleTree(items=(p.SymLeaf(expr="s0 * 2"), p.Leaf(v=0)))
    assert build(tree, ["x"], sizes={"s0": 4}) == (8, "x")


def test_mutable_containers_are_fresh_in_every_build():
    tree, leaves = flatten_tensors([[], {}])
    first, second = build(tree, leaves), build(tree, leaves)
    assert first is not second
    assert first[0] is not second[0]


def test_class_that_is_not_imported_is_named_and_never_imported():
    tree = p.ObjectTree(kind="dataclass", cls="wave:Wave_read", fields=("x",), items=(p.Leaf(v=0),))
    code = (
        "import sys\nfrom spyre_cache.objects import program as p\nfrom spyre_runtime.trees import build\n"
        "from spyre_runtime.errors import TypeUnknownError\n"
        f"from spyre_cache.objects.program import *\ntree = {tree!r}\n"
        "try:\n    build(tree, [1])\nexcept TypeUnknownError as e:\n    print('wave' in sys.modules, 'wave:Wave_read' in str(e), 'types=' in str(e))"
    )
    env = {"PYTHONPATH": ":".join(x for x in sys.path if x)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.split() == ["False", "True", "True"]


def test_local_class_is_found_only_when_passed():
    @dataclasses.dataclass
    class Local:
        x: int

    tree, leaves = flatten_tensors(Local(3))
    with pytest.raises(TypeUnknownError, match="types="):
        build(tree, leaves)
    assert build(tree, leaves, types=[Local]) == Local(3)


@pytest.mark.parametrize(
    "cls",
    ["subprocess:Popen", "builtins:dict", "os:system", "os:environ", "builtins:type", "spyre_runtime.trees:Classes"],
)
@pytest.mark.parametrize("kind", ["dataclass", "namedtuple"])
def test_class_of_another_kind_is_never_called(cls, kind):
    tree = p.ObjectTree(kind=kind, cls=cls, fields=("args",), items=(p.Plain(type="str", v="x"),))
    with pytest.raises(TypeUnknownError):
        build(tree, [])


def test_dataclass_whose_fields_changed_is_refused():
    tree = p.ObjectTree(kind="dataclass", cls=f"{Box.__module__}:Box", fields=("content",), items=(p.Leaf(v=0),))
    with pytest.raises(TypeUnknownError, match="library version"):
        build(tree, [1], types=[Box])


@pytest.mark.parametrize(
    "value", [{1, 2}, type("L", (list,), {})(), type("D", (dict,), {})(), {torch.zeros(1): 1}, object()]
)
def test_unsupported_container_is_refused(value):
    with pytest.raises(UnsupportedValueError):
        flatten(value, plain_leaf)


def test_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(UnsupportedValueError, match="nested deeper"):
        flatten(value, plain_leaf)


def test_tree_nested_beyond_the_limit_is_refused():
    tree = p.Leaf(v=0)
    for _ in range(70):
        tree = p.ListTree(items=(tree,))
    with pytest.raises(InvalidProgramError, match="64 levels"):
        build(tree, [1])


def test_dict_tree_with_a_repeated_key_is_refused():
    key = p.Plain(type="str", v="a")
    with pytest.raises(InvalidProgramError, match="distinct keys"):
        build(p.DictTree(keys=(key, key), items=(p.Leaf(v=0), p.Leaf(v=0))), [1])
