"""YAML that hides mistakes or grows without bound is refused, with the line."""

from __future__ import annotations

import pytest

from kvasir.resource.yaml_documents import MAX_DOCUMENTS, YAMLDocumentError, read_documents


def test_documents_are_plain_data_in_order() -> None:
    text = "a: 1\n---\n---\n- {b: [x, 2.5, true, null]}\n"
    assert read_documents(text) == [{"a": 1}, None, [{"b": ["x", 2.5, True, None]}]]
    assert read_documents("") == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", r"line 4: key 'c' is given twice"),
        ("a: &x [1]\nb: *x\n", r"line 2: an alias \(\*name\) is not supported"),
        ("a: 1\n2: b\n", "line 2: a key must be a string; quote it"),
        ("a: 1\non: b\n", "line 2: a key must be a string"),
        ("a: [1\n", "line 2: not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "line 1: not valid YAML"),
        ("a: 2026-13-45\n", "a value is not valid YAML"),
        ("[" * 5000, "nested too deeply"),
        ("a\x00b", "not valid YAML"),
    ],
)
def test_what_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(YAMLDocumentError, match=sentence):
        read_documents(text)


def test_the_number_of_documents_is_bounded() -> None:
    assert len(read_documents("a: 1\n---\n" * (MAX_DOCUMENTS - 1) + "a: 1\n")) == MAX_DOCUMENTS
    with pytest.raises(YAMLDocumentError, match=f"more than {MAX_DOCUMENTS} documents"):
        read_documents("a: 1\n---\n" * MAX_DOCUMENTS + "a: 1\n")
