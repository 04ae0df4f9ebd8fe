"""Who comes in, and what the others are told."""

import json

import pytest

from kvasir_router.admission.admission import Admission
from kvasir_router.admission.keyring import Holder
from kvasir_router.admission.keys import ApiKey
from kvasir_router.admission.limits import KeyLimits
from kvasir_router.admission.ticket import OUTPUT_RESERVED_MAX, Priority, Ticket
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.target import Target
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.responses import Answer, RefusalError

TARGET = Target(Model(ModelSpec("m"), RoundRobin(), 0))


def holder(**options) -> Holder:
    key = ApiKey(id="k", hash="a" * 64, tenant="t", **options)
    return Holder(key, KeyLimits(key.allowance, 0.0))


def admit(who, *, size=400, **fields):
    """Return the ticket, or the answer of the refusal."""
    try:
        return Admission(None).admit(who, Envelope("m", **fields), size, "m", TARGET)
    except RefusalError as refusal:
        return refusal.answer


def message(answer: Answer) -> dict:
    return json.loads(answer.body)["error"]


def test_without_keys_everybody_comes_in() -> None:
    admission = Admission(None)
    assert admission.holder(b"") is None
    ticket = admit(None)
    assert (ticket.tenant, ticket.key_id, ticket.priority) == ("", "", Priority.DEFAULT)


def test_a_ticket_says_who_and_what_was_set_aside() -> None:
    ticket = admit(holder(priority="bulk", weight=3.0), max_tokens=50)
    assert (ticket.tenant, ticket.key_id) == ("t", "k")
    assert (ticket.priority, ticket.weight) == (Priority.BULK, 3.0)
    assert (ticket.prompt_tokens, ticket.output_tokens) == (101, 50)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 512),
        ({"max_tokens": 10}, 10),
        ({"max_tokens": 10, "max_completion_tokens": 20}, 20),
        ({"max_tokens": 10, "n": 3}, 30),
        ({"max_tokens": 10**9}, OUTPUT_RESERVED_MAX),
        ({"max_tokens": -5}, 512),
        ({"max_tokens": "many", "n": []}, 512),
        ({"max_tokens": True}, 512),
        ({"n": 10**9}, OUTPUT_RESERVED_MAX),
    ],
)
def test_output_is_estimated_within_bounds_whatever_the_body_says(fields, tokens) -> None:
    assert admit(None, **fields).output_tokens == tokens


def test_a_model_that_the_key_may_not_use_is_403() -> None:
    answer = admit(holder(models=("n",)))
    assert answer.status == 403
    assert message(answer)["type"] == "permission_error"
    assert "`m`" in message(answer)["message"]


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        ({"requests_per_minute": 1}, "rate_limit_exceeded"),
        ({"tokens_per_minute": 600}, "rate_limit_exceeded"),
        ({"tokens_per_day": 600}, "insufficient_quota"),
    ],
)
def test_a_limit_is_429_with_when_to_retry(limit, code) -> None:
    who = holder(**limit)
    assert isinstance(admit(who), Ticket)
    answer = admit(who)
    assert answer.status == 429
    assert message(answer)["code"] == code
    assert b"Retry-After: " in answer.lines
    [(name, number)] = limit.items()
    what, _, period = name.split("_")
    assert f"{number} {what} a {period}" in message(answer)["message"]


def test_settling_gives_back_what_was_not_used_and_only_once() -> None:
    who = holder(tokens_per_day=1000)
    ticket = admit(who, max_tokens=899)
    assert not isinstance(admit(who), Ticket)
    for _ in range(3):
        ticket.settle(100, 0.0, ticket.admitted)
    assert isinstance(admit(who, max_tokens=799), Ticket)
    assert not isinstance(admit(who), Ticket)
