from pathlib import Path

import pytest

from kvasir_router.kept_responses.open_store import make_store
from kvasir_router.kept_responses.redis_responses import RedisResponses
from kvasir_router.kept_responses.sqlite_responses import SqliteResponses
from kvasir_router.options.response_settings import ResponseSettings


def test_without_a_url_nothing_is_kept() -> None:
    assert make_store(ResponseSettings()) is None


@pytest.mark.parametrize(
    ("url", "path"), [("sqlite:///a/b", "a/b"), ("sqlite:////data/responses", "/data/responses")]
)
def test_a_file_and_its_limits(url: str, path: str) -> None:
    store = make_store(ResponseSettings(url=url, days=2.0, per_key=7))
    assert isinstance(store, SqliteResponses)
    assert store._file.path == Path(path)
    assert (store._limits.seconds, store._limits.per_key) == (172800.0, 7)


async def test_a_server() -> None:
    store = make_store(ResponseSettings(url="redis://:secret@127.0.0.1:1/0", days=2.0))
    assert isinstance(store, RedisResponses)
    assert store._limits.seconds == 172800.0
    await store.close()
    assert "secret" not in repr(ResponseSettings(url="redis://:secret@x"))
