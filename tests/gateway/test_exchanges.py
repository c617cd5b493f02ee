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


def claim(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]], *, retry: int = 0) -> Exchange[int]:
    return exchanges.claim("/v1/x", b"{}", retry=retry, begin=lambda: Exchange(begin()))


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
            assert claim(exchanges, begin, retry=1) is first
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
        assert claim(exchanges, begin, retry=1) is not failed
        assert exchanges.retries == 0

    run(test)


class Full(Exception):
    pass


def answered(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]], *, retry: int = 0) -> Exchange[int]:
    exchange = claim(exchanges, begin, retry=retry)
    with exchange.reading() as delivered:
        delivered()
    return exchange


def refused(exchanges: Exchanges[int], *, retry: int = 0, body: bytes = b"{}") -> None:
    def begin() -> Exchange[int]:
        raise Full

    with pytest.raises(Full):
        exchanges.claim("/v1/x", body, retry=retry, begin=begin)


def test_a_retry_of_one_that_was_refused_is_a_sample_of_its_own() -> None:
    """However often it was refused; the next retry is one of what was begun."""

    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = answered(exchanges, begin)
        refused(exchanges)
        refused(exchanges, retry=1)
        second = answered(exchanges, begin, retry=2)
        assert second is not first
        assert exchanges.retries == 0
        assert answered(exchanges, begin, retry=3) is second

    run(test)


def test_of_two_that_were_refused_before_any_was_begun_each_is_a_sample() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        refused(exchanges)
        refused(exchanges)
        assert answered(exchanges, begin, retry=1) is not answered(exchanges, begin, retry=1)

    run(test)


def test_of_refused_bodies_the_newest_are_remembered() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = answered(exchanges, begin)
        refused(exchanges)
        for number in range(1024):
            refused(exchanges, body=b"%d" % number)
        assert answered(exchanges, begin, retry=1) is first

    run(test)


def test_one_that_was_refused_until_it_gave_up_makes_no_sample_of_anothers_retry() -> None:
    """As the official clients do after two retries; whoever uses one then sends the request anew."""

    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        for retry in (0, 1, 2):
            refused(exchanges, retry=retry)
        anew = answered(exchanges, begin)
        assert answered(exchanges, begin, retry=1) is anew
        assert answered(exchanges, begin, retry=2) is anew
        assert exchanges.retries == 2

    run(test)


def test_a_retry_that_did_not_reach_us_is_one_of_what_was_refused_before_all_the_same() -> None:
    async def test(exchanges: Exchanges[int], begin: Callable[[], asyncio.Task[int]]) -> None:
        first = answered(exchanges, begin)
        refused(exchanges)
        refused(exchanges)
        refused(exchanges, retry=1)  # of the one, while that of the other is lost on its way
        second = answered(exchanges, begin, retry=2)
        third = answered(exchanges, begin, retry=2)
        assert len({id(each) for each in (first, second, third)}) == 3

    run(test)
