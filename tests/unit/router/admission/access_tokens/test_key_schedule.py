"""When keys are fetched, and until when they are good."""

from math import inf

import pytest
from support.token_issuer import EC_KEY, public_jwk

from kvasir_router.admission.access_tokens.issuers import Issuer
from kvasir_router.admission.access_tokens.key_schedule import ASKED_SECONDS, KeySchedule
from kvasir_router.admission.access_tokens.signing_keys import SigningKeys

KEYS = SigningKeys({"keys": [public_jwk(EC_KEY, "ES256")]}, ("ES256",))


@pytest.fixture
def schedule() -> KeySchedule:
    return KeySchedule(
        Issuer.model_validate(
            {
                "name": "sso",
                "issuer": "https://a.example",
                "audiences": ["a"],
                "tenants": [{"tenant": "*"}],
                "refresh_seconds": 100,
                "keep_seconds": 1000,
            }
        )
    )


def test_keys_are_fetched_at_once_and_then_now_and_then(schedule) -> None:
    assert schedule.due == -inf
    assert schedule.keys(0.0) is None
    schedule.begin(0.0)
    schedule.fetched(KEYS, 1.0)
    assert schedule.keys(1.0) is KEYS
    assert schedule.due == 101.0


def test_failures_keep_the_keys_for_a_bounded_time_and_are_repeated_ever_later(schedule) -> None:
    schedule.begin(0.0)
    schedule.fetched(KEYS, 0.0)
    pauses = []
    now = 100.0
    for _ in range(9):
        schedule.begin(now)
        schedule.failed(now)
        pauses.append(schedule.due - now)
        now = schedule.due
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert schedule.keys(1000.0) is KEYS
    assert schedule.keys(1000.1) is None
    schedule.begin(1001.0)
    schedule.fetched(KEYS, 1001.0)
    assert schedule.keys(1001.0) is KEYS
    schedule.begin(1101.0)
    schedule.failed(1101.0)
    assert schedule.due == 1102.0


def test_a_token_asks_for_keys_only_where_that_may_help(schedule) -> None:
    schedule.begin(0.0)
    assert schedule.ask(0.1)  # they come
    schedule.fetched(KEYS, 0.5)
    assert not schedule.ask(0.6)
    assert schedule.due == 100.5
    assert schedule.ask(ASKED_SECONDS)
    assert schedule.ask(ASKED_SECONDS + 1)
    assert schedule.due == ASKED_SECONDS
    schedule.begin(ASKED_SECONDS + 2)
    schedule.failed(ASKED_SECONDS + 3)
    assert schedule.ask(ASKED_SECONDS + 3.5)  # nobody knows
