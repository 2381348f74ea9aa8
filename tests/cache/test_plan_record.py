"""Plans from a shared cache are anybody's bytes: those that contradict themselves are refused before they are used."""

import msgspec
import pytest

from spyre_cache.codec import decode, encode
from spyre_cache.digest import Digest
from spyre_cache.errors import InvalidRecordError
from spyre_cache.objects.plan import PlanAction, PlanRecord

KEY = "a" * 64


def document(**changes):
    plan = PlanRecord(
        name="m", programs=(), fragments=(Digest.of(b"f"),),
        actions=(PlanAction(fragment=0, target="cpu/x86-64-v3", action=KEY),),
        weights=(), weight_mode="none", targets=("cpu/x86-64-v3",), partition="", torch="2.13.0",
    )  # fmt: skip
    return msgspec.json.encode({**msgspec.json.decode(encode(plan)), **changes})


def test_sound_plan_is_read_as_it_was_written():
    assert encode(decode(document(), PlanRecord)) == encode(decode(encode(decode(document(), PlanRecord)), PlanRecord))


@pytest.mark.parametrize(
    "action",
    [
        {"fragment": 1, "target": "cpu/x86-64-v3", "action": KEY},
        {"fragment": -1, "target": "cpu/x86-64-v3", "action": KEY},
        {"fragment": 0, "target": "cpu/x86-64-v4", "action": KEY},
        {"fragment": 0, "target": "cpu/x86-64-v3", "action": "../../etc/passwd"},
        {"fragment": "0", "target": "cpu/x86-64-v3", "action": KEY},
    ],
)
def test_plan_about_what_it_does_not_have_is_refused(action):
    with pytest.raises(InvalidRecordError):
        decode(document(actions=[action]), PlanRecord)


def test_plan_of_another_version_is_refused():
    with pytest.raises(InvalidRecordError):
        decode(document(schema="plan/2"), PlanRecord)
