"""URLs of the places where responses and spend are kept."""

from urllib.parse import urlsplit

SQLITE = "sqlite:///"
_REDIS = ("redis", "rediss")


def is_file(url: str) -> bool:
    """Return whether the URL names a file, which one router alone can use."""
    return url.startswith(SQLITE)


def check_url(url: str) -> str:
    """Return the URL. Raises ValueError with a sentence, which does not repeat what may hold a
    password."""
    if not (len(url) > len(SQLITE) if is_file(url) else _is_redis(url)):
        raise ValueError(
            "the URL must be of the form sqlite:///PATH, redis://HOST:PORT/DATABASE or "
            "rediss://HOST:PORT/DATABASE (TLS)"
        )
    return url


def _is_redis(url: str) -> bool:
    try:
        parts = urlsplit(url)
        database = parts.path.strip("/")
        named = parts.scheme in _REDIS and bool(parts.hostname) and parts.port != 0
        return named and (not database or database.isdigit())
    except ValueError:  # a port that is none
        return False
