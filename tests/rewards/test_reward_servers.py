"""Several servers behind one reward: they share the requests, and one that fails is left alone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web
from pydantic import ValidationError
from reward_servers_running import NotedClock, opened, serving

from headrace.config.reward import RemoteRewardConfig
from headrace.experience.failures import FailureKind
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_servers import RequestRefused, RewardServer, RewardServers
from headrace.runtime.inline import SystemClock


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


def test_one_that_is_well_and_busy_is_asked_before_one_that_was_tried_and_whose_rest_is_over() -> None:
    servers = RewardServers(["a", "b"], 0.5)
    ask(servers, 0.0, fails=True)
    a, b = servers.all
    b.asked = 1
    assert servers.choose(31.0, (), {a}) is b
    assert servers.choose(31.0) is a, "that of the next sample"


def test_of_four_of_which_three_hang_all_are_asked() -> None:
    servers = RewardServers(["a", "b", "c", "d"], 0.5)
    servers.all[-1].asked = 1
    now = 0.0
    tried: list[RewardServer] = []
    for _ in servers.all:
        server = servers.choose(now, (), tried)
        assert server is not None
        tried.append(server)
        now += 30.0
        with pytest.raises(Down), servers.asked(server, lambda: now):  # noqa: B023
            raise Down
    assert tried == [*servers.all]


def test_who_was_cancelled_says_nothing_of_a_server() -> None:
    servers = RewardServers(["a"], 0.5)
    (a,) = servers.all
    with pytest.raises(asyncio.CancelledError), servers.asked(a, lambda: 0.0):
        raise asyncio.CancelledError
    assert (a.failures, a.asked) == (0, 0)


def test_one_that_refuses_what_it_is_asked_is_as_well_as_one_that_answers() -> None:
    servers = RewardServers(["a"], 0.5)
    (a,) = servers.all
    ask(servers, 0.0, fails=True)
    with pytest.raises(RequestRefused), servers.asked(a, lambda: 0.1):
        raise RequestRefused(FailureKind.REWARD_REMOTE, "status 422")
    assert (a.failures, servers.is_well(a, 0.1)) == (0, True)


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


def together(
    odd: Callable[[], Awaitable[web.Response]], clock: SystemClock, count: int = 8, **remote: object
) -> tuple[list[RewardOutcome], list[int]]:
    """What two servers give for so many samples, the one of number 3 of which is odd; and the sizes of the requests.
    `odd`: how a request with it is answered."""
    sizes: list[int] = []
    now, most = 0, 0

    async def judge(request: web.Request) -> web.Response:
        nonlocal now, most
        numbers = [sample["row"]["i"] for sample in (await request.json())["samples"]]
        sizes.append(len(numbers))
        if 3 in numbers:
            return await odd()
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return web.json_response({"rewards": numbers})

    async def play() -> list[RewardOutcome]:
        async with serving(judge) as a, serving(judge) as b:
            config = {"url": [a, b], "connections": 3, **remote}
            async with opened(clock, function="remote", remote=config) as pool:
                first = await asyncio.gather(*(pool.score("r", {"i": i}, "p") for i in range(count)))
                assert await pool.score("r", {"i": 9}, "p") == RewardOutcome(9.0)
                return first

    outcomes = asyncio.run(play())
    assert most <= 3, "requests at the same time"
    return outcomes, sizes


def gives(status: int, text: str = "") -> Callable[[], Awaitable[web.Response]]:
    async def odd() -> web.Response:
        return web.Response(status=status, text=text)

    return odd


@pytest.mark.parametrize(
    ("odd", "words", "whole"),
    [
        (gives(422), "answered with status 422", 2),
        (gives(413), "answered with status 413", 2),
        (gives(500), "status 500 (tried 2 times)", 3),
        (gives(200, "{}"), "gave no list of 1 rewards", 2),
    ],
)
def test_an_odd_sample_of_a_batch_fails_alone(
    odd: Callable[[], Awaitable[web.Response]], words: str, whole: int
) -> None:
    """`whole`: requests for the batch; then each sample is asked about, the odd one of both servers."""
    outcomes, sizes = together(odd, NotedClock(), retries=2)
    assert words in (outcomes[3].failure or "")
    del outcomes[3]
    assert outcomes == [RewardOutcome(float(i)) for i in (0, 1, 2, 4, 5, 6, 7)]
    assert sizes == [8] * whole + [1] * (9 + 1)


def test_one_that_hangs_fails_alone_within_the_time_of_all_tries() -> None:
    async def hangs() -> web.Response:
        await asyncio.sleep(60)
        raise AssertionError

    outcomes, sizes = together(hangs, SystemClock(), timeout_s=0.2, retries=3, backoff_s=0.01)
    assert (outcomes[3].failure or "").startswith("reward_timeout: waited 0.2 s for an answer of http://127.0.0.1")
    del outcomes[3]
    assert outcomes == [RewardOutcome(float(i)) for i in (0, 1, 2, 4, 5, 6, 7)]
    assert 1 <= sizes.count(8) <= 3, "the time of the last try is for asking one by one"


@pytest.mark.parametrize(("status", "asked"), [(401, 2), (404, 2), (429, 3)])
def test_what_is_no_fault_of_a_sample_is_not_asked_about_one_by_one(status: int, asked: int) -> None:
    outcomes, sizes = together(gives(status), NotedClock(), retries=2)
    assert all(f"status {status}" in (outcome.failure or "") for outcome in outcomes)
    assert sizes == [8] * asked + [1]


@pytest.mark.parametrize(
    ("status", "then"),
    [(400, "aba"), (422, "aba"), (401, "aaa"), (403, "aaa"), (404, "aaa"), (408, "aaa"), (429, "aaa"), (500, "aaa")],
)
def test_only_one_that_would_refuse_anything_is_left_alone(status: int, then: str) -> None:
    """Both answer the first sample by `status`. Where they rest for it, the one that is asked next is well again, and
    has all that follow."""
    answers: list[object] = [status, status]
    outcomes, asked = score(lambda name: answers.pop() if answers else 1.0, 4, retries=0, backoff_s=60)
    assert [outcome.value for outcome in outcomes] == [None, 1.0, 1.0, 1.0]
    assert "".join(asked) == "ab" + then
