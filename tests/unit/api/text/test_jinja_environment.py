"""The environment of chat templates: transformers' settings and additions, in a sandbox."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import jinja2
import pytest
from jinja2.exceptions import SecurityError

from kvasir.text.jinja_environment import environment


def render(source: str, **values: Any) -> str:
    return environment().from_string(source).render(**values)


def test_lines_of_statements_leave_no_blank() -> None:
    assert render("{% for x in [1, 2] %}\n  {% if x %}\n{{ x }}\n  {% endif %}\n{% endfor %}") == (
        "1\n2\n"
    )


def test_loops_can_be_left_and_continued() -> None:
    source = (
        "{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}"
        "{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"
    )
    assert render(source) == "023"


def test_generation_marks_pass_on_what_they_hold() -> None:
    assert render("a{% generation %}{{ x }}{% endgeneration %}c", x="b") == "abc"


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ x | tojson }}", x={"b": "<ü&>", "a": None}) == '{"b": "<ü&>", "a": null}'
    assert render("{{ x | tojson(indent=1, sort_keys=true) }}", x={"b": 1, "a": 2}) == (
        '{\n "a": 2,\n "b": 1\n}'
    )


def test_a_template_can_refuse_and_tell_the_day() -> None:
    with pytest.raises(jinja2.TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert render("{{ strftime_now('%j') }}") == datetime.now().strftime("%j")


def test_namespaces_and_dictionaries_work() -> None:
    source = "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}{{ dict(b=3)['b'] }}"
    assert render(source) == "23"
    assert render("{{ dict.fromkeys(['a'], 1) }}") == "{'a': 1}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__init__ = 1 %}",
        "{{ x.append(1) }}",
        "{{ dict.mro() }}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_what_leads_out_of_the_sandbox_is_refused(source: str) -> None:
    with pytest.raises((SecurityError, jinja2.UndefinedError)):
        render(source, x=[])


def test_there_is_one_environment() -> None:
    assert environment() is environment()
