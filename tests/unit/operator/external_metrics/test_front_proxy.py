from __future__ import annotations

from typing import Any

import pytest

from kvasir_operator.external_metrics.front_proxy import FrontProxy

PROXY = FrontProxy("pem", frozenset({"front-proxy"}), ("X-Remote-User",))
USER = {"X-Remote-User": "admin"}


def certificate(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "o"),), (("commonName", name),))}


@pytest.mark.parametrize(
    ("shown", "headers", "sent"),
    [
        (certificate("front-proxy"), USER, True),
        (certificate("kubelet"), USER, False),
        (certificate("front-proxy"), {}, False),
        (certificate("front-proxy"), {"X-Remote-User": ""}, False),
        ({}, USER, False),
        (None, USER, False),
    ],
)
def test_only_the_front_proxy_with_a_user_is_answered(shown, headers, sent) -> None:
    assert PROXY.sent(shown, headers) is sent


def test_without_names_every_certificate_of_the_authority_will_do() -> None:
    anyone = FrontProxy("pem", frozenset(), ("X-Remote-User",))
    assert anyone.sent(certificate("whoever"), USER)
    assert not anyone.sent(None, USER)
