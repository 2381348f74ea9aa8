from __future__ import annotations

import threading

import pytest
import torch
from handmade import (
    f32,
    fragment,
    linear,
    linear_program,
    node,
    program,
    put_manifest,
    ref,
    slot,
    state_input,
    tensor_argument,
    tensor_input,
    weight_entry,
)

from spyre_cache.digest import Digest
from spyre_cache.objects import program as p
from spyre_cache.objects.action import OutputFile, Requires
from spyre_cache.objects.manifest import Artifact
from spyre_runtime import load
from spyre_runtime.errors import (
    ArgumentError,
    ArtifactError,
    EntryError,
    IncompatibleHostError,
    InvalidFragmentError,
    InvalidProgramError,
    MissingPieceError,
    PolicyError,
    WeightsError,
)
from spyre_runtime.host import cpu_features, machine, torch_abi


@pytest.fixture
def params():
    torch.manual_seed(0)
    return torch.randn(4, 3), torch.randn(3)


def put_linear(cache, params, programs=None, **fields):
    w, b = params
    weights = (
        weight_entry(cache, "lin.weight", w, aliases=("head.weight",)),
        weight_entry(cache, "lin.bias", b, kind="buffer"),
    )
    return put_manifest(cache, programs or [linear_program()], [linear()], **{"weights": weights, **fields})


def eager(cache, digest, **options):
    return load(cache, digest, device="eager", **options)


def test_model_with_stored_weights_runs(cache, params):
    model = eager(cache, put_linear(cache, params))
    x = torch.randn(2, 4)
    assert torch.equal(model(x), x @ params[0] + params[1])
    assert torch.equal(model(x=x), model(x))
    assert model.entries == ("forward",)


def test_result_carries_no_gradient_and_autocast_does_not_reach_inside(cache, params):
    model = eager(cache, put_linear(cache, params))
    x = torch.randn(2, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert not y.requires_grad
    assert y.dtype is torch.float32


def test_state_dict_wins_over_stored_weights_by_name_or_alias(cache, params):
    digest = put_linear(cache, params)
    w, b = torch.randn(4, 3), torch.randn(3)
    x = torch.randn(2, 4)
    model = eager(cache, digest, weights={"head.weight": w, "lin.bias": b, "unused": b})
    assert torch.equal(model(x), x @ w + b)
    assert model.notes == (
        "the weights that the model stores are not used: others were given",
        "1 supplied tensor is not used by the model: unused",
    )


def test_repr_names_digest_device_entries_and_arguments(cache, params):
    digest = put_linear(cache, params)
    assert repr(eager(cache, digest)) == f"<LoadedModel blake3:{digest.short} on eager: forward(x)>"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lin.weight": None}, "lack 1 tensor that.*lin.weight"),
        (
            {"lin.weight": torch.zeros(3, 4)},
            r"lin.weight is a strided CPU tensor \(float32, shape \[4, 3\]\).*\[3, 4\]",
        ),
        ({"lin.weight": torch.zeros(4, 3).half()}, "float16"),
        ({"lin.weight": "text"}, "'text' came"),
    ],
)
def test_supplied_weight_that_is_missing_or_does_not_fit_is_named(cache, params, change, words):
    digest = put_linear(cache, params)
    state = {"lin.weight": params[0], "lin.bias": params[1], **change}
    with pytest.raises(WeightsError, match=words):
        eager(cache, digest, weights={k: v for k, v in state.items() if v is not None})


def test_external_weights_that_are_not_given_are_asked_for(cache, params):
    weights = (
        weight_entry(cache, "lin.weight", params[0], stored=False),
        weight_entry(cache, "lin.bias", params[1], persistent=False, kind="buffer"),
    )
    digest = put_linear(cache, params, weights=weights, weight_mode="external")
    with pytest.raises(WeightsError, match=r"built without its weights.*lin.weight.*weights="):
        eager(cache, digest)
    model = eager(cache, digest, weights={"lin.weight": params[0]})  # the buffer is in no state dict: as built
    x = torch.randn(2, 4)
    assert torch.equal(model(x), x @ params[0] + params[1])


def test_weight_with_unusual_strides_is_mapped_as_it_was(cache, params):
    w = params[0].t().contiguous().t()
    digest = put_linear(cache, (w, params[1]))
    x = torch.randn(2, 4)
    model = eager(cache, digest)
    assert torch.equal(model(x), x @ w + params[1])
    supplied = eager(cache, digest, weights={"lin.weight": params[0], "lin.bias": params[1]})
    assert torch.allclose(supplied(x), x @ params[0] + params[1], atol=1e-6)


def test_weight_blob_of_the_wrong_size_is_refused(cache, params):
    entry = p.WeightEntry(
        name="lin.weight",
        kind="parameter",
        dtype="float32",
        shape=(4, 3),
        stride=(3, 1),
        digest=cache.blobs.put(b"1234", raw=True),
    )
    digest = put_linear(cache, params, weights=(entry, weight_entry(cache, "lin.bias", params[1], kind="buffer")))
    with pytest.raises(InvalidProgramError, match="takes 48 bytes, but 4 are recorded"):
        eager(cache, digest)


def test_weight_blob_that_is_gone_is_a_missing_piece(cache, params):
    digest = put_linear(cache, params)
    cache.blobs.delete(weight_entry(cache, "x", params[0]).digest)
    with pytest.raises(MissingPieceError, match=r"lin.weight is not in this cache"):
        eager(cache, digest)


# --- results that own their memory ----------------------------------------------------------------------------------


def echo(cache, params):
    """Returns x, a view of x, y twice, the buffer and a view of the weight."""
    views = fragment(
        [tensor_input(f32(2, 4)), tensor_input(f32(4, 3)), tensor_input(f32(3))],
        [
            node("aten::slice.Tensor", ref(0), 1, 1, 3, results=f32(2, 2, stride=(4, 1))),
            node("aten::mm.default", ref(0), ref(1), results=f32(2, 3)),
            node("aten::t.default", ref(1), results=f32(3, 4, stride=(1, 3))),
        ],
        [3, 4, 5],
    )
    described = program(
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(
            slot("input", f32(2, 4)),
            slot("weight", f32(4, 3), "lin.weight"),
            slot("buffer", f32(3), "lin.bias"),
            slot("temp", f32(2, 2, stride=(4, 1)), aliased=0),
            slot("temp", f32(2, 3)),
            slot("temp", f32(3, 4, stride=(1, 3)), aliased=1),
        ),
        steps=(p.Step(fragment=0, inputs=(0, 1, 2), outputs=(3, 4, 5)),),
        output=p.TupleTree(items=tuple(p.Leaf(v=v) for v in (0, 3, 4, 4, 2, 5, 1))),
    )
    weights = (weight_entry(cache, "lin.weight", params[0]), weight_entry(cache, "lin.bias", params[1], kind="buffer"))
    return put_manifest(cache, [described], [views], weights)


def test_results_are_the_callers_tensor_or_safe_to_write_to(cache, params):
    model = eager(cache, echo(cache, params))
    x = torch.randn(2, 4)
    out = model(x)
    assert out[0] is x
    assert out[2] is out[3]
    assert torch.equal(out[1], x[:, 1:3])
    assert torch.equal(out[5], params[0].t())
    for tensor in out[2:]:
        tensor.fill_(7)
    again = model(x)
    assert torch.equal(again[4], params[1])
    assert torch.equal(again[6], params[0])
    assert torch.equal(again[2], x @ params[0])


def test_input_that_was_copied_privately_is_still_returned_as_the_callers(cache, params):
    model = eager(cache, echo(cache, params))
    x = torch.randn(4, 2).t()
    assert model(x)[0] is x


# --- state and mutation -----------------------------------------------------------------------------------------------


def counter(cache):
    """Adds x to the state in place, returns the state; `read` returns it times two; both share it."""
    add = fragment(
        [state_input(f32(3)), tensor_input(f32(3))],
        [node("aten::add.Tensor", ref(0), ref(1), results=f32(3))],
        [2],
        mutations=[(0, 2)],
    )
    double = fragment([tensor_input(f32(3))], [node("aten::mul.Scalar", ref(0), 2, results=f32(3))], [1])
    step = program(
        name="step",
        arguments=(tensor_argument("args.0", 0, "x"),),
        slots=(slot("input", f32(3)), slot("state", f32(3), "total"), slot("temp", f32(3))),
        steps=(p.Step(fragment=0, inputs=(1, 0), outputs=(2,)),),
        output=p.TupleTree(items=(p.Leaf(v=2), p.Leaf(v=1))),
    )
    read = program(
        name="read",
        slots=(slot("buffer", f32(3), "total"), slot("temp", f32(3))),
        steps=(p.Step(fragment=1, inputs=(0,), outputs=(1,)),),
        output=p.TupleTree(items=(p.Leaf(v=1), p.Leaf(v=0))),
    )
    return put_manifest(
        cache, [step, read], [add, double], [weight_entry(cache, "total", torch.zeros(3), kind="buffer")]
    )


def test_state_lives_in_the_loaded_copy_and_is_shared_by_its_entries(cache):
    digest = counter(cache)
    model, other = eager(cache, digest), eager(cache, digest)
    x = torch.ones(3)
    for _ in range(3):
        total, state = model.entry("step")(x)
    assert torch.equal(total, 3 * x)
    state.fill_(99)  # the result is the caller's own
    doubled, _ = model.entry("read")()
    assert torch.equal(doubled, 6 * x)
    assert torch.equal(other.entry("read")()[0], torch.zeros(3))
    assert torch.equal(eager(cache, digest).entry("read")()[0], torch.zeros(3))


def test_state_of_a_model_loaded_in_inference_mode_is_written_outside_it_and_inside(cache):
    digest, x = counter(cache), torch.ones(3)
    with torch.inference_mode():
        model = eager(cache, digest)
        model.entry("step")(x)
    assert torch.equal(model.entry("step")(x)[0], 2 * x)


def test_state_under_many_threads_counts_every_call(cache):
    model = eager(cache, counter(cache))
    step, x = model.entry("step"), torch.ones(3)
    threads = [threading.Thread(target=lambda: [step(x) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(model.entry("read")()[0], 400 * x)


def swap(cache):
    """a, b = b, a in place, by write-backs."""
    nothing = fragment([tensor_input(f32(3))], [node("aten::neg.default", ref(0), results=f32(3))], [1])
    described = program(
        arguments=(tensor_argument("args.0", 0, "a"), tensor_argument("args.1", 1, "b")),
        slots=(slot("input", f32(3)), slot("input", f32(3)), slot("temp", f32(3))),
        steps=(p.Step(fragment=0, inputs=(0,), outputs=(2,)),),
        writebacks=(p.WriteBack(target=0, source=1), p.WriteBack(target=1, source=0)),
        mutated_inputs=(0, 1),
        output=p.ListTree(items=(p.Leaf(v=2), p.Leaf(v=0))),
    )
    return put_manifest(cache, [described], [nothing])


def test_write_backs_read_what_was_there_before_any_of_them(cache):
    model = eager(cache, swap(cache))
    a, b = torch.ones(3), torch.zeros(6)[::2]
    out = model(a, b)
    assert torch.equal(a, torch.zeros(3))
    assert torch.equal(b, torch.ones(3))
    assert out[1] is a


# --- entries and buckets ----------------------------------------------------------------------------------------------


def test_bucket_is_chosen_by_exact_match(cache, params):
    w, b = params
    weights = (weight_entry(cache, "lin.weight", w), weight_entry(cache, "lin.bias", b, kind="buffer"))
    programs = [
        linear_program(rows=rows, bucket=(("rows", rows),), steps=(p.Step(fragment=i, inputs=(0, 1, 2), outputs=(3,)),))
        for i, rows in enumerate((2, 5))
    ]
    model = eager(cache, put_manifest(cache, programs, [linear(2), linear(5)], weights))
    for rows in (5, 2, 5):
        assert model(torch.ones(rows, 4)).shape == (rows, 3)
    with pytest.raises(ArgumentError, match=r"buckets rows=2; rows=5, and the call fits none.*pad"):
        model(torch.ones(3, 4))


def test_entry_is_named_where_there_are_several(cache):
    model = eager(cache, counter(cache))
    with pytest.raises(EntryError, match="step, read"):
        model(torch.ones(3))
    with pytest.raises(EntryError, match="no entry is called 'wirte'; there are step, read"):
        model.entry("wirte")
    with pytest.raises(EntryError, match="no entry is called 'x'"):
        eager(cache, counter(cache), entry="x")
    assert eager(cache, counter(cache), entry="read").entries == ("read",)


# --- what is missing or does not fit ----------------------------------------------------------------------------------


def artifact(cache, **requires):
    base = {"arch": machine(), "features": (), "torch_abi": torch_abi(), "device": "cpu"}
    return Artifact(
        fragment=0,
        target="cpu/x86-64-v2",
        action="0" * 64,
        outputs=(OutputFile(name="fragment.so", digest=cache.blobs.put(b"no library", raw=True)),),
        requires=Requires(**{**base, **requires}),
    )


pytestmark_x86 = pytest.mark.skipif(machine() != "x86_64", reason="the manifests here are built for x86-64")


@pytestmark_x86
def test_fragment_without_artifact_is_a_missing_piece_that_is_named(cache, params):
    digest = put_linear(cache, params)
    with pytest.raises(MissingPieceError, match="has no artifact for cpu/x86-64-v2") as caught:
        load(cache, digest)
    assert caught.value.fragment == str(linear().digest())
    assert caught.value.target == "cpu/x86-64-v2"
    assert caught.value.exit_code == 3


@pytestmark_x86
def test_fetch_interprets_what_is_missing_with_one_warning(cache, params):
    digest = put_linear(cache, params)
    with pytest.warns(RuntimeWarning, match="interpreted") as caught:
        model = load(cache, digest, policy="fetch")
    assert len(caught) == 1
    x = torch.randn(2, 4)
    assert torch.equal(model(x), x @ params[0] + params[1])
    assert model.notes


@pytestmark_x86
@pytest.mark.parametrize(
    ("requires", "words"),
    [
        ({"arch": "aarch64"}, "needs aarch64"),
        ({"features": ("avx9000",)}, "the CPU lacks avx9000"),
        ({"torch_abi": "1.2.3"}, "needs torch 1.2.3"),
        ({"device": "spyre"}, "built for the device spyre"),
        ({"custom_ops": ("gone::op",)}, "gone::op is not registered"),
    ],
)
def test_artifact_that_needs_what_the_host_lacks_is_refused_before_it_is_mapped(cache, params, requires, words):
    digest = put_linear(cache, params, artifacts=[artifact(cache, **requires)])
    with pytest.raises(IncompatibleHostError, match=words):
        load(cache, digest)


@pytestmark_x86
def test_artifact_that_is_no_library_is_refused(cache, params):
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        load(cache, put_linear(cache, params, artifacts=[artifact(cache)]))


def test_model_for_other_machines_is_refused_with_the_remedy(cache, params):
    other = "cpu/aarch64" if machine() == "x86_64" else "cpu/x86-64-v3"
    with pytest.raises(IncompatibleHostError, match=r"this host runs none of them.*device='eager'"):
        load(cache, put_linear(cache, params, targets=(other,)))


def test_unknown_manifest_device_and_policy_are_refused(cache, params):
    digest = put_linear(cache, params)
    with pytest.raises(MissingPieceError, match="manifest"):
        eager(cache, Digest.of(b"nothing"))
    with pytest.raises(InvalidProgramError, match="not a Manifest"):
        eager(cache, cache.blobs.put(b"{}"))
    with pytest.raises(PolicyError, match="cpu, eager"):
        load(cache, digest, device="cuda")
    with pytest.raises(PolicyError, match="only a build compiles"):
        load(cache, digest, policy="build")


def test_fragment_blob_that_is_no_fragment_is_refused(cache, params):
    digest = put_linear(cache, params)
    manifest = cache.blobs.get(digest).replace(
        str(linear().digest().hash).encode(), cache.blobs.put(b"[]").hash.encode()
    )
    manifest = manifest.replace(f'"size":{linear().digest().size}'.encode(), b'"size":2')
    with pytest.raises(InvalidFragmentError, match="not a Fragment"):
        eager(cache, cache.blobs.put(manifest))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": (p.Step(fragment=3, inputs=(0, 1, 2), outputs=(3,)),)}, "there are 1"),
        ({"steps": (p.Step(fragment=0, inputs=(0, 1, 9), outputs=(3,)),)}, "slot 9"),
        ({"steps": (p.Step(fragment=0, inputs=(0, 1, 3), outputs=(3,)),)}, "reads slot 3, which is empty"),
        ({"steps": (p.Step(fragment=0, inputs=(0, 1, 2), outputs=(1,)),)}, "not an empty temporary"),
        ({"steps": (p.Step(fragment=0, inputs=(0, 1, 2), outputs=(3,), frees=(0,)),)}, "frees slot 0"),
        ({"steps": (p.Step(fragment=0, inputs=(0, 1, 2), outputs=(3,), frees=(3,)),)}, "result .* reads slot 3"),
        ({"output": p.Leaf(v=-1)}, "slot -1"),
        ({"writebacks": (p.WriteBack(target=1, source=3),)}, "goes to slot 1, a weight"),
        ({"output": p.SymLeaf(expr="s0 +")}, "size expression"),
        ({"guards": (p.Guard(expr="s5 < 2", text=""),)}, "s5, which no argument determines"),
    ],
)
def test_program_that_contradicts_itself_is_refused_at_load(cache, params, fields, words):
    with pytest.raises((InvalidProgramError, InvalidFragmentError), match=words):
        eager(cache, put_linear(cache, params, [linear_program(**fields)]))


def test_host_reads_its_own_features():
    assert machine()
    if machine() == "x86_64":
        assert "sse2" in cpu_features()
    assert torch_abi().count(".") == 2
