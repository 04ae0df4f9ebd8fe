"""Answers that the router writes itself."""

import pytest

from kvasir_router.wire.responses import bearer_refusal


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("The token has expired.", b"The token has expired."),
        ('It must be "a" or `b`.', b"It must be 'a' or `b`."),
        ("a\r\nSet-Cookie: b\nc\0", b"a??Set-Cookie: b?c?"),
        ("back\\slash, \u00e9, \U0001f600\x7f", b"back?slash, ?, ??"),
    ],
)
def test_whatever_a_refusal_quotes_its_header_is_one_line(message: str, said: bytes) -> None:
    answer = bearer_refusal(401, message, "token_expired", "invalid_token")
    assert answer.lines == (
        b'WWW-Authenticate: Bearer error="invalid_token", error_description="%b"\r\n' % said
    )
    assert answer.status == 401
    assert b'"code":"token_expired"' in answer.body
