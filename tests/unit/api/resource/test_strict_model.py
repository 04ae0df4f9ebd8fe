"""Rules that are written once and hold in files and on API servers."""

import pytest

from kvasir.resource.strict_model import ExactlyOne, StrictModel

TWO = ExactlyOne("source", "object", "secretRef", "configMapRef")
THREE = ExactlyOne("source", "object", "secretRef", "configMapRef", "env")


class Part(StrictModel):
    """Fields of which one is to be given, beside another one."""

    secret_ref: str | None = None
    """A Secret."""

    config_map_ref: str | None = None
    """A ConfigMap."""

    env: str | None = None
    """A variable."""

    other: str = ""
    """Something beside."""


@pytest.mark.parametrize(
    ("fields", "of_two", "of_three"),
    [
        ({}, False, False),
        ({"secretRef": "a"}, True, True),
        ({"configMapRef": "", "other": "x"}, True, True),
        ({"secretRef": "a", "configMapRef": "b"}, False, False),
        ({"secretRef": "a", "env": "b"}, True, False),
        ({"env": "b"}, False, True),
        ({"secretRef": "a", "configMapRef": "b", "env": "c"}, False, False),
    ],
)
def test_exactly_one_of_the_fields_is_given(fields, of_two, of_three) -> None:
    part = Part.model_validate(fields)
    for those, good in ((TWO, of_two), (THREE, of_three)):
        if good:
            those.check(part)
        else:
            with pytest.raises(ValueError, match="source names one object: give "):
                those.check(part)


def test_the_rule_of_api_servers_says_the_same_sentence() -> None:
    assert TWO.rule == {
        "rule": "has(self.secretRef) != has(self.configMapRef)",
        "message": "source names one object: give either secretRef or configMapRef",
    }
    assert THREE.rule == {
        "rule": (
            "[has(self.secretRef), has(self.configMapRef), has(self.env)]"
            ".filter(it, it).size() == 1"
        ),
        "message": "source names one object: give exactly one of secretRef, configMapRef, env",
    }
