from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from kvasir.cli.conversation.chat_client import AddressError, ChatClient, ChatError, ChatOptions

HELLO = [{"role": "user", "content": "hello"}]


DEFAULT = ChatOptions()


def ask(url: str, options: ChatOptions = DEFAULT, api_key: str | None = None) -> list[str]:
    with ChatClient(url, api_key) as client:
        return list(client.stream("tiny", HELLO, options))


def test_an_answer_comes_in_pieces(server: Any) -> None:
    piece = '{"choices": [{"delta": {"content": "%s"}}]}'
    server.events = [
        ": a comment",
        'data: {"choices": [{"delta": {"role": "assistant"}}]}',
        "data: " + piece % "Hel",
        "data:" + piece % "lo",
        'data: {"choices": [], "usage": {"total_tokens": 3}}',
        "data: [DONE]",
        "data: " + piece % "never",
    ]
    assert ask(server.url) == ["Hel", "lo"]
    assert server.requests == [{"model": "tiny", "messages": HELLO, "stream": True}]


def test_options_and_key_are_sent(server: Any) -> None:
    ask(server.url + "/v1/", ChatOptions(temperature=0.0, max_tokens=5), api_key="secret")
    assert server.requests[0]["temperature"] == 0.0
    assert server.requests[0]["max_tokens"] == 5
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_models_without_their_aliases(server: Any) -> None:
    server.models = ["a", {"id": "b", "root": "b"}, {"id": "alias-of-b", "root": "b"}]
    with ChatClient(server.url) as client:
        assert client.models() == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b"{}", "refuses the API key; give another with --api-key or KVASIR_API_KEY"),
        (404, b'{"error": {"message": "no model\\n x"}}', "answered 404: no model x"),
        (500, b"<html>", "answered 500: Internal Server Error"),
        (429, b'{"error": "full"}', "answered 429: full"),
    ],
)
def test_an_error_answer(server: Any, status: int, body: bytes, message: str) -> None:
    server.status, server.body = status, body
    with pytest.raises(ChatError) as error:
        ask(server.url)
    assert str(error.value) == f"{server.url} {message}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('data: {"error": {"message": "it broke"}}', "the answer ended with an error: it broke"),
        ("data: nonsense", "the answer is not a stream of JSON objects: 'nonsense'"),
        ("data: [1]", "the answer is not a stream of JSON objects"),
    ],
)
def test_a_bad_event(server: Any, line: str, message: str) -> None:
    server.events = [line]
    with pytest.raises(ChatError, match=message):
        ask(server.url)


def test_an_answer_that_is_no_list_of_models(server: Any) -> None:
    server.models = [{"name": "x"}]
    with (
        ChatClient(server.url) as client,
        pytest.raises(ChatError, match="does not speak OpenAI's API"),
    ):
        client.models()


def test_a_url_without_a_scheme() -> None:
    with pytest.raises(ChatError, match="must begin with http:// or https://"):
        ChatClient("localhost:8080")


def test_a_url_that_is_no_address() -> None:
    with pytest.raises(AddressError, match="'http://a:x' is no address"):
        ChatClient("http://a:x")


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two\nlines"])
def test_a_key_that_is_no_header(key: str) -> None:
    with pytest.raises(AddressError, match="printable ASCII") as refusal:
        ChatClient("http://a", key)
    assert key not in str(refusal.value)


def test_nobody_listens(free_port: int) -> None:
    with pytest.raises(ChatError, match=rf"nothing answers at http://127.0.0.1:{free_port}; start"):
        ask(f"http://127.0.0.1:{free_port}")


def test_a_server_that_hangs_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with ChatClient(url) as client:
            stream = client.stream("m", HELLO, ChatOptions())

            def hang_up() -> None:
                connection, _ = listener.accept()
                connection.recv(10)
                connection.close()

            thread = threading.Thread(target=hang_up)
            thread.start()
            with pytest.raises(ChatError, match=f"the connection to {url} broke"):
                list(stream)
            thread.join()


def test_leaving_an_answer_ends_it_at_the_server(server: Any) -> None:
    server.endless = True
    with ChatClient(server.url) as client:
        stream = client.stream("tiny", HELLO, ChatOptions())
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert server.left.wait(30)
