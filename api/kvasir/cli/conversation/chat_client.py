"""The part of OpenAI's API that a conversation needs, with errors that say what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 600.0
Message = dict[str, str]


class ChatError(Exception):
    """The server cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Sampling options of the answers; None leaves a value to the server."""

    temperature: float | None = None
    max_tokens: int | None = None


class AddressError(ChatError):
    """Address or API key that cannot be used as given."""


class ChatClient:
    """A server at `url`, with or without its /v1."""

    def __init__(self, url: str, api_key: str | None = None, *, verify: bool = True) -> None:
        """Without `verify` any certificate is good: for a tunnel that is authenticated itself.
        Raises AddressError."""
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise AddressError(f"--url {url!r} must begin with http:// or https://")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise AddressError("--api-key must be printable ASCII without line breaks")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT)
        try:
            self._http = httpx.Client(
                base_url=f"{self.url}/v1", headers=headers, timeout=timeout, verify=verify
            )
        except httpx.InvalidURL as error:
            raise AddressError(f"--url {url!r} is no address: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The models that the server has, without further names of one. Raises ChatError."""
        with self._errors():
            answer = self._http.get("/models")
            self._check(answer)
            try:
                return _distinct(answer.json()["data"])
            except (ValueError, KeyError, TypeError, AttributeError):
                raise ChatError(
                    f"{self.url} does not speak OpenAI's API: /v1/models is not a list of models"
                ) from None

    def stream(self, model: str, messages: list[Message], options: ChatOptions) -> Iterator[str]:
        """The answer to `messages`, piece by piece as it comes. Raises ChatError.

        Closing the iterator ends the request at the server.
        """
        body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.max_tokens is not None:
            body["max_tokens"] = options.max_tokens
        with (
            self._errors(),
            self._http.stream("POST", "/chat/completions", json=body) as answer,
        ):
            if answer.is_error:
                answer.read()
            self._check(answer)
            yield from _pieces(answer.iter_lines())

    def _check(self, answer: httpx.Response) -> None:
        if not answer.is_error:
            return
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ChatError(
                f"{self.url} refuses the API key; give another with --api-key or KVASIR_API_KEY"
            )
        raise ChatError(f"{self.url} answered {answer.status_code}: {_reason(answer)}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError:
            raise ChatError(
                f"nothing answers at {self.url}; start a server with kvasir up -f"
                " manifests/tiny.yaml, or name another with --url"
            ) from None
        except httpx.TimeoutException:
            raise ChatError(f"{self.url} does not answer in time") from None
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ChatError(f"the connection to {self.url} broke: {error}") from None


def _distinct(models: list[dict[str, Any]]) -> list[str]:
    """The first id of each model: an alias has the same `root` as the model's name."""
    first: dict[str, str] = {}
    for model in models:
        first.setdefault(str(model.get("root") or model["id"]), str(model["id"]))
    return list(first.values())


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    """Texts of a stream of chat completion chunks. Raises ChatError at an error event."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if data == line.strip() or not data:
            continue  # a comment, another field, or the end of an event
        if data == "[DONE]":
            return
        chunk = _json(data)
        if chunk.get("error"):
            raise ChatError(f"the answer ended with an error: {_message(chunk['error'])}")
        for choice in chunk.get("choices") or ():
            if text := (choice.get("delta") or {}).get("content"):
                yield text


def _json(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise ChatError(f"the answer is not a stream of JSON objects: {data[:80]!r}")
    return chunk


def _reason(answer: httpx.Response) -> str:
    try:
        return _message(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.reason_phrase


def _message(error: Any) -> str:
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(message).split())
