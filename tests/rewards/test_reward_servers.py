"""Several servers behind one reward: they share the requests, and one that fails is left alone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from pydantic import ValidationError
from reward_servers_running import NotedClock, opened, serving

from headrace.config.reward import RemoteRewardConfig
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_servers import RewardServers


class Down(Exception):
    pass


def ask(servers: RewardServers, now: float, *, fails: bool = False) -> str:
    """The address that is asked then."""
    server = servers.choose(now)
    assert server is not None
    try:
        with servers.asked(server, lambda: now):
            if fails:
                raise Down
    except Down:
        pass
    return server.url


def test_servers_that_are_well_take_turns() -> None:
    servers = RewardServers(["a", "b", "c"], 0.5)
    assert [ask(servers, 0.0) for _ in range(5)] == ["a", "b", "c", "a", "b"]


def test_the_least_busy_is_asked() -> None:
    servers = RewardServers(["a", "b"], 0.5)
    first = servers.choose(0.0)
    assert first is not None
    with servers.asked(first, lambda: 0.0):
        assert [ask(servers, 0.0) for _ in range(3)] == ["b", "b", "b"]


def test_one_that_fails_rests_twice_as_long_each_time_and_a_minute_at_most() -> None:
    servers = RewardServers(["a", "b"], 0.5)
    assert ask(servers, 0.0, fails=True) == "a"
    assert {ask(servers, 0.4) for _ in range(3)} == {"b"}
    assert ask(servers, 0.5, fails=True) == "a", "its rest of 0.5 s is over, and it is the one asked longest ago"
    assert {ask(servers, 1.4) for _ in range(3)} == {"b"}
    assert ask(servers, 1.5) == "a", "1 s; and it answers"
    a = servers.all[0]
    assert (a.failures, servers.is_well(a, 1.5)) == (0, True)
    for _ in range(40):
        with pytest.raises(Down), servers.asked(a, lambda: 10.0):
            raise Down
    assert a.rests_until == 70.0


def test_after_its_rest_one_request_at_a_time_asks_it() -> None:
    servers = RewardServers(["a", "b"], 0.5)
    ask(servers, 0.0, fails=True)
    assert ask(servers, 0.0) == "b"
    a = servers.choose(1.0)
    assert a is servers.all[0]
    with servers.asked(a, lambda: 1.0):
        assert {ask(servers, 1.0) for _ in range(3)} == {"b"}
    assert servers.is_well(a, 1.0)


def test_where_all_rest_the_first_whose_rest_ends_is_asked_and_rather_one_that_was_not() -> None:
    servers = RewardServers(["a", "b"], 0.5)
    ask(servers, 0.0, fails=True)
    ask(servers, 0.1, fails=True)
    a, b = servers.all
    assert servers.choose(0.2) is a
    assert servers.choose(0.2, tried={a}) is b
    assert servers.choose(0.2, without={a, b}) is None


def test_who_was_cancelled_says_nothing_of_a_server() -> None:
    servers = RewardServers(["a"], 0.5)
    (a,) = servers.all
    with pytest.raises(asyncio.CancelledError), servers.asked(a, lambda: 0.0):
        raise asyncio.CancelledError
    assert (a.failures, a.asked) == (0, 0)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ([], "url is an empty list; name an address"),
        (["http://x/a", "http://x/a"], "url names http://x/a twice"),
        (["http://x/a", "x/b"], "should match pattern"),
        (7, "an address \\(text; put it in quotes\\) or a list of these is wanted"),
    ],
)
def test_addresses_that_are_none_are_refused(url: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RemoteRewardConfig.model_validate({"url": url})


def test_how_long_all_tries_may_take() -> None:
    def longest(urls: object, retries: int) -> float:
        values = {"url": urls, "retries": retries, "timeout_s": 10, "backoff_s": 1}
        return RemoteRewardConfig.model_validate(values).longest_s

    assert longest("http://a", 2) == 3 * 10 + 1 + 2
    assert longest(["http://a", "http://b"], 2) == 3 * 10 + 1, "no pause before the second"
    assert longest(["http://a", "http://b", "http://c"], 0) == 3 * 10, "each is tried once"


def score(
    servers: Callable[[str], object], count: int, clock: NotedClock | None = None, **remote: object
) -> tuple[list[RewardOutcome], list[str]]:
    """What two servers, `a` and `b`, give for so many samples, one after another, and who was asked. `servers` of a
    name: the rewards of one, or its status."""
    from aiohttp import web

    asked: list[str] = []

    def of(name: str) -> Callable[[web.Request], object]:
        async def judge(request: web.Request) -> web.Response:
            asked.append(name)
            answer = servers(name)
            if isinstance(answer, int):
                return web.Response(status=answer)
            samples = (await request.json())["samples"]
            return web.json_response({"rewards": [answer] * len(samples)})

        return judge

    async def play() -> list[RewardOutcome]:
        async with serving(of("a")) as a, serving(of("b")) as b:  # type: ignore[arg-type]
            config = {"url": [a, b], "connections": 1, **remote}
            async with opened(clock or NotedClock(), function="remote", remote=config) as pool:
                return [await pool.score("r", {}, "p") for _ in range(count)]

    return asyncio.run(play()), asked


def test_two_servers_share_the_samples() -> None:
    outcomes, asked = score(lambda name: 1.0 if name == "a" else 0.5, 4)
    assert outcomes == [RewardOutcome(value) for value in (1.0, 0.5, 1.0, 0.5)]
    assert asked == ["a", "b", "a", "b"]


@pytest.mark.parametrize("status", [503, 404])
def test_one_that_fails_costs_no_sample_and_no_pause_and_is_skipped(status: int) -> None:
    clock = NotedClock()
    outcomes, asked = score(lambda name: status if name == "a" else 0.5, 4, clock, retries=0, backoff_s=60)
    assert outcomes == [RewardOutcome(0.5)] * 4
    assert asked == ["a", "b", "b", "b", "b"]
    assert clock.slept == []


def test_where_all_fail_the_sample_has_the_error_that_one_address_gives() -> None:
    clock = NotedClock()
    ((outcome,), asked) = score(lambda name: 500, 1, clock, retries=3, backoff_s=0.25)
    assert (outcome.failure or "").startswith("reward_remote: http://127.0.0.1")
    assert (outcome.failure or "").endswith("/judge: status 500 (tried 4 times)")
    assert sorted(asked) == ["a", "a", "b", "b"]
    assert clock.slept == [0.25, 0.5]


def test_where_all_refuse_the_sample_fails_at_once() -> None:
    ((outcome,), asked) = score(lambda name: 404, 1, retries=3)
    assert (outcome.failure or "").endswith("answered with status 404")
    assert asked == ["a", "b"]
