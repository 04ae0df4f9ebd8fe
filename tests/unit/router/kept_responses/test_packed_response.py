import pytest

from kvasir_router.kept_responses.packed_response import pack, unpack


def test_both_parts_come_back_and_text_shrinks() -> None:
    response, items = b'{"text":"%b"}' % (b"word " * 1000), b"[]"
    content = pack(response, items)
    assert unpack(content) == (response, items)
    assert len(content) < len(response) / 10


@pytest.mark.parametrize("content", [b"", b"x", pack(b"a" * 99, b"b")[:-20]])
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(content)
