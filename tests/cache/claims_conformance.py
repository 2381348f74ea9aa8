"""What `Claims` promises, for any implementation: `pair` gives two of them that share one state."""

from __future__ import annotations

import threading
import time

import pytest

from spyre_cache.claims import Claim
from spyre_cache.errors import InvalidRecordError

K1, K2 = "1" * 64, "2" * 64


def claim(key=K1, state="queued", owner="t1", build="b1", **more):
    return Claim(action=key, state=state, owner=owner, build=build, **more)


class ClaimsConformance:
    """Subclasses give the fixture `pair`."""

    def test_absent_key_reads_as_none(self, pair):
        assert pair[0].read([K1])[K1] == (None, frozenset())

    def test_swap_of_absent_has_one_winner(self, pair):
        wins, barrier = [], threading.Barrier(8)

        def go(number):
            barrier.wait()
            if pair[number % 2].swap(K1, None, claim(owner=f"t{number}")):
                wins.append(f"t{number}")

        threads = [threading.Thread(target=go, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert pair[0].read([K1])[K1].claim.owner == wins[0]

    def test_swap_of_what_is_there_no_more_fails(self, pair):
        one, two = pair
        first, second = claim(), claim(owner="t2")
        assert one.swap(K1, None, first)
        assert two.swap(K1, first, second)
        assert not one.swap(K1, first, None)
        assert not one.swap(K1, None, first)
        assert one.swap(K1, second, None)
        assert two.read([K1])[K1].claim is None
        assert not two.swap(K1, second, None)

    def test_swap_many_gives_those_that_worked(self, pair):
        one, two = pair
        assert two.swap(K2, None, claim(K2))
        assert one.swap_many([(K1, None, claim()), (K2, None, claim(K2, owner="t9"))]) == {K1}
        assert two.read([K1, K2])[K2].claim.owner == "t1"

    def test_token_lives_until_its_time_and_stays_dead(self, pair):
        one, two = pair
        one.begin("t1", 0.3)
        assert two.alive(["t1", "t2"]) == {"t1"}
        assert one.renew(["t1"], 0.4) == set()
        time.sleep(0.6)
        assert two.alive(["t1"]) == set()
        assert one.renew(["t1"], 5) == {"t1"}
        assert two.alive(["t1"]) == set()

    def test_token_ended_is_dead_at_once(self, pair):
        one, two = pair
        one.begin("t1")
        one.end("t1")
        assert two.alive(["t1"]) == set()
        assert one.renew(["t1"]) == {"t1"}

    def test_token_is_renewed_through_another_handle(self, pair):
        one, two = pair
        one.begin("t1", 0.4)
        assert two.renew(["t1"], 5) == set()
        time.sleep(0.5)
        assert one.alive(["t1"]) == {"t1"}

    def test_detached_token_outlives_its_handle(self, pair):
        pair[0].begin("cancelled-b1", 5, detached=True)
        assert pair[1].alive(["cancelled-b1"]) == {"cancelled-b1"}

    def test_standing_names_the_living_of_owner_and_hedge(self, pair):
        one, two = pair
        one.begin("t1")
        one.begin("t2")
        one.swap(K1, None, claim(state="running", owner="t1", hedge="t2"))
        one.swap(K2, None, claim(K2, owner="t3"))
        found = two.read([K1, K2])
        assert found[K1].alive == {"t1", "t2"}
        assert found[K2].alive == frozenset()

    def test_clock_goes_forward(self, pair):
        before = pair[0].now()
        time.sleep(0.05)
        assert 0 < pair[1].now() - before < 5

    def test_epoch_stays(self, pair):
        assert pair[0].epoch() == pair[1].epoch() != ""

    def test_damaged_claim_reads_as_none_and_gives_way(self, pair, damage):
        one, two = pair
        one.swap(K1, None, claim())
        damage(K1, b'{"schema": "claim/9"}')
        assert two.read([K1])[K1].claim is None
        assert one.swap(K1, None, claim(owner="t5"))
        assert two.read([K1])[K1].claim.owner == "t5"

    def test_key_that_is_none_is_refused(self, pair):
        with pytest.raises(InvalidRecordError):
            pair[0].read(["../x"])
        with pytest.raises(InvalidRecordError):
            pair[0].begin("../x")
