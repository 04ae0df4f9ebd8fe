from __future__ import annotations

import msgspec

from kvasir_engine.server.openai import schema
from kvasir_engine.server.openai.schema import ChatBody, CompletionBody


def test_no_field_is_both_known_and_refused() -> None:
    chat, completion = set(ChatBody.__struct_fields__), set(CompletionBody.__struct_fields__)
    assert not chat & schema.UNSUPPORTED_FIELDS.keys()
    assert completion & schema.UNSUPPORTED_FIELDS.keys() == {"echo"}
    assert not schema.IGNORED_FIELDS & (chat | schema.UNSUPPORTED_FIELDS.keys())


def test_null_is_the_default_of_every_optional_field() -> None:
    nulls = dict.fromkeys(set(ChatBody.__struct_fields__) - {"messages"})
    body = msgspec.json.decode(msgspec.json.encode({"messages": [], **nulls}), type=ChatBody)
    assert body == ChatBody(messages=[])


def test_a_resume_without_a_word_is_from_the_beginning_of_an_opened_choice() -> None:
    resume = msgspec.json.decode(b"{}", type=schema.ResumeBody)
    assert (resume.output_token_ids, resume.sample_index, resume.sent_chars) == ([], 0, 0)
    assert (resume.opened, resume.finished) == (True, False)
