"""Work on tokens, which is off the event loop where there are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from headrace.runtime.protocol import Services

T = TypeVar("T")

LANE = "tokens"
_CHARACTERS_PER_TOKEN = 4
FEW = 2048
"""Tokens that are joined, or made from text, in about the 0.1 ms that it takes to hand work to a thread."""


def tokens_in(characters: int) -> int:
    """About how many tokens a text of that length has."""
    return characters // _CHARACTERS_PER_TOKEN


async def off_loop(services: Services | None, tokens: int, function: Callable[..., T], *args: Any) -> T:
    """What `function` gives; called at once if it is about few tokens, else on a lane. `services` None: at once."""
    if services is None or tokens < FEW:
        return function(*args)
    return await services.compute(LANE, function, *args)
