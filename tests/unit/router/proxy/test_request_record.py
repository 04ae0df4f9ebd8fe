"""What a request's outcome says of its way."""

import time

import msgspec
import pytest

from kvasir_router.admission.ticket import Ticket
from kvasir_router.proxy.request_record import RequestRecord
from kvasir_router.telemetry.model_metrics import ModelMetrics
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.query import Query
from kvasir_router.wire.usage import Usage


class Clock:
    """time.monotonic, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


@pytest.fixture
async def choice(make_choice):
    """The choice of the replica `r0`."""
    return make_choice()[1]


@pytest.fixture
async def make(clock, make_choice):
    """A record of a request that comes now, of a client that resumes a stream or not."""

    def made(*, resumed: bool = False) -> RequestRecord:
        envelope = Envelope(resume=msgspec.Raw(b"true" if resumed else b""))
        model, _ = make_choice()
        return RequestRecord(Query(Request(), envelope), model, ModelMetrics(), Ticket(1, 2))

    return made


async def test_a_replicas_answer(make, choice, clock) -> None:
    record = make()
    record.status = 200
    clock.now = 101.0
    record.answered_by(choice)
    record.sent_bytes = 9
    clock.now = 103.0
    outcome = record.end(Usage(5, 6, 4))
    assert (outcome.status, outcome.replica_id, outcome.sent_bytes) == (200, "r0", 9)
    assert outcome.choice is choice
    assert outcome.usage == Usage(5, 6, 4)
    assert (outcome.first_byte, outcome.seconds, record.seconds) == (1.0, 3.0, 3.0)
    assert record.ended_at == outcome.ended_at == 103.0


async def test_an_answer_of_the_routers_own(make, clock) -> None:
    record = make()
    record.replica_id = "r1"
    clock.now = 102.0
    record.began(503)
    outcome = record.end(None)
    assert (outcome.status, outcome.replica_id, outcome.choice) == (503, "r1", None)
    assert outcome.first_byte == 2.0


async def test_a_stream_that_waited_begins_with_its_replicas_answer(make, choice, clock) -> None:
    record = make()
    clock.now = 101.0
    record.began(200)
    clock.now = 105.0
    record.answered_by(choice)
    assert record.end(None).first_byte == 5.0


async def test_without_an_answer_there_is_no_first_byte(make, clock) -> None:
    record = make()
    record.status = 499
    clock.now = 101.0
    assert record.end(None).first_byte == 0.0


async def test_what_a_resuming_client_says_of_the_cache_does_not_count(make) -> None:
    assert make(resumed=True).end(Usage(5, 6, 4)).usage == Usage(5, 6, None)
