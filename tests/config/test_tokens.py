"""Tokens from environment variables."""

from __future__ import annotations

import pytest

from headrace.config import ConfigError
from headrace.config.values.tokens import token_of


@pytest.mark.parametrize(
    "token", ["abc\r", "abc\r\n", "abc\n", " abc", "abc ", "a\nb", "a\x00b", "a\x7f", "a\udcff", "\n"]
)
def test_one_that_no_header_has_is_refused_and_not_told(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"T": token})
    with pytest.raises(
        ConfigError, match=r"^engine\.token_env names T, which has white space at an end, or .*; correct"
    ) as told:
        token_of("engine.token_env", "T")
    assert "abc" not in str(told.value)


@pytest.mark.parametrize("token", ["abc", "a token", "a/b+c=", "é"])
def test_others_are_taken_as_they_are(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", token)
    assert token_of("engine.token_env", "T") == token


@pytest.mark.parametrize("given", [None, ""])
def test_none_is_told(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {} if given is None else {"T": given})
    with pytest.raises(ConfigError, match=r"^a\.key names T, which is not set; export it, or leave a\.key out$"):
        token_of("a.key", "T")
