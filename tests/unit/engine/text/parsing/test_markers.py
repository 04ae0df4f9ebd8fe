from __future__ import annotations

import pytest
from support.answer_texts import TOOLS, merged

from kvasir.text.tokenizer import Tokenizer
from kvasir_engine.text.detokenizer import make_detokenizer
from kvasir_engine.text.parsing.markers import MAX_MARKERS, MarkedDetokenizer, Markers
from kvasir_engine.text.parsing.message_parser import Parsing
from kvasir_engine.text.parsing.reasoning import PromptEnd
from kvasir_engine.text.parsing.tool_machine import ToolSet

CALL = '[TOOL_CALLS][{"name": "now", "arguments": {}}]'


def read(tokenizer: Tokenizer, ids: list[int]) -> dict[str, object]:
    parsing = Parsing.choose(tokenizer, None, tools="mistral", reasoning="none")
    parser = parsing.parser(ToolSet.of(TOOLS), PromptEnd())
    assert parser is not None
    detokenizer = MarkedDetokenizer(make_detokenizer(tokenizer), parsing.signs(with_tools=True))
    pieces = [piece for each in ids for piece in parser.push(detokenizer.push(each), last=False)]
    return merged([*pieces, *parser.push(detokenizer.flush(), last=True)])


def test_a_special_token_is_found_by_its_id_alone(marked_tokenizer: Tokenizer) -> None:
    ids = marked_tokenizer.encode(CALL)
    assert read(marked_tokenizer, ids)["calls"] == [["now", "{}", True]]
    spelt = [token for char in CALL for token in marked_tokenizer.encode(char)]
    assert read(marked_tokenizer, spelt) == {"content": CALL, "reasoning": "", "calls": []}


def test_a_marker_that_is_content_is_spelt_out(marked_tokenizer: Tokenizer) -> None:
    text = "é[TOOL_CALLS]é"
    assert read(marked_tokenizer, marked_tokenizer.encode(text))["content"] == text


def test_a_marker_that_is_no_token_is_text(tokenizer: Tokenizer) -> None:
    assert read(tokenizer, tokenizer.encode(CALL))["calls"] == [["now", "{}", True]]


def test_a_marker_ends_an_unfinished_character(marked_tokenizer: Tokenizer) -> None:
    first = marked_tokenizer.encode("é")[:1]
    ids = first + marked_tokenizer.encode(CALL)
    assert read(marked_tokenizer, ids) == {
        "content": "\ufffd",
        "reasoning": "",
        "calls": [["now", "{}", True]],
    }


def test_only_the_formats_in_use_have_signs(marked_tokenizer: Tokenizer) -> None:
    parsing = Parsing.choose(marked_tokenizer, None, tools="mistral", reasoning="none")
    assert len(parsing.signs(with_tools=True)) == 3
    assert not parsing.signs(with_tools=False)


def test_there_are_only_so_many_noncharacters(tokenizer: Tokenizer) -> None:
    from support.engine_server import byte_tokenizer

    made = byte_tokenizer()
    names = [f"<|m{number}|>" for number in range(MAX_MARKERS + 1)]
    made.backend.add_special_tokens(names)
    assert len(Markers(made, names[:-1]).by_id) == MAX_MARKERS
    with pytest.raises(ValueError, match="more than 32"):
        Markers(made, names)


def test_a_noncharacter_of_ordinary_tokens_is_no_marker(marked_tokenizer: Tokenizer) -> None:
    signs = Markers(marked_tokenizer, ("[TOOL_CALLS]",)).by_id
    detokenizer = MarkedDetokenizer(make_detokenizer(marked_tokenizer), signs)
    ids = marked_tokenizer.encode("é" + "".join(signs.values()))
    assert "".join(map(detokenizer.push, ids)) == "é\ufffd"
