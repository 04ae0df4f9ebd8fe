"""Bodies as they come: short ones in parts, long ones joined and read, all of them counted."""

import pytest

from kvasir_router.wire.http_request import BodyBudget, Request
from kvasir_router.wire.long_bodies.body_scan import SCANNED_BYTES
from kvasir_router.wire.long_bodies.received_body import ReceivedBody


@pytest.mark.parametrize("size", [0, 10, SCANNED_BYTES, SCANNED_BYTES + 1])
def test_a_body_is_its_parts(size: int) -> None:
    budget, request = BodyBudget(2**30), Request()
    body = ReceivedBody(budget)
    whole = bytes(at % 251 for at in range(size))
    for at in range(0, size, 1000):
        body.add(whole[at : at + 1000], request)
    assert body.size == budget.used == size
    body.finish(request)
    assert request.body == whole
    assert (request.buffer is not None) == (size > SCANNED_BYTES)
    body.give_back(size)
    assert budget.used == 0


def test_the_next_body_begins_before_the_last_is_given_back() -> None:
    budget, first, second = BodyBudget(2**30), Request(), Request()
    body = ReceivedBody(budget)
    body.add(b"one", first)
    body.finish(first)
    body.begin()
    body.add(b"three", second)
    assert (body.size, budget.used) == (5, 8)
    body.give_back(3)
    body.finish(second)
    assert (first.body, second.body, budget.used) == (b"one", b"three", 5)


def test_what_is_abandoned_counts_no_longer() -> None:
    budget, request = BodyBudget(2**30), Request()
    body = ReceivedBody(budget)
    body.add(b"x" * (SCANNED_BYTES + 1), request)
    body.abandon(request)
    assert budget.used == 0
    assert request.scan is None
