"""The table of endpoints: each once, and nothing else is found."""

import pytest

from kvasir_router.wire.endpoints import ENDPOINTS, ONE_MODEL, UNKNOWN, endpoint_of


def test_each_path_has_one_row() -> None:
    paths = [row.path for row in ENDPOINTS]
    assert sorted(set(paths)) == sorted(paths)
    assert all(endpoint_of(row.path) is row for row in ENDPOINTS)


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"),
        *("/v1/score", "/score", "/v1/rerank", "/rerank", "/v2/rerank", "/pooling", "/classify"),
        *("/tokenize", "/detokenize", "/v1/audio/speech", "/v1/audio/transcriptions"),
        *("/v1/audio/translations", "/v1/images/edits", "/v1/messages"),
    ],
)
def test_what_engines_serve_to_clients_is_for_post(path: str) -> None:
    assert endpoint_of(path).methods == ("POST",)


@pytest.mark.parametrize("row", [row for row in ENDPOINTS if "POST" not in row.methods])
def test_what_the_router_answers_is_sent_nowhere(row) -> None:
    assert row.methods == ("GET", "HEAD")
    assert (row.body, row.prompt, row.usage) == ("none", "none", "none")
    assert (row.retried, row.resumed, row.hedged) == (False, False, False)


@pytest.mark.parametrize("row", ENDPOINTS)
def test_what_may_be_computed_twice_may_be_computed_again(row) -> None:
    assert row.retried or not row.hedged


def test_names_of_models_hold_slashes() -> None:
    assert endpoint_of("/v1/models/org/a") is endpoint_of("/v1/models/org%2Fa") is ONE_MODEL


@pytest.mark.parametrize(
    "path",
    ["", "*", "/", "/v1", "/v1/", "/V1/completions", "/v1/completions/", "/v1/complet%69ons"],
)
def test_another_spelling_is_another_path(path: str) -> None:
    assert endpoint_of(path) is UNKNOWN
