"""URLs of the places where responses are kept."""

SQLITE = "sqlite:///"


def is_file(url: str) -> bool:
    """Return whether the URL names a file, which one router alone can use."""
    return url.startswith(SQLITE)


def check_url(url: str) -> str:
    """Return the URL. Raises ValueError with a sentence."""
    if not (is_file(url) and len(url) > len(SQLITE)):
        raise ValueError(f"{url!r} is not of the form sqlite:///PATH, as sqlite:////data/responses")
    return url
