from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvasir.cli.conversation.chat_client import ChatClient, ChatError, ChatOptions
from kvasir.cli.conversation.chat_session import Session


@pytest.fixture
def session(server: Any) -> Iterator[Session]:
    with ChatClient(server.url) as client:
        yield Session(client, "tiny", "Be brief.", ChatOptions())


def said(*messages: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in (("system", "Be brief."), *messages)]


def test_the_conversation_is_sent_each_time_until_it_is_forgotten(
    session: Session, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["one", "", "two", "/nonsense x", "/reset", "three", "/exit", "never"])
    session.talk(lambda: next(lines))
    one, two = ("user", "one"), ("assistant", "you said one")
    assert [r["messages"] for r in server.requests] == [
        said(one),
        said(one, two, ("user", "two")),
        said(("user", "three")),
    ]
    captured = capsys.readouterr()
    assert captured.out == "you said one\nyou said two\nyou said three\n"
    assert "/nonsense is no command" in captured.err
    assert "Forgotten." in captured.err


def test_the_end_of_input_leaves(session: Session) -> None:
    def read() -> str:
        raise EOFError

    session.talk(read)


def test_an_interrupt_while_typing_stays(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs: Iterator[Any] = iter([KeyboardInterrupt(), "/exit"])

    def read() -> str:
        value = next(inputs)
        if isinstance(value, BaseException):
            raise value
        return str(value)

    session.talk(read)
    assert capsys.readouterr().err.count("Ctrl-C stops an answer") == 2


def test_an_error_is_told_and_the_message_taken_back(
    session: Session, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = 500
    lines = iter(["one", "/exit"])
    session.talk(lambda: next(lines))
    assert "answered 500" in capsys.readouterr().err
    assert session.messages == said()
    with pytest.raises(ChatError):
        session.say("one")


def test_what_was_answered_before_an_error_stays(session: Session, server: Any) -> None:
    server.events = ['data: {"choices": [{"delta": {"content": "half"}}]}', 'data: {"error": "x"}']
    with pytest.raises(ChatError):
        session.say("one")
    assert session.messages == said(("user", "one"), ("assistant", "half"))


def test_an_answer_cannot_drive_the_terminal(
    session: Session, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    server.events = [r'data: {"choices": [{"delta": {"content": "\u001b[2Ja\nb"}}]}']
    session.say("one")
    assert capsys.readouterr().out == "a\nb\n"
