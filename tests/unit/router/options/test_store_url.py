import pytest

from kvasir_router.options.store_url import check_url, is_file


def test_a_file() -> None:
    assert check_url("sqlite:////data/responses") == "sqlite:////data/responses"
    assert is_file("sqlite:///responses")


@pytest.mark.parametrize("url", ["", "sqlite:///", "sqlite://x", "responses", "mysql://x"])
def test_others_are_refused_with_an_example(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form sqlite:///PATH, as sqlite:////data"):
        check_url(url)
