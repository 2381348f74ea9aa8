from __future__ import annotations

import time

import pytest
import torch
from handmade import NO_KWARGS, args_tree, f32, kwargs_tree, program, slot, spec, tensor_argument, value_argument

from spyre_cache.objects import program as p
from spyre_cache.objects.fragment import Symbol
from spyre_runtime.bind import Binder
from spyre_runtime.errors import ArgumentError, InvalidProgramError
from spyre_runtime.overlap import overlap, repeats

POS = "POSITIONAL_OR_KEYWORD"


def two_tensors(**fields):
    return program(
        **{
            "arguments": (tensor_argument("args.0", 0, "x"), tensor_argument("args.1", 1, "ids")),
            "parameters": (("x", POS), ("ids", POS), ("mode", POS)),
            "defaults": (("mode", p.Plain(type="str", v="sum")),),
            "slots": (slot("input", f32(8, 6)), slot("input", spec("int64", 3))),
            **fields,
        }
    )


def bind(described, *args, **kwargs):
    values = [None] * len(described.slots)
    bound = Binder(described).bind(args, kwargs, values)
    return values, bound


X, IDS = torch.randn(8, 6), torch.tensor([1, 5, 7])


def test_call_as_recorded_fills_the_slots_without_a_copy():
    values, bound = bind(two_tensors(), X, IDS)
    assert values[0] is X
    assert values[1] is IDS
    assert not bound.originals


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X,), {"ids": IDS}), ((), {"ids": IDS, "x": X}), ((X, IDS), {"mode": "sum"}), ((X, IDS, "sum"), {})],
)
def test_call_by_name_or_position_or_with_a_default_is_the_same_call(args, kwargs):
    values, _ = bind(two_tensors(), *args, **kwargs)
    assert values[0] is X
    assert values[1] is IDS


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        (
            (X[:4], IDS),
            {},
            r"x is a tensor \(float32, shape \[8, 6\]\), but a tensor \(float32, shape \[4, 6\]\).*dynamic_shapes",
        ),
        ((X.double(), IDS), {}, "x is .*float64"),
        ((X, IDS.int()), {}, "ids is .*int64.* but .*int32"),
        ((X[None], IDS), {}, r"x is .*\[1, 8, 6\]"),
        ((X, [1, 5, 7]), {}, "ids is .*a list"),
        ((X, 3), {}, "ids is .*but 3"),
        ((X, None), {}, "ids is .*but None"),
        ((X,), {}, "ids is missing"),
        ((), {"ids": IDS}, "x is missing"),
        ((X, IDS, "sum", IDS), {}, "at most 3 positional arguments"),
        ((X, IDS), {"x": X}, "x came twice"),
        ((X,), {"index": IDS}, "no keyword 'index'.*x, ids, mode"),
        ((X, IDS, "max"), {}, "mode was left at its default 'sum'.*'max' came"),
        ((X.to_sparse(), IDS), {}, "the layout sparse_coo; pass a strided one"),
        ((X.to("meta"), IDS), {}, "on meta"),
        ((torch.nn.Buffer(X), IDS), {}, None),
        ((torch.nn.Parameter(X), IDS), {}, None),
    ],
)
def test_call_that_does_not_fit_is_refused_by_name(args, kwargs, words):
    if words is None:
        bind(two_tensors(), *args, **kwargs)
        return
    with pytest.raises(ArgumentError, match=words):
        bind(two_tensors(), *args, **kwargs)


def test_tensor_subclass_is_refused():
    class Marked(torch.Tensor):
        pass

    with pytest.raises(ArgumentError, match="subclasses are refused"):
        bind(two_tensors(), X.as_subclass(Marked), IDS)


def test_tensor_of_a_function_transform_is_refused():
    described = program(arguments=(tensor_argument("args.0", 0, "x"),), slots=(slot("input", f32(6)),))

    def call(x):
        return bind(described, x)[0][0]

    with pytest.raises(ArgumentError, match=r"x is .*torch.func transform"):
        torch.vmap(call)(X)


def test_scalar_of_another_value_or_type_is_refused_with_both_values():
    described = program(
        arguments=(tensor_argument("args.0", 0, "x"), value_argument("args.1", 2, "power")),
        slots=(slot("input", f32(2)),),
    )
    bind(described, torch.ones(2), 2)
    for other in (3, 2.0, True, None, torch.tensor(2)):
        with pytest.raises(ArgumentError, match="power was 2 when the entry was built"):
            bind(described, torch.ones(2), other)


def test_default_that_was_passed_when_built_may_be_left_out():
    described = program(
        arguments=(tensor_argument("args.0", 0, "x"), value_argument("args.1", "sum", "mode")),
        parameters=(("x", POS), ("mode", POS)),
        defaults=(("mode", p.Plain(type="str", v="sum")),),
        slots=(slot("input", f32(2)),),
    )
    values, _ = bind(described, torch.ones(2))
    assert values[0].shape == (2,)


def test_keywords_come_in_any_order_also_inside_dicts():
    described = program(
        arguments=tuple(tensor_argument(f"kwargs.{n}", i, n) for i, n in enumerate(["a", "b", "c"])),
        input_args=args_tree(0),
        input_kwargs=kwargs_tree(a=p.Leaf(v=0), extra=kwargs_tree(b=p.Leaf(v=1), c=p.Leaf(v=2))),
        parameters=(("a", "KEYWORD_ONLY"), ("extra", "KEYWORD_ONLY")),
        slots=tuple(slot("input", f32(2)) for _ in range(3)),
    )
    a, b, c = (torch.randn(2) for _ in range(3))
    values, _ = bind(described, extra={"c": c, "b": b}, a=a)
    assert [v is t for v, t in zip(values, (a, b, c), strict=True)] == [True] * 3
    with pytest.raises(ArgumentError, match="extra is a dict with the keys b, c"):
        bind(described, extra={"b": b}, a=a)
    with pytest.raises(ArgumentError, match="extra is a dict"):
        bind(described, extra=[b, c], a=a)


def test_variadic_arguments_are_bound_by_position():
    described = program(
        arguments=(tensor_argument("args.0", 0), tensor_argument("args.1", 1)),
        parameters=(("xs", "VAR_POSITIONAL"), ("kw", "VAR_KEYWORD")),
        slots=(slot("input", f32(2)), slot("input", f32(2))),
    )
    bind(described, torch.ones(2), torch.ones(2))
    with pytest.raises(ArgumentError, match=r"args.1 is missing"):
        bind(described, torch.ones(2))
    with pytest.raises(ArgumentError, match=r"args.2 was not passed"):
        bind(described, torch.ones(2), torch.ones(2), torch.ones(2))


@pytest.mark.parametrize(
    ("given_", "words"), [([X], "a list of 2"), ((X, X), "a list of 2"), ([X, X, X], "a list of 2, but a list of 3")]
)
def test_sequence_of_another_kind_or_length_is_refused(given_, words):
    described = program(
        arguments=(tensor_argument("args.0.0", 0), tensor_argument("args.0.1", 1)),
        input_args=p.TupleTree(items=(p.ListTree(items=(p.Leaf(v=0), p.Leaf(v=1))),)),
        slots=(slot("input", f32(8, 6)), slot("input", f32(8, 6))),
    )
    bind(described, [X, X])
    with pytest.raises(ArgumentError, match=words):
        bind(described, given_)


def symbolic():
    return program(
        arguments=(tensor_argument("args.0", 0, "x"), tensor_argument("args.1", 1, "mask")),
        slots=(slot("input", f32("s0", 6)), slot("input", f32("s0 // 2 + 1"))),
        symbols=(p.SymbolSource(symbol=Symbol(name="s0", min=2, max=40), slot=0, dim=0),),
        guards=(p.Guard(expr="s0 % 4 == 0", text="dim 0 of x is a multiple of 4"),),
    )


def test_symbolic_sizes_are_read_and_checked():
    values, bound = bind(symbolic(), torch.ones(8, 6), torch.ones(5))
    assert bound.sizes == {"s0": 8}
    assert values[0].shape == (8, 6)


@pytest.mark.parametrize(
    ("rows", "mask", "words"),
    [
        (1, 1, "dim 0 of x is from 2 to 40, but 1 came"),
        (44, 23, "dim 0 of x is from 2 to 40, but 44 came"),
        (10, 6, "dim 0 of x is a multiple of 4, but dim 0 of x = 10 came"),
        (8, 6, "dim 0 of mask is s0 // 2 .*= 5, but 6 came"),
    ],
)
def test_symbolic_size_out_of_range_or_against_a_guard_is_refused(rows, mask, words):
    with pytest.raises(ArgumentError, match=words):
        bind(symbolic(), torch.ones(rows, 6), torch.ones(mask))


def test_static_dim_beside_a_symbolic_one_is_checked():
    with pytest.raises(ArgumentError, match=r"shape \[s0, 6\]"):
        bind(symbolic(), torch.ones(8, 5), torch.ones(5))


BIG = torch.randn(9, 20)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(6, 8).t(),
        BIG[1:9, 5:11],
        BIG[:8, 0:12:2],
        torch.randn(6).expand(8, 6),
        torch.randn(8, 1).expand(8, 6),
        torch.randn(8, 6, dtype=torch.complex64).imag,
    ],
)
def test_tensor_that_lies_otherwise_is_copied_into_the_expected_strides(x):
    values, bound = bind(two_tensors(), x, IDS)
    assert values[0].stride() == (6, 1)
    assert torch.equal(values[0], x)
    assert bound.originals[0] is x


def test_negated_view_is_carried_out():
    x = torch.randn(8, 6, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    values, _ = bind(two_tensors(), x, IDS)
    assert not values[0].is_neg()
    assert torch.equal(values[0], x)


def test_strides_of_single_and_empty_dims_do_not_matter():
    described = program(arguments=(tensor_argument("args.0", 0),), slots=(slot("input", f32(1, 6)),))
    x = torch.randn(6, 1).t()
    values, bound = bind(described, x)
    assert values[0] is x
    assert not bound.originals
    described = program(arguments=(tensor_argument("args.0", 0),), slots=(slot("input", f32(0, 6)),))
    empty = torch.empty(6, 0).t()
    assert bind(described, empty)[0][0] is empty


def test_broadcast_strides_in_the_contract_refuse_what_lies_otherwise():
    described = program(
        arguments=(tensor_argument("args.0", 0, "x"),), slots=(slot("input", f32(4, 6, stride=(0, 1))),)
    )
    bind(described, torch.randn(6).expand(4, 6))
    with pytest.raises(ArgumentError, match="x was a broadcast view"):
        bind(described, torch.randn(4, 6))


def mutating():
    return program(
        arguments=(tensor_argument("args.0", 0, "count"), tensor_argument("args.1", 1, "x")),
        slots=(slot("input", f32(4)), slot("input", f32(4))),
        mutated_inputs=(0,),
    )


def test_written_argument_that_shares_memory_is_refused():
    base = torch.zeros(8)
    for pair in ((base[:4], base[2:6]), (base[:4], base[:4])):
        with pytest.raises(ArgumentError, match="count is written to, but shares memory with x"):
            bind(mutating(), *pair)
    bind(mutating(), base[:4], base[4:])


def test_written_argument_apart_in_one_matrix_is_accepted():
    base = torch.zeros(4, 2)
    _, bound = bind(mutating(), base[:, 0], base[:, 1])
    assert bound.copy_back == (0,)


def test_written_argument_whose_elements_share_memory_is_refused():
    with pytest.raises(ArgumentError, match="several of its elements share memory"):
        bind(mutating(), torch.zeros(1).expand(4), torch.zeros(4))


def test_written_argument_that_autograd_watches_is_refused():
    watched = torch.zeros(4, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"count is written to, but requires a gradient.*no_grad"):
        bind(mutating(), watched, torch.zeros(4))
    with torch.no_grad():
        bind(mutating(), watched, torch.zeros(4))
    with torch.inference_mode():
        made_inside = torch.zeros(4)
        bind(mutating(), made_inside, torch.zeros(4))
    with pytest.raises(ArgumentError, match="made in inference mode"):
        bind(mutating(), made_inside, torch.zeros(4))


def test_overlap_is_by_address_not_by_storage():
    base = torch.zeros(10)
    assert overlap(base[0:6:2], base[2:3])
    assert not overlap(base[0:6:2], base[1:6:2])
    assert not overlap(base[:0], base)
    assert overlap(base.view(torch.int8)[3:5], base[:2])
    assert not repeats(base.view(2, 5).t())
    assert repeats(base.as_strided((3, 3), (1, 1)))


def test_program_whose_trees_do_not_cover_its_arguments_is_refused():
    with pytest.raises(InvalidProgramError, match="the trees hold 1"):
        Binder(two_tensors(input_args=args_tree(1)))
    with pytest.raises(InvalidProgramError, match="twice"):
        Binder(two_tensors(input_args=p.TupleTree(items=(p.Leaf(v=0), p.Leaf(v=0)))))
    with pytest.raises(InvalidProgramError, match="does not exist"):
        Binder(two_tensors(slots=()))


def test_binding_a_few_tensors_takes_microseconds():
    binder = Binder(two_tensors(input_kwargs=NO_KWARGS))
    values = [None, None]
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(100):
            binder.bind((X, IDS), {}, values)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 30e-6
