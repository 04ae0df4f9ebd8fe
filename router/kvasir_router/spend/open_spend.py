"""The store that the settings name."""

from pathlib import Path

from kvasir_router.options.spend_settings import SpendSettings
from kvasir_router.options.store_url import SQLITE, is_file
from kvasir_router.spend.spend_ledger import SpendLedger
from kvasir_router.spend.sqlite_spend import SqliteSpend


def make_ledger(settings: SpendSettings, router: str) -> SpendLedger | None:
    """Return the ledger of a process of `router`, not opened yet; None where no store is set."""
    if settings.url is None:
        return None
    if is_file(settings.url):
        store = SqliteSpend(Path(settings.url.removeprefix(SQLITE)), settings.days)
        return SpendLedger(store, router)
    # Imported here: its client costs a start 0.1 s.
    from kvasir_router.spend.redis_spend import RedisSpend

    return SpendLedger(RedisSpend(settings.url, settings.days), router)
