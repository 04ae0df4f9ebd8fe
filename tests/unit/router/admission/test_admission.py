"""Who comes in, and what the others are told."""

import json
from contextlib import suppress

import pytest

from kvasir_router.admission.admission import (
    MAX_REFUSED_TENANTS,
    OTHERS,
    Admission,
    forbidden,
)
from kvasir_router.admission.keyring import Holder
from kvasir_router.admission.keys import ApiKey, KeyFile, dump_keys, hash_key
from kvasir_router.admission.limits import Allowance, KeyLimits
from kvasir_router.admission.ticket import OUTPUT_RESERVED_MAX, Priority, Ticket
from kvasir_router.discovery.specs import ModelSpec
from kvasir_router.fleet.model import Model
from kvasir_router.fleet.target import Target
from kvasir_router.policy.round_robin import RoundRobin
from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.long_bodies.media import Media
from kvasir_router.wire.responses import Answer, RefusalError

TARGET = Target(Model(ModelSpec("m"), RoundRobin(), 0))


def holder(**options) -> Holder:
    key = ApiKey(id="k", hash="a" * 64, tenant="t", **options)
    return Holder(key, KeyLimits(key.allowance, 0.0), "k")


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


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ({"requests_per_minute": 2}, 30),
        ({"requests_per_minute": 240}, 1),
        ({"requests_per_minute": 0.5}, 120),
        ({"tokens_per_minute": 613 * 7}, 9),
    ],
)
def test_the_time_to_wait_is_in_whole_seconds_and_never_none(monkeypatch, limit, seconds) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    who = holder(**limit)
    while isinstance(answer := admit(who), Ticket):
        pass
    assert f"try again in {seconds} s." in message(answer)["message"]
    assert b"Retry-After: %d\r\n" % seconds in answer.lines


def test_what_can_never_be_had_is_asked_for_again_tomorrow() -> None:
    key = ApiKey(id="k", hash="a" * 64, tenant="t")
    limits = KeyLimits(Allowance(requests_per_minute=0), 0.0)
    limits.admit(1, 0.0, 0.0)
    answer = admit(Holder(key, limits, "k"))
    assert b"Retry-After: 86400\r\n" in answer.lines
    assert "may use 0 requests a minute here" in message(answer)["message"]


async def test_refusals_are_counted_by_tenant_and_reason(tmp_path) -> None:
    path, told = tmp_path / "keys.yaml", []
    path.write_bytes(dump_keys(KeyFile(keys=(ApiKey(id="k", hash=hash_key(b"kv-k"), tenant="t"),))))
    admission = Admission(path, 1, told.append)
    assert admission.keyring is not None
    await admission.keyring.load()
    path.write_text("x")
    for _ in range(2):
        await admission.keyring.read_again()
    assert (told, admission.reads) == ([True, False, False], {"ok": 1, "refused": 2})

    for _ in range(2):
        with pytest.raises(RefusalError) as refusal:
            admission.holder(b"Bearer other")
    assert refusal.value.answer.status == 401
    assert refusal.value.answer.lines == b"WWW-Authenticate: Bearer\r\n"
    known = admission.holder(b"Bearer kv-k")
    assert known is not None
    assert message(admission.without_models(known))["message"] == (
        "The API key `k` may use no model."
    )
    assert admission.without_models(known).status == 403
    budget = holder(models=("m",), tokens_per_day=1)
    for name in ("m", "m", "m", "n"):
        with suppress(RefusalError):
            admission.admit(budget, Envelope(name), 400, name, TARGET)
    assert admission.refusals == {
        ("", "unauthorized"): 2,
        ("t", "forbidden"): 3,
        ("t", "tokens_per_day"): 2,
    }


def test_media_are_estimated_by_their_kind() -> None:
    ticket = Admission(None).admit(
        None, Envelope("m"), 40_400, "m", TARGET, Media(tokens=9, size=40_000)
    )
    assert ticket.prompt_tokens == 110


def test_a_long_name_is_cut_in_the_answer() -> None:
    answer = forbidden(holder(), "n" * 300)
    assert f"`{'n' * 256}`" in message(answer)["message"]
    assert message(answer)["param"] == "model"


def test_tenants_of_refusals_are_bounded() -> None:
    admission = Admission()
    for at in range(MAX_REFUSED_TENANTS + 5):
        who = Holder(
            ApiKey(id="k", hash="a" * 64, tenant=f"t{at}"), KeyLimits(Allowance(), 0.0), "k"
        )
        admission.without_models(who)
    assert len(admission.refusals) == MAX_REFUSED_TENANTS + 1
    assert admission.refusals[OTHERS, "forbidden"] == 5


def test_a_budget_counts_what_was_used_elsewhere() -> None:
    admission, spent = Admission(), {"k": 0}
    admission.count_elsewhere(lambda key, unix: spent[key])
    who = holder(tokens_per_day=1000)
    assert admission.admit(who, Envelope("m"), 400, "m", TARGET).limits is who.limits
    spent["k"] = 1000
    with pytest.raises(RefusalError) as refusal:
        admission.admit(who, Envelope("m"), 400, "m", TARGET)
    assert message(refusal.value.answer)["code"] == "insufficient_quota"
