"""The store that the settings name."""

from pathlib import Path

from kvasir_router.kept_responses.response_store import ResponseStore, StoreLimits
from kvasir_router.kept_responses.sqlite_responses import SqliteResponses
from kvasir_router.options.response_settings import DAY_SECONDS, ResponseSettings
from kvasir_router.options.store_url import SQLITE, is_file


def make_store(settings: ResponseSettings) -> ResponseStore | None:
    """Return the store, not opened yet; None where none is set."""
    if settings.url is None:
        return None
    limits = StoreLimits(settings.days * DAY_SECONDS, settings.total_bytes, settings.per_key)
    if is_file(settings.url):
        return SqliteResponses(Path(settings.url.removeprefix(SQLITE)), limits)
    # Imported here: its client costs a start 0.1 s.
    from kvasir_router.kept_responses.redis_responses import RedisResponses

    return RedisResponses(settings.url, limits)
