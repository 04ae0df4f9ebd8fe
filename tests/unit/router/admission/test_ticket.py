"""What is set aside for a request, and what it used."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir_router.admission.limits import DAY, Allowance, KeyLimits
from kvasir_router.admission.ticket import Priority, Ticket, output_estimate, prompt_estimate
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.long_bodies.media import Media


@pytest.mark.parametrize(
    ("streamed", "sent", "output"),
    [
        (True, 0, 0),
        (True, 199, 0),
        (True, 200, 1),
        (True, 1000, 5),
        (False, 1000, 250),
        (False, 7, 1),
        (True, 10**9, 300),
        (False, 10**9, 300),
    ],
)
def test_bytes_of_an_answer_are_worth_tokens_up_to_what_was_allowed(
    streamed: bool, sent: int, output: int
) -> None:
    ticket = Ticket(70, 300)
    assert ticket.used_tokens(streamed=streamed, sent_bytes=sent) == (70, output)


@pytest.mark.parametrize(
    ("settled_at", "budget_used"),
    [
        (6.0, 100),
        (DAY + 6.0, 0),  # what was set aside yesterday is not given back today
    ],
)
def test_a_ticket_is_settled_once_by_prompt_and_output(
    settled_at: float, budget_used: float
) -> None:
    limits = KeyLimits(Allowance(tokens_per_minute=600, tokens_per_day=1000), 0.0)
    ticket = Ticket(70, 300, limits=limits, admitted=5.0)
    assert ticket.estimate == 370
    assert limits.admit(ticket.estimate, 0.0, ticket.admitted) is None
    ticket.settle(100, 1.0, settled_at)
    ticket.settle(100, 1.0, settled_at)
    _, bucket, budget = limits.parts
    assert bucket is not None
    assert budget is not None
    assert bucket.state == (100 - 10, 1.0), "a second has given back 10"
    assert budget.state == (budget_used, settled_at // DAY)


def test_a_prompt_is_estimated_from_its_bytes() -> None:
    assert [prompt_estimate(size) for size in (0, 3, 4, 400)] == [1, 1, 2, 101]


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 512),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_completion_tokens": 0, "max_tokens": 7}, 7),
        ({"max_output_tokens": 9}, 9),
        ({"max_tokens": 0}, 512),
        ({"max_tokens": -1}, 512),
        ({"max_tokens": True}, 512),
        ({"max_tokens": "7"}, 512),
        ({"max_tokens": 4095}, 4095),
        ({"max_tokens": 5000}, 4096),
        ({"max_tokens": 7, "n": 3}, 21),
        ({"max_tokens": 7, "n": 0}, 7),
        ({"max_tokens": 7, "n": 1.5}, 7),
        ({"max_tokens": 4000, "n": 2}, 4096),
    ],
)
def test_an_answer_is_estimated_from_what_it_may_be(fields: dict[str, Any], tokens: int) -> None:
    assert output_estimate(Envelope(**fields)) == tokens


@pytest.mark.parametrize(
    ("streamed", "sent", "seconds", "output"),
    [
        (False, 0, 1.5, 150),
        (False, 0, 0.019, 1),
        (False, 400, 0.5, 100),
        (False, 400, 1.5, 150),
        (False, 0, 10.0, 300),
        (True, 0, 1.5, 0),
        (True, 400, 1.5, 2),
    ],
)
def test_of_an_answer_that_comes_as_a_whole_time_is_worth_tokens(
    streamed: bool, sent: int, seconds: float, output: int
) -> None:
    ticket = Ticket(70, 300)
    used = ticket.used_tokens(streamed=streamed, sent_bytes=sent, seconds=seconds)
    assert used == (70, output)


def test_media_count_by_their_kind_and_not_by_their_bytes() -> None:
    media = Media(tokens=500, size=10_000)
    assert prompt_estimate(10_400, media) == 601
    assert prompt_estimate(9_000, media) == 501


def test_what_a_ticket_is_when_nothing_is_said() -> None:
    ticket = Ticket(1, 2)
    assert (ticket.tenant, ticket.key_id, ticket.priority, ticket.weight) == (
        *("", ""),
        *(Priority.DEFAULT, 1.0),
    )
    assert (ticket.admitted, ticket.waits_since, ticket.charged) == (0, 0, 0)
    ticket.settle(5, 1.0, 2.0)


def test_classes_are_served_in_this_order() -> None:
    assert sorted(Priority) == [
        *(Priority.SYSTEM, Priority.INTERACTIVE, Priority.DEFAULT, Priority.BULK)
    ]
