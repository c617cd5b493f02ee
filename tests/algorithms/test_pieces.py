"""A function of the user's in the place of a named one: whatever it does, the error is one, and says where."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.algorithms.pieces import PieceError, guarded


class Panic(BaseException):
    """As a Rust extension raises."""


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), Panic("a bound")])
def test_whatever_it_raises_is_one_error_that_names_it(error: BaseException) -> None:
    def mine(*_: Any) -> float:
        raise error

    with pytest.raises(
        PieceError, match=rf"^the loss raised {type(error).__name__}: .* \(at .*test_pieces.py:\d+\)$"
    ) as raised:
        guarded("the loss", mine, lambda result: None)(1.0)
    assert raised.value.__cause__ is error


def test_the_interrupt_of_who_runs_it_is_not_its_error() -> None:
    def mine(*_: Any) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded("the loss", mine, lambda result: None)(1.0)


def test_what_it_returns_is_complained_of() -> None:
    with pytest.raises(PieceError, match=r"^the loss returned .*; return a number$"):
        guarded("the loss", lambda: "x", lambda result: "return a number")()
