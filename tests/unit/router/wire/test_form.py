"""Uploads as multipart forms: the model is a field."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forms import AUDIO, TYPE, form, part

from kvasir_router.wire.envelope import Envelope
from kvasir_router.wire.form import form_of, form_type, read_form, rename_form
from kvasir_router.wire.http_request import Request
from kvasir_router.wire.long_bodies.form_scan import FormError


def read(body: bytes, content_type: bytes = TYPE) -> Envelope:
    return read_form(form_of(body, content_type))


@pytest.mark.parametrize(
    "body",
    [
        form(part("model", b"m"), AUDIO),
        form(AUDIO, part("model", b"m")),
        form(AUDIO, part("stream", b"false"), part("model", b"m"), part("prompt", b"x" * 5000)),
        form(
            b"--xyz\r\nContent-Type: text/plain\r\n"
            b"content-disposition:form-data;name=model\r\n\r\nm\r\n"
        ),
        form(b'--xyz\r\nContent-Disposition: form-data; x="a"; name="model"\r\n\r\nm\r\n'),
        form(part("x", b"\r\n--xy\r\n--xyzz\r\n"), part("model", b"m")) + b"epilogue",
    ],
)
def test_the_model_is_found_wherever_it_is(body: bytes) -> None:
    envelope = read(body)
    assert (envelope.model, envelope.stream) == ("m", False)


@pytest.mark.parametrize("name", ["m", "another, longer name", "é"])
def test_a_model_is_renamed_and_nothing_else_changed(name: str) -> None:
    before, after = (AUDIO, part("model_name", b"c")), (part("prompt", b"c"), AUDIO)
    made = Request()
    made.body = form(*before, part("model", b"c"), *after)
    rename_form(made, form_of(made.body, TYPE), name)
    assert made.body == form(*before, part("model", name.encode()), *after)


def test_a_stream_is_asked_for_in_words() -> None:
    assert read(form(part("model", b"m"), part("stream", b"True"))).stream is True


def test_a_file_that_is_called_model_is_not_the_model() -> None:
    assert read(form(part("file", b"x", '; filename="model"'))).model is None


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="xyz"',
        b"Multipart/Form-Data;boundary=xyz",
        b"multipart/form-data; charset=utf-8; boundary=xyz",
    ],
)
def test_ways_to_write_the_boundary(content_type: bytes) -> None:
    assert read(form(part("model", b"m")), content_type).model == "m"


@pytest.mark.parametrize(
    ("body", "content_type", "word"),
    [
        (form(part("model", b"m")), b"multipart/form-data", "boundary"),
        (b"", TYPE, "begin"),
        (b"preamble\r\n" + form(part("model", b"m")), TYPE, "begin"),
        (part("model", b"m"), TYPE, "breaks off"),
        (b"--xyz\r\nno header\r\n--xyz--", TYPE, "breaks off"),
        (form(part("model", b"m"), part("model", b"n")), TYPE, "twice"),
        (form(part("model", b"m" * 5000), part("model", b"n")), TYPE, "twice"),
        (form(part('x"; name*="model', b"m")), TYPE, r"`name\*`"),
        (form(part("model", b"m", "\r\nX: " + "x" * 5000)), TYPE, "breaks off"),
        (form(part("model", b"m", ";" * 32)), TYPE, "Content-Disposition with more than 32"),
        (form(part("model", b"m")), TYPE + b";" * 32, "Content-Type with more than 32"),
        (form(part("model", b"m")), b"multipart/form-data; boundary=" + b"x" * 71, "70"),
        (form(part("model", b"\xff")), TYPE, "UTF-8"),
        (form(*[part("x", b"") for _ in range(65)]), TYPE, "64"),
        (form(part("file", b"\r\n--xyz?" * 300), part("model", b"m")), TYPE, "hold its boundary"),
    ],
)
def test_forms_that_are_refused(body: bytes, content_type: bytes, word: str) -> None:
    with pytest.raises(FormError, match=word):
        read(body, content_type)


def test_a_longer_name_than_any_model_s_is_none() -> None:
    assert not read(form(part("model", b"m" * 1025))).model


def test_a_broken_form_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FormError):
        read(b"--xyz\r\nno header\r\n--xyz--")
    assert caplog.records == []


PIECES = [b"--xyz", b"--", b"\r\n", b"\r\n\r\n", b"Content-Disposition: form-data; "]


@given(st.lists(st.sampled_from([*PIECES, b"name=", b"model", b'"', b";", b"a"])))
@settings(max_examples=200, deadline=None)
def test_any_body_is_read_or_refused(parts: list[bytes]) -> None:
    try:
        read(b"".join(parts))
    except FormError:
        return


def request(path: str, *lines: bytes) -> Request:
    made = Request()
    made.path, made.lines = path, list(lines)
    return made


def test_which_requests_are_forms() -> None:
    line = b"Content-Type: " + TYPE + b"\r\n"
    assert form_type(request("/v1/audio/transcriptions", line)) == TYPE
    assert form_type(request("/v1/images/edits", b"Accept: */*\r\n", line.lower())) == TYPE
    assert form_type(request("/v1/chat/completions", line)) is None
    assert form_type(request("/v1/audio/speech", line)) is None
    line = b"content-type: application/json\r\n"
    assert form_type(request("/v1/audio/translations", line)) is None
    assert form_type(request("/v1/audio/translations")) is None
