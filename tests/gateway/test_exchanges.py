"""Which request is a retry of which."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.gateway.agents.exchanges import Exchange, Exchanges


def run(test: Callable[[Exchanges[int], Callable[[], asyncio.Task[int]]], Awaitable[None]]) -> None:
    async def main() -> None:
        exchanges: Exchanges[int] = Exchanges()
        begun: list[asyncio.Task[int]] = []

        async def work(number: int) -> int:
            return number

        def begin() -> asyncio.Task[int]:
            begun.append(asyncio.get_running_loop().create_task(work(len(begun))))
            return begun[-1]

        await test(exchanges, begin)
        await asyncio.gather(*begun, return_exceptions=True)

    asyncio.run(main())


def claim(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]], *, retry: bool = False) -> Exchange[int]:
    return exchanges.claim("/v1/x", b"{}", says_retry=retry, begin=lambda: Exchange(begin()))


def test_two_at_once_are_two_samples_and_each_that_broke_is_found_once() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = claim(exchanges, begin)
        with first.reading():
            second = claim(exchanges, begin)
            assert second is not first
            with second.reading():
                pass
            with second.reading():  # it broke, and comes again
                assert claim(exchanges, begin) is not second
        assert claim(exchanges, begin) is first

    run(test)


def test_one_that_a_second_connection_took_is_not_broken_by_the_first() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = claim(exchanges, begin)
        with first.reading():
            assert claim(exchanges, begin, retry=True) is first
            with first.reading() as delivered:
                delivered()
        assert not first.is_broken
        assert claim(exchanges, begin) is not first
        assert exchanges.retries == 1

    run(test)


def test_what_failed_is_tried_again() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        async def fails() -> int:
            raise ValueError("no answer")

        failed = claim(exchanges, lambda: asyncio.ensure_future(fails()))
        with pytest.raises(ValueError):
            await failed.task
        assert claim(exchanges, begin, retry=True) is not failed
        assert exchanges.retries == 0

    run(test)


class Full(Exception):
    pass


def answered(
    exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]], *, retry: bool = False
) -> Exchange[int]:
    exchange = claim(exchanges, begin, retry=retry)
    with exchange.reading() as delivered:
        delivered()
    return exchange


def refused(exchanges: Exchanges[int], *, retry: bool = False, body: bytes = b"{}") -> None:
    def begin() -> Exchange[int]:
        raise Full

    with pytest.raises(Full):
        exchanges.claim("/v1/x", body, says_retry=retry, begin=begin)


def test_a_retry_of_one_that_was_refused_is_a_sample_of_its_own() -> None:
    """However often it was refused; the next retry is one of what was begun."""

    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = answered(exchanges, begin)
        refused(exchanges)
        refused(exchanges, retry=True)
        second = answered(exchanges, begin, retry=True)
        assert second is not first
        assert exchanges.retries == 0
        assert answered(exchanges, begin, retry=True) is second

    run(test)


def test_of_two_that_were_refused_before_any_was_begun_each_is_a_sample() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        refused(exchanges)
        refused(exchanges)
        assert answered(exchanges, begin, retry=True) is not answered(exchanges, begin, retry=True)

    run(test)


def test_of_refused_bodies_the_newest_are_remembered() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = answered(exchanges, begin)
        refused(exchanges)
        for number in range(1024):
            refused(exchanges, body=b"%d" % number)
        assert answered(exchanges, begin, retry=True) is first

    run(test)
