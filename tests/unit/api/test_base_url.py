"""Base URLs, as OpenAI's clients take them."""

import pytest

from kvasir.base_url import BaseURL, parse_base_url


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://api.example.com/v1", BaseURL("api.example.com", 443, True, "/v1")),
        ("https://api.example.com/v1/", BaseURL("api.example.com", 443, True, "/v1")),
        ("https://API.example.com", BaseURL("api.example.com", 443, True, "/v1")),
        ("http://a:8000/x/y", BaseURL("a", 8000, False, "/x/y")),
        ("http://[fd00::1]:80/", BaseURL("fd00::1", 80, False, "/v1")),
    ],
)
def test_parts(text: str, parts: BaseURL) -> None:
    assert parse_base_url(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example.com/v1",
        "ftp://a/v1",
        "https://",
        "https://a:0/v1",
        "https://a:x",
        "https://[a",
        "https://user:secret@a/v1",
        "https://a/v1?x=1",
        "https://a/v1#x",
        "https://a/v1?",
        "https://a/../b",
        "https://a/v1/.",
        "https://a//b",
        "https://a/v 1",
        "https://a/v1\r\nX: y",
        "https://ä/v1",
        "https://a/%2e%2e",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be of the form"):
        parse_base_url(text)
