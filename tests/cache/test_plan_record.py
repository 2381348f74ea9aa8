"""Plans from a shared cache are anybody's bytes: those that contradict themselves are refused before they are used."""

import msgspec
import pytest

from spyre_cache.codec import decode, encode
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.plan import PlanRecord
from spyre_cache.objects.program import ListTree, Program, Step
from spyre_cache.objects.target import TARGETS, Toolchain

TOOLS = Toolchain(
    backend="aot_inductor", backend_sources="a" * 64, torch="2.13.0", torch_git="b" * 40, torch_sources="c" * 64,
    cxx="g++ 12", flags=(),
)  # fmt: skip


def document(**changes):
    program = Program(
        name="forward", input_args=ListTree(items=()), input_kwargs=ListTree(items=()), arguments=(), slots=(),
        steps=(Step(fragment=0, inputs=(), outputs=()),), output=ListTree(items=()),
    )  # fmt: skip
    plan = PlanRecord(
        name="m", programs=(program,), fragments=(Digest.of(b"f"),), targets=(TARGETS["cpu/x86-64-v3"],),
        toolchain=TOOLS, weights=(), weight_mode="none", partition="", torch="2.13.0",
    )  # fmt: skip
    return msgspec.json.encode({**msgspec.json.decode(encode(plan)), **changes})


def fields(name):
    return msgspec.json.decode(document())[name]


def test_sound_plan_is_read_as_it_was_written():
    plan = decode(document(), PlanRecord)
    assert decode(encode(plan), PlanRecord) == plan


@pytest.mark.parametrize(
    "changes",
    [
        {"fragments": []},
        {"fragments": fields("fragments") * 2},
        {"targets": []},
        {"targets": fields("targets") * 2},
        {"targets": [{**fields("targets")[0], "name": "cpu/zzz\n\x1b[1m"}]},
        {"targets": [{**fields("targets")[0], "features": ["avx512f"]}]},
        {"programs": [{**fields("programs")[0], "steps": [{**fields("programs")[0]["steps"][0], "fragment": 99}]}]},
        {"programs": [{**fields("programs")[0], "steps": [{**fields("programs")[0]["steps"][0], "fragment": -1}]}]},
        {"schema": "plan/2"},
        {"actions": []},
    ],
    ids=str,
)
def test_plan_that_contradicts_itself_is_refused(changes):
    with pytest.raises(InvalidRecordError):
        decode(document(**changes), PlanRecord)
