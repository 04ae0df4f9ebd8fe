"""What is read at the ends of streams."""

import json

import pytest

from kvasir_router.wire.stream_end import ENGINE_DEAD, HANDOVER, ContractEnd, ForeignEnd
from kvasir_router.wire.usage import Usage

USAGE = b'{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}'
COMMENT = b': kvasir {"u":%b}\n' % USAGE
TOKEN = b': kvasir {"i":0,"t":[5]}\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\n'


class TestContract:
    @pytest.mark.parametrize(
        ("last", "interruption"),
        [
            (b"data: [DONE]\n\n", ""),
            (b'data: {"error":{"message":"m","code":"generation_failed"}}\n\n', ""),
            (b'data: {"error":{"message":"m","code":"engine_dead"}}\n\n', ENGINE_DEAD),
            (b'event: handover\ndata: {"choices":[]}\n\n', HANDOVER),
        ],
    )
    def test_ends(self, last: bytes, interruption: str) -> None:
        end = ContractEnd()
        assert not end.whole
        passed = end.read(TOKEN + COMMENT + last)
        assert end.interruption == interruption
        assert passed == (TOKEN if interruption else TOKEN + COMMENT + last)
        assert end.usage == Usage(3, 2, 1)
        assert end.whole

    def test_a_models_text_is_never_taken_for_the_mark(self) -> None:
        text = ': kvasir {"u":{}}\nevent: handover\n'
        event = b'data: {"choices":[{"delta":{"content":%b}}]}\n\n' % json.dumps(text).encode()
        assert ContractEnd.mark not in event

    def test_a_handover_cut_at_its_size_is_still_not_passed(self) -> None:
        end = ContractEnd()
        assert end.read(TOKEN + COMMENT + b'event: handover\ndata: {"choices":[1,2') == TOKEN
        assert end.interruption == HANDOVER


class TestForeign:
    CHUNK = b'data: {"id":"x","choices":[],"usage":%b}\n\n' % USAGE
    EVENT = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":null}\n\n'
    DONE = b"data: [DONE]\n\n"

    def test_usage_that_nobody_asked_for_is_taken_out(self) -> None:
        end = ForeignEnd(strip=True)
        assert end.read(self.EVENT + self.CHUNK + self.DONE) == self.EVENT + self.DONE
        assert end.usage == Usage(3, 2, 1)

    def test_usage_that_was_asked_for_stays(self) -> None:
        end = ForeignEnd(strip=False)
        assert end.read(self.EVENT + self.CHUNK + self.DONE) == self.EVENT + self.CHUNK + self.DONE
        assert end.usage == Usage(3, 2, 1)

    def test_with_other_line_ends_and_spaces(self) -> None:
        chunk = b'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 1}}'
        end = ForeignEnd(strip=True)
        assert end.read(chunk + b"\r\n\r\ndata: [DONE]\r\n\r\n") == b"data: [DONE]\r\n\r\n"
        assert end.usage == Usage(4, 1, None)

    def test_of_a_response(self) -> None:
        end = ForeignEnd(strip=False)
        begun = b'event: response.created\ndata: {"response":{"usage":null}}\n\n'
        assert end.read(begun) == begun
        assert end.usage is None
        usage = b'{"input_tokens":3,"output_tokens":2}'
        end.read(b'event: response.completed\ndata: {"response":{"usage":%b}}\n\n' % usage)
        assert end.usage == Usage(3, 2, None)

    @pytest.mark.parametrize("last", [b'"output_tokens":2', b'"input_tokens":3,"output_tokens":2'])
    def test_of_a_message(self, last: bytes) -> None:
        end = ForeignEnd(strip=False)
        usage = b'{"input_tokens":3,"output_tokens":1}'
        end.read(b'event: message_start\ndata: {"message":{"usage":%b}}\n\n' % usage)
        end.read(b'event: message_delta\ndata: {"delta":{},"usage":{%b}}\n\n' % last)
        assert end.usage == Usage(3, 2, None)

    @pytest.mark.parametrize("event", [b'data: "usage"\n\n', b'data: {"usage"\n\n', b'"usage"\n\n'])
    def test_garbage_is_passed(self, event: bytes) -> None:
        end = ForeignEnd(strip=True)
        assert end.read(event) == event
        assert end.usage is None
