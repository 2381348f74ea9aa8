"""Builds made by hand: of a fleet, dead, failed, hostile, huge. Deterministic, without a compiler."""

import msgspec

from spyre_build.builds import BuildAction, BuildRecord, Span, keep
from spyre_cache.codec import encode
from spyre_cache.objects.action import Action, ActionResult, Failure, OutputFile, Requires, Statistics
from spyre_cache.objects.fragment import (
    DESCRIPTION_TYPE,
    Description,
    FloatArg,
    Fragment,
    Graph,
    Input,
    Node,
    NodeOrigin,
    Output,
    Ref,
    TensorSpec,
)
from spyre_cache.objects.plan import PlanRecord
from spyre_cache.objects.program import ListTree, Program, Step, WeightEntry
from spyre_cache.objects.target import TARGETS, Toolchain

START = 1_800_000_000.0
X = TensorSpec(dtype="float32", shape=(2, 64), stride=(64, 1))


def fragment(number, op="aten::add.Scalar"):
    nodes = (
        Node(op=op, args=(Ref(v=0), FloatArg.of(number)), results=(X,)),
        Node(op="aten::relu.default", args=(Ref(v=1),), results=(X,)),
    )
    return Fragment(graph=Graph(inputs=(Input(kind="tensor", spec=X),), nodes=nodes, outputs=(Output(v=2, spec=X),)))


def toolchain(**changes):
    base = {
        "backend": "aot_inductor", "backend_sources": "a" * 64, "torch": "2.13.0", "torch_git": "b" * 40,
        "torch_sources": "c" * 64, "cxx": "g++ 12.2.0", "flags": ("-O3",),
    }  # fmt: skip
    return Toolchain(**(base | changes))


def action_of(found, target="cpu/x86-64-v3", **changes):
    return Action(fragment=found.digest(), target=TARGETS[target], toolchain=toolchain(**changes))


def result_of(cache, action, seconds=4.0, builder="somebody", failure=None, log="", size=4000):
    digest = cache.blobs.put((log or f"action {action.key()}\n$ g++ kernels.cpp\nlink: 0.50 s\n").encode())
    statistics = Statistics(
        seconds=seconds, codegen_seconds=seconds * 0.4, cxx_seconds=seconds * 0.45, link_seconds=seconds * 0.1,
        peak_rss_bytes=600 << 20,
    )  # fmt: skip
    if failure is not None:
        return ActionResult(
            action=action.key(), status="failed", failure=failure, log=digest, statistics=statistics, builder=builder
        )
    blob = cache.blobs.put(action.key().encode() * (size // 64))
    return ActionResult(
        action=action.key(), status="ok", outputs=(OutputFile(name="fragment.so", digest=blob),), log=digest,
        requires=Requires(arch="x86_64", features=(), torch_abi="2.13.0", device="cpu"), statistics=statistics,
        builder=builder,
    )  # fmt: skip


def describe(cache, found, module, file="model.py", line=10):
    origins = (
        NodeOrigin(module=module, op="aten::add.Scalar", source=f"{file}:{line} in forward"),
        NodeOrigin(module=module, op="aten::relu", source=f"{file}:{line + 3} in forward"),
    )
    blob = cache.blobs.put(encode(Description(fragment=found.digest(), origins=origins)))
    cache.statements.attach(found.digest(), DESCRIPTION_TYPE, blob)


def program(name, steps):
    return Program(
        name=name, input_args=ListTree(items=()), input_kwargs=ListTree(items=()), arguments=(), slots=(),
        steps=tuple(Step(fragment=i, inputs=(), outputs=()) for i in steps), output=ListTree(items=()),
    )  # fmt: skip


def plan_of(cache, fragments, actions, notes=()):
    record = PlanRecord(
        name="model", programs=(program("prefill", [0, 1, 1, 1, 2]), program("decode", [3, 1, 1, 4])),
        fragments=tuple(f.digest() for f in fragments),
        toolchain=actions[0].toolchain,
        weights=(WeightEntry(name="w", kind="parameter", dtype="float32", shape=(64, 64), stride=(64, 1)),),
        weight_mode="store", targets=(actions[0].target,), partition="blocks", torch="2.13.0", notes=notes,
    )  # fmt: skip
    return cache.blobs.put(encode(record))


NAMES = (
    "embed",
    "layers.0",
    "norm, head",
    "layers.0.attention",
    "head",
    "layers.0.experts.3.mlp",
    "vision.blocks.1",
    "pool",
)


def fleet(cache, **changes):
    """Eight actions over two workers: two hits, one waited, one failed; an older build differs in torch and a number."""
    fragments = [fragment(i) for i in range(8)]
    actions = [action_of(f) for f in fragments]
    with cache.blobs.batch():
        for number, found in enumerate(fragments):
            cache.blobs.put(found.encoded())
            describe(cache, found, NAMES[number], line=10 * number + 10)
    older = [action_of(fragments[2], torch="2.12.1"), action_of(fragment(0.5)), actions[0], actions[1]]
    cache.blobs.put(fragment(0.5).encoded())
    for action in older:
        cache.actions.describe(action)
        cache.actions.put(result_of(cache, action, 7.5, builder="20261129-120000-abcdef"))
    for action in actions:
        cache.actions.describe(action)
    failure = Failure(
        kind="unsupported", message="the C++ compiler refuses what was generated for this operator",
        nodes=(0, 1), ops=("aten::add.Scalar", "aten::relu.default"),
    )  # fmt: skip
    rows = [
        # queued, began, ended, seconds, worker, outcome
        None, None,
        (6.0, 6.2, 12.4, 6.0, "rack1-a", "compiled"), (6.0, 6.3, 10.5, 4.0, "rack1-b", "compiled"),
        (6.0, 12.5, 17.0, 4.4, "rack1-a", "compiled"), (6.0, 10.6, 15.9, 5.2, "rack1-b", "failed"),
        (6.0, 4.0, 9.0, 4.8, "rack2-c", "waited"), (6.0, 17.1, 20.3, 3.1, "rack1-a", "compiled"),
    ]  # fmt: skip
    noted = []
    for action, row in zip(actions, rows, strict=True):
        if row is None:
            noted.append(
                BuildAction(fragment=action.fragment, target=action.target.name, key=action.key(), outcome="hit")
            )
            continue
        queued, began, ended, seconds, worker, outcome = row
        log = "warning: 'x' may be used uninitialized\n" * 3 + "error: no matching function for call to 'add'\n"
        said = failure if outcome == "failed" else None
        result = cache.actions.put(result_of(cache, action, seconds, worker, said, log if said else ""))
        noted.append(
            BuildAction(
                fragment=action.fragment,
                target=action.target.name,
                key=action.key(),
                outcome=outcome,
                worker=worker,
                error=said.message if said else "",
                log=result.log,
                queued=START + queued,
                began=START + began,
                ended=START + ended,
            )
        )
    other = result_of(cache, actions[3], 4.0, "rack2-c", size=6400)
    cache.actions.put(other)
    spans = [
        ("import", 0, 1.2),
        ("capture", 1.2, 4.6),
        ("partition", 4.6, 5.0),
        ("lookup", 5.0, 5.9),
        ("compile", 5.9, 20.5),
        ("publish", 20.5, 21.0),
    ]
    record = BuildRecord(
        id="20270115-080000-c0ffee", started=START, spec="models/granite.py:build", name="granite:7", status="partial",
        actions=tuple(noted), plan=plan_of(cache, fragments, actions, ("the range of seq was narrowed to [2, 4096]",)),
        spans=tuple(Span(name=name, began=START + a, ended=START + b) for name, a, b in spans),
        summary={
            "entries": [{"name": "prefill", "calls": 5, "unique": 3}, {"name": "decode", "calls": 4, "unique": 3}],
            "peak_rss_bytes": {"plan": 436 << 20, "compile": 632 << 20}, "seconds": {"total": 21.0}, "failures": [], "notes": [],
        },
    )  # fmt: skip
    record = msgspec.structs.replace(record, **changes)
    keep(cache, record)
    return record


def hostile(text):
    """Every word of a build's record that a stranger may choose."""
    log_less = BuildAction(
        fragment=fragment(1).digest(), target=text, key="e" * 64, outcome="failed", error=text, worker=text,
        queued=START, began=START + 1, ended=START + 2,
    )  # fmt: skip
    return BuildRecord(
        id="hostile", started=START, spec=text, name=text, status="failed", manifest=text, error=text,
        actions=(log_less,), spans=(Span(name=text, began=START, ended=START + 3),),
        summary={
            "entries": [{"name": text, "calls": 1, "unique": 1}], "notes": [text],
            "failures": [{"action": "e" * 64, "error": text, "nodes": [text], "kind": text, "fragment": text, "target": text}],
        },
    )  # fmt: skip


def huge(count, workers=16):
    """A record of so many actions, every tenth of them a hit, over a fleet."""
    digests = [fragment(i).digest() for i in range(count)]
    actions = []
    for i, digest in enumerate(digests):
        key = f"{i:064x}"
        if i % 10 == 0:
            actions.append(BuildAction(fragment=digest, target="cpu/x86-64-v3", key=key, outcome="hit"))
            continue
        began = START + 6 + (i // workers) * 2.0
        actions.append(
            BuildAction(
                fragment=digest,
                target="cpu/x86-64-v3",
                key=key,
                outcome="failed" if i % 50 == 1 else "compiled",
                worker=f"worker-{i % workers:02}",
                queued=START + 5,
                began=began,
                ended=began + 1.9,
            )
        )
    end = max(a.ended for a in actions)
    spans = (Span(name="capture", began=START, ended=START + 5), Span(name="compile", began=START + 5, ended=end))
    return BuildRecord(
        id="huge", started=START, spec="x", name="huge", status="partial", actions=tuple(actions), spans=spans
    )
