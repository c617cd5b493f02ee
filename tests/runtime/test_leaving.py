"""A coroutine that refuses to end is left, by whoever waits for it and by the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from headrace.runtime.leaving import ended_or_left


async def swallows() -> None:
    while True:
        with contextlib.suppress(BaseException):  # what a retry loop with a bare except does
            await asyncio.sleep(1000)


def test_it_is_left_after_the_grace_and_holds_up_nobody() -> None:
    left: list[bool] = []

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ended_or_left(swallows(), 0.1, lambda: left.append(True))
        assert left == [True]

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 5


def test_one_that_ends_gives_its_result_its_error_or_its_cancellation() -> None:
    ended: list[str] = []

    async def tidies() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.01)
            ended.append("tidied")

    async def gives() -> int:
        return 3

    async def fails() -> int:
        raise ZeroDivisionError

    async def main() -> None:
        assert await ended_or_left(gives(), 1.0, ended.clear) == 3
        with pytest.raises(ZeroDivisionError):
            await ended_or_left(fails(), 1.0, ended.clear)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ended_or_left(tidies(), 1.0, ended.clear)
        assert ended == ["tidied"]

    asyncio.run(main())
