"""Which store a URL names."""

from kvasir_router.options.spend_settings import SpendSettings
from kvasir_router.spend.open_spend import make_ledger
from kvasir_router.spend.redis_spend import RedisSpend
from kvasir_router.spend.sqlite_spend import SqliteSpend


async def test_the_url_names_the_store(tmp_path) -> None:
    assert make_ledger(SpendSettings(), "r") is None
    file = make_ledger(SpendSettings(f"sqlite:///{tmp_path}/x"), "r")
    assert isinstance(file.store, SqliteSpend)
    redis = make_ledger(SpendSettings("redis://127.0.0.1/0"), "r")
    assert isinstance(redis.store, RedisSpend)
    await redis.store.close()
