import pytest

from kvasir_router.options.store_url import check_url, is_file


@pytest.mark.parametrize(
    "url",
    [
        *(
            "sqlite:////data/responses",
            "sqlite:///responses",
            "redis://redis",
            "redis://[::1]:6379/1",
        ),
        *("rediss://user:secret@redis.example.com:6380/0", "redis://:secret@redis:6379"),
    ],
)
def test_files_and_servers(url: str) -> None:
    assert check_url(url) == url
    assert is_file(url) == url.startswith("sqlite:")


@pytest.mark.parametrize(
    "url",
    [
        *("", "sqlite:///", "sqlite://x", "responses", "mysql://x", "redis://", "redis://x/name"),
        *("redis://:secret@x:port/0", "http://x"),
    ],
)
def test_others_are_refused_without_their_password(url: str) -> None:
    with pytest.raises(ValueError, match="must be of the form sqlite:///PATH") as refused:
        check_url(url)
    assert "secret" not in str(refused.value)
