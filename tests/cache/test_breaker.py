"""Whether something that may be away is asked: decisions by a clock that the test turns."""

from hypothesis import given
from hypothesis import strategies as st

from spyre_cache.stores.breaker import Breaker


def make(**options):
    return Breaker(**({"first": 1.0, "longest": 8.0, "chance": lambda: 1.0} | options))


def test_closed_breaker_allows_everybody():
    breaker = make()
    assert all(breaker.allows(now) for now in (0, 0, 1, 5))
    assert breaker.state(5) == "closed"


def test_failure_opens_it_for_a_while_and_is_an_outage_once():
    breaker = make()
    assert breaker.failed(10)
    assert not breaker.failed(10.1)  # asked before it opened
    assert breaker.state(10.5) == "open"
    assert not breaker.allows(10.9)
    assert breaker.away(10.5) == (0.5, 0.5)
    assert breaker.state(11) == "half-open"


def test_half_open_breaker_lets_one_try_and_the_others_wait():
    breaker = make()
    breaker.failed(0)
    assert breaker.allows(1)
    assert not breaker.allows(1)
    assert breaker.succeeded()
    assert breaker.state(1) == "closed"
    assert not breaker.succeeded()  # no outage to end


def test_failed_probes_make_the_waits_longer_up_to_a_bound():
    breaker, now, waits = make(), 0.0, []
    breaker.failed(now)
    for _ in range(6):
        since, wait = breaker.away(now)
        waits.append(wait)
        assert since == now
        now += wait
        assert breaker.allows(now)
        breaker.failed(now)
    assert waits == [1, 2, 4, 8, 8, 8]


def test_probe_that_gave_up_for_its_own_reasons_lets_the_next_try():
    breaker = make()
    breaker.failed(0)
    assert breaker.allows(1)
    breaker.unknown()
    assert breaker.allows(1)


def test_probe_that_never_came_back_lets_the_next_try_in_the_end():
    breaker = make(probe=60)
    breaker.failed(0)
    assert breaker.allows(1)
    assert not breaker.allows(60)
    assert breaker.allows(61)


def test_waits_are_drawn_between_half_and_all_of_their_length():
    for chance, wait in ((0.0, 0.5), (1.0, 1.0)):
        breaker = make(chance=lambda chance=chance: chance)
        breaker.failed(0)
        assert breaker.away(0)[1] == wait


@given(st.lists(st.tuples(st.floats(0, 20), st.sampled_from(["ask", "yes", "no", "unknown"])), max_size=60))
def test_whatever_happens_somebody_may_try_again_in_bounded_time(steps):
    breaker, now = make(chance=lambda: 0.7, probe=30), 0.0
    for wait, what in steps:
        now += wait
        match what:
            case "ask":
                breaker.allows(now)
            case "yes":
                breaker.succeeded()
                assert breaker.state(now) == "closed"
            case "no":
                breaker.failed(now)
                assert breaker.state(now) != "closed"
            case _:
                breaker.unknown()
    assert breaker.allows(now + 8 + 30)
