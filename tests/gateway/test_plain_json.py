"""What of a body is looked at closely: nothing that could be refused goes by."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from headrace.gateway.agents.plain_json import check_plain, is_surely_plain

TEXTS = st.text(max_size=8) | st.text(st.characters(categories=["Cs", "Nd"]), max_size=4)
VALUES = st.recursive(
    st.none() | TEXTS | st.floats() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


def refuses(value: Any) -> bool:
    try:
        check_plain(value)
    except ValueError:
        return True
    return False


@examples(max_examples=300, deadline=None)
@given(VALUES, st.booleans())
def test_what_is_surely_plain_is_not_refused(value: Any, escapes: bool) -> None:
    body = json.dumps(value, ensure_ascii=escapes).encode(errors="surrogatepass")
    if is_surely_plain(body):
        finite = json.loads(body, parse_constant=lambda name: 0)
        assert not refuses(finite)


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        (b'{"a": "\\ud83d\\ude00", "b": 1e20}', False),
        (b'{"a": "\\ud83d"}', True),
        (b'{"a": "\xed\xa0\x80"}', True),
        (b'{"a": 1e400}', True),
        (b'{"a": -1.5E+0400}', True),
        (b'{"a": ' + b"9" * 400 + b".0}", True),
        (b"[" * 64 + b"]" * 64, False),
        (b"[" * 66 + b"]" * 66, True),
        (b"[" * 900 + b"]" * 900, True),
        (b"[" + b"[]," * 100 + b"[]]", False),
    ],
)
def test_what_no_client_or_template_can_read_is_refused(body: bytes, refused: bool) -> None:
    assert refuses(json.loads(body)) == refused
    is_number = isinstance(value := json.loads(body), dict) and isinstance(value["a"], float)
    assert not (refused and is_surely_plain(body)) or is_number
