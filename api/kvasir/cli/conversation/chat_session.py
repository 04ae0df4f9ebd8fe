"""A conversation: what was said, and the loop that reads, sends and prints."""

from __future__ import annotations

import sys
from collections.abc import Callable

from kvasir.cli.conversation.chat_client import ChatClient, ChatError, ChatOptions, Message
from kvasir.cli.printable import printable

_HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer."


class Session:
    """A conversation with one model. Answers go to stdout, everything else to stderr."""

    def __init__(
        self, client: ChatClient, model: str, system: str | None, options: ChatOptions
    ) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._start)
        """The conversation so far, the system message first."""

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._start)

    def say(self, text: str) -> None:
        """Send `text` and print the answer as it comes. Raises ChatError and KeyboardInterrupt.

        What was answered until then stays in the conversation; without any, `text` goes too.
        """
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            for piece in self._client.stream(self._model, self.messages, self._options):
                pieces.append(piece)
                print(printable(piece), end="", flush=True)
        finally:
            if pieces:
                print(flush=True)
                self.messages.append({"role": "assistant", "content": "".join(pieces)})
            else:
                self.messages.pop()

    def talk(self, read: Callable[[], str]) -> None:
        """Read and answer until the user leaves. `read` raises EOFError at the end."""
        _note(f"{self._model} at {self._client.url}. {_HELP}")
        while True:
            try:
                text = read().strip()
            except EOFError:
                _note("")
                return
            except KeyboardInterrupt:
                _note(f"\n{_HELP}")
                continue
            if text == "/exit":
                return
            self._turn(text)

    def _turn(self, text: str) -> None:
        if text == "/reset":
            self.reset()
            _note("Forgotten.")
        elif text.startswith("/"):
            _note(f"{text.split()[0]} is no command. {_HELP}")
        elif text:
            try:
                self.say(text)
            except ChatError as error:
                _note(str(error))
            except KeyboardInterrupt:
                _note("(stopped)")


def _note(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
