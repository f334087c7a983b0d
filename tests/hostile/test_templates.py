"""Chat templates that would not end, fill the memory or leave their sandbox."""

from __future__ import annotations

import pytest

from tenonnx.errors import UnsupportedError
from tenonnx.text.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set count_turn = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'a' * 10000 }}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**9 }}",
        "{{ 2 ** (2 ** 40) }}",
        "{{ 'a' * none }}",
        "{{ lipsum(10**6) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include 'x' %}",
        "{{ " + "(" * 500 + "1" + ")" * 500 + " }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
    ],
    ids=lambda source: source[:40],
)
def test_refused(source: str) -> None:
    with pytest.raises(UnsupportedError, match="chat template"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_what_templates_do_is_admitted() -> None:
    source = """{% macro line(m) %}
<{{ m.role }}>{{ m.content }}
{% endmacro %}
{% for m in messages %}
{{ line(m) -}}
{% endfor %}
{{ '-' * 3 }}{{ 2 * 3 }}{{ 2 ** 10 }}{{ 1.5 * 2 }}"""
    assert ChatTemplate(source, {}).render(MESSAGES * 3) == "<user>hi\n" * 3 + "---610243.0"
