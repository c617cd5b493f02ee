"""Several rewards at once: sums, choice by row, whole groups; and a server that judges."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError
from reward_servers_running import Handler, NotedClock, opened, serving
from rollout_helpers import EOS, ScriptedEngine, chunk, ids, settings

from headrace.config import ConfigError
from headrace.config.reward import RewardConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.row_checks import check_rows, required_columns
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.single_turn import SingleTurn
from headrace.runtime.inline import SystemClock
from headrace.weights.version import INITIAL


def score(responses_and_rows: list[tuple[str, dict[str, Any]]], **config: Any) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        async with opened(**config) as pool:
            return await asyncio.gather(*(pool.score(response, row, "p") for response, row in responses_and_rows))

    return asyncio.run(play())


def test_terms_are_weighted_and_added(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def length(response, row): return len(response)")
    terms = [
        {"function": "numeric", "weight": 2.0},
        {"function": "regex", "weight": 0.5, "answer": "^<a>"},
        {"function": f"{tmp_path}/mine.py:length", "weight": -0.125},
    ]
    outcomes = score([("<a> 7", {"answer": "7"}), ("8", {"answer": "7"})], terms=terms)
    assert outcomes == [
        RewardOutcome(2.0 + 0.5 - 5 / 8, terms={"numeric": 1.0, "regex": 1.0, "length": 5.0}),
        RewardOutcome(-1 / 8, terms={"numeric": 0.0, "regex": 0.0, "length": 1.0}),
    ]


def test_a_term_of_weight_0_is_told_and_terms_of_one_function_are_told_apart() -> None:
    terms = [
        {"function": "regex", "answer": "a"},
        {"function": "numeric", "weight": 0.0},
        {"function": "regex", "answer": "b", "weight": 0.0},
    ]
    (outcome,) = score([("b 7", {"answer": "7"})], terms=terms)
    assert outcome == RewardOutcome(0.0, terms={"regex#1": 0.0, "numeric": 1.0, "regex#3": 1.0})


def test_one_term_that_fails_fails_the_sum_under_its_name() -> None:
    terms = [{"function": "exact"}, {"function": "numeric"}]
    (outcome,) = score([("seven", {"answer": "seven"})], terms=terms)
    assert (outcome.failure or "").startswith("reward_raised: numeric: ValueError: the answer 'seven' has no number")


BY_TASK: dict[str, Any] = {
    "terms": [
        {"function": "exact", "rows": ["word"]},
        {"function": "numeric", "rows": ["sum", "count"], "answer_column": "total"},
        {"function": "regex", "answer": "!$", "weight": 0.5},
    ],
    "choose_by": "task",
}


def test_the_row_chooses_its_terms() -> None:
    rows = [
        ("yes!", {"task": "word", "answer": "yes!"}),
        ("so 7.0", {"task": "sum", "total": 7}),
        ("so 7!", {"task": "count", "total": 7}),
        ("hm", {"task": "other"}),
    ]
    assert [outcome.value for outcome in score(rows, **BY_TASK)] == [1.5, 1.0, 1.5, 0.0]


def test_rows_are_checked_for_what_their_own_rewards_need() -> None:
    config = RewardConfig.model_validate(BY_TASK)
    assert required_columns(config) == ("task",)
    check_rows(config, [("row 1", {"task": "sum", "total": 7}), ("row 2", {"task": "other"})])
    with pytest.raises(ConfigError, match=r"row 3 has no value in column 'total', which its reward numeric needs"):
        check_rows(config, [("row 3", {"task": "sum", "answer": 7})])
    only = RewardConfig.model_validate({"terms": BY_TASK["terms"][:2], "choose_by": "task"})
    with pytest.raises(ConfigError, match=r"row 4 has task 'poem', and no reward is for that.* count, sum, word"):
        check_rows(only, [("row 4", {"task": "poem"})])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"terms": [{"function": "exact"}], "function": "numeric"}, "with terms, function would not be heeded"),
        ({"terms": [{"function": "exact", "rows": ["a"]}]}, "choose_by and the rows of terms go together"),
        ({"choose_by": "task"}, "choose_by and the rows of terms go together"),
        ({"function": "remote"}, r"remote and remote\.url go together"),
    ],
)
def test_configs_that_would_not_be_heeded_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RewardConfig.model_validate(config)


GROUP = """
def rank(responses, row, rewards):
    order = sorted(range(len(responses)), key=lambda i: len(responses[i]))
    return [float(order.index(i)) + (rewards[i] or 0) for i in range(len(responses))]

def short(responses, row): return [1.0]

def raises(responses, row): raise ValueError("no")
"""


def says_each(*texts: str) -> ScriptedEngine:
    return ScriptedEngine(*(lambda request, text=text: chunk([*ids(text), EOS]) for text in texts))


def play_group(tmp_path: Path, judge: str, **config: Any) -> Group:
    (tmp_path / "group.py").write_text(GROUP)

    async def play() -> Group:
        async with opened(group=f"{tmp_path}/group.py:{judge}", **config) as pool:
            runner = EpisodeRunner(
                workflow=SingleTurn(),
                policy=settings(says_each("7", "777", "77")),
                rewards=pool,
                group_rewards=pool,
                clock=SystemClock(),
                samples_per_prompt=3,
                episode_timeout_s=20.0,
            )
            return await runner.run_group(GroupKey(0, 3, 0), Prompt("p", "2+5=", {"answer": "77"}), INITIAL, 2)

    return asyncio.run(play())


@pytest.mark.parametrize("trusted", [False, True])
def test_a_group_s_function_sees_all_samples(tmp_path: Path, trusted: bool) -> None:
    group = play_group(tmp_path, "rank", trusted=trusted)
    by_length = {sample.response_tokens - 1: sample.reward for sample in group.samples}
    assert by_length == {1: 0.0, 2: 1.0, 3: 2.0}


def test_it_gets_the_rewards_of_the_samples(tmp_path: Path) -> None:
    group = play_group(tmp_path, "rank", function="exact")
    by_length = {sample.response_tokens - 1: sample.reward for sample in group.samples}
    assert by_length == {1: 0.0, 2: 2.0, 3: 2.0}, "the right one, 77, has 1 more"


@pytest.mark.parametrize(
    ("function", "failure"),
    [("short", "reward_nan: returned 1 rewards for 3 samples"), ("raises", "reward_raised: ValueError: no")],
)
def test_a_failure_of_the_group_s_function_fails_all_of_it(tmp_path: Path, function: str, failure: str) -> None:
    group = play_group(tmp_path, function)
    assert all((sample.failure or "").startswith(failure) for sample in group.samples)
    assert not group.trainable


def ask(handler: Handler, count: int = 1, clock: SystemClock | None = None, **remote: Any) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        async with serving(handler) as url, opened(clock, function="remote", remote={"url": url, **remote}) as pool:
            return await asyncio.gather(*(pool.score("r" * i, {"i": i}, "p") for i in range(count)))

    return asyncio.run(play())


def test_a_server_gets_all_conversations_where_there_are_several() -> None:
    plan = [{"role": "user", "content": "plan"}, {"role": "assistant", "content": "add"}]

    async def judge(request: web.Request) -> web.Response:
        (sample,) = (await request.json())["samples"]
        return web.json_response({"rewards": [float(sample["histories"] == [plan, sample["messages"]])]})

    async def play() -> RewardOutcome:
        async with serving(judge) as url, opened(None, function="remote", remote={"url": url}) as pool:
            return await pool.score("r", {}, "p", earlier=[plan])

    assert asyncio.run(play()) == RewardOutcome(1.0)


def test_a_server_gets_samples_in_batches_with_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_TOKEN", "swordfish")
    sizes: list[int] = []

    async def judge(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer swordfish"
        samples = (await request.json())["samples"]
        assert samples[0].keys() == {"response", "row", "prompt", "messages"}
        response = {"role": "assistant", "content": samples[0]["response"]}
        assert samples[0]["messages"] == [{"role": "user", "content": "p"}, response]
        sizes.append(len(samples))
        return web.json_response({"rewards": [sample["row"]["i"] / 2 for sample in samples]})

    outcomes = ask(judge, 10, batch=4, connections=1, token_env="HEADRACE_TEST_TOKEN")
    assert outcomes == [RewardOutcome(i / 2) for i in range(10)]
    assert sizes == [4, 4, 2]


def test_a_token_that_is_handed_over_needs_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TEST_TOKEN", raising=False)

    async def judge(request: web.Request) -> web.Response:
        return web.json_response({"rewards": [float(request.headers["Authorization"] == "Bearer swordfish")]})

    async def play() -> RewardOutcome:
        async with serving(judge) as url:
            remote = {"url": url, "token_env": "HEADRACE_TEST_TOKEN"}
            config = RewardConfig.model_validate({"function": "remote", "remote": remote})
            pool = RewardPool(config, clock=SystemClock(), tokens={"HEADRACE_TEST_TOKEN": "swordfish"})
            await pool.start()
            try:
                return await pool.score("r", {}, "p")
            finally:
                await pool.close()

    assert asyncio.run(play()) == RewardOutcome(1.0)


def test_a_server_that_fails_is_asked_again_later_and_later() -> None:
    asked = 0

    async def judge(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"rewards": [1]}) if asked == 3 else web.Response(status=503 if asked == 1 else 429)

    clock = NotedClock()
    assert ask(judge, clock=clock, retries=3, backoff_s=0.5) == [RewardOutcome(1.0)]
    assert clock.slept == [0.5, 1.0]


def test_after_the_last_try_the_sample_fails() -> None:
    async def judge(request: web.Request) -> web.Response:
        return web.Response(status=500)

    clock = NotedClock()
    (outcome,) = ask(judge, clock=clock, retries=2, backoff_s=0.25)
    assert (outcome.failure or "").startswith("reward_remote: http://127.0.0.1")
    assert (outcome.failure or "").endswith("/judge: status 500 (tried 3 times)")
    assert clock.slept == [0.25, 0.5]


def test_a_server_that_does_not_answer_in_time_fails_the_sample() -> None:
    async def judge(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    (outcome,) = ask(judge, timeout_s=0.1, retries=0)
    assert (outcome.failure or "").startswith("reward_timeout: waited 0.1 s for an answer of http://127.0.0.1")


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (404, "", "answered with status 404"),
        (302, "", "answered with status 302"),
        (200, "no", "answered with what is not JSON"),
        (200, '{"rewards": [1, 2]}', "gave no list of 1 rewards"),
        (200, '{"rewards": ["too rude"]}', "reward_remote: too rude"),
        (200, '{"rewards": [NaN]}', "reward_nan: the server returned nan"),
        (200, '{"rewards": [null]}', "reward_nan: the server returned None"),
    ],
)
def test_an_answer_that_is_none_fails_the_sample_at_once(status: int, body: str, failure: str) -> None:
    asked = 0

    async def judge(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"} if status == 302 else None)

    (outcome,) = ask(judge)
    assert outcome.value is None
    assert failure in (outcome.failure or "")
    assert asked == 1


def test_a_token_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TEST_TOKEN", raising=False)

    async def judge(request: web.Request) -> web.Response:
        raise AssertionError

    with pytest.raises(ConfigError, match=r"reward\.remote\.token_env names HEADRACE_TEST_TOKEN, which is not set"):
        ask(judge, token_env="HEADRACE_TEST_TOKEN")
