"""Tasks over a real listener: what agents outside are given, may say, and are told when they do it wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from agent_listener import CHAT
from rollout_helpers import PaperRewards, ScriptedEngine, says, settings

from headrace.config.agent import OutsideAgent
from headrace.config.errors import ConfigError
from headrace.config.gateway import GatewayConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey, Sample, SampleStatus
from headrace.gateway.agents.agent_gateway import AgentGateway
from headrace.gateway.agents.task_listener import TaskListener
from headrace.gateway.agents.task_routes import TaskRoutes
from headrace.rollout.agent import AgentWorkflow
from headrace.rollout.agent_outside import OutsidePlayer
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.outside_tasks import OutsideTask
from headrace.runtime.inline import InlineRuntime
from headrace.weights.version import INITIAL

PROMPT = Prompt("0", "hi", {"prompt": "hi", "answer": "one"})


class Agents:
    """Who is outside."""

    def __init__(self, client: aiohttp.ClientSession, address: str, runner: EpisodeRunner) -> None:
        self.client, self.address, self.runner = client, address, runner

    def group(self) -> asyncio.Task[Any]:
        """One that the run admits."""
        return asyncio.ensure_future(self.runner.run_group(GroupKey(0, 0, 0), PROMPT, INITIAL, 1))

    async def post(self, path: str, body: Any, key: str | None = None, **headers: str) -> tuple[int, Any, Any]:
        given = {**({"Authorization": f"Bearer {key}"} if key else {}), "Content-Type": "application/json", **headers}
        data = body if isinstance(body, str) else json.dumps(body)
        async with self.client.post(f"{self.address}{path}", data=data, headers=given) as answer:
            return answer.status, json.loads(await answer.text()), answer.headers

    async def take(self, **body: Any) -> Any:
        status, task, _ = await self.post("/tasks", body)
        assert status == 200, task
        return task

    async def ask(self, task: Any) -> tuple[int, Any]:
        path = task["base_url"].removeprefix(self.address) + "/chat/completions"
        status, body, _ = await self.post(path, CHAT, task["api_key"])
        return status, body

    async def say(self, task: Any, what: str, body: Any, key: str | None = None) -> tuple[int, Any]:
        status, told, _ = await self.post(f"/tasks/{task['id']}/{what}", body, key or task["api_key"])
        return status, told


def outside(
    test: Callable[[Agents], Awaitable[Any]],
    *,
    samples: int = 1,
    timeout_s: float = 10,
    trained: bool = True,
    **agent: Any,
) -> Any:
    engine, rewards = ScriptedEngine(says("one")), PaperRewards()

    async def main() -> Any:
        async with AsyncExitStack() as stack:
            runtime = InlineRuntime()
            stack.push_async_callback(runtime.close)
            player = OutsidePlayer(OutsideAgent(outside=True, **agent), timeout_s)
            gateway = AgentGateway(GatewayConfig(), runtime, TaskRoutes(player, runtime.clock))
            await gateway.start()
            stack.push_async_callback(gateway.close)
            its = settings(engine, chat=True, return_kept=trained)
            runner = EpisodeRunner(
                workflow=AgentWorkflow(player).through(gateway),
                policy=its,
                rewards=rewards,
                clock=its.clock,
                samples_per_prompt=samples,
                episode_timeout_s=timeout_s,
            )
            client = await stack.enter_async_context(aiohttp.ClientSession())
            agents = Agents(client, player.tasks.address, runner)
            agents.gateway, agents.rewards = gateway, rewards  # type: ignore[attr-defined]
            return await asyncio.wait_for(test(agents), 20)

    return asyncio.run(main())


async def only(group: asyncio.Task[Any]) -> Sample:
    (sample,) = (await group).samples
    return sample


def test_an_agent_takes_asks_and_ends() -> None:
    async def test(agents: Agents) -> None:
        asking = asyncio.ensure_future(agents.take())
        group = agents.group()
        task = await asking
        group.cancel()
        key = task.pop("api_key")
        assert task.pop("id") not in key
        assert task == {
            "group": "0/0#0",
            "episode": 0,
            "evaluation": False,
            "row": PROMPT.row,
            "prompt": "hi",
            "tools": None,
            "model": "policy",
            "deadline_s": 10,
            "base_url": f"{agents.address}/episodes/0/v1",
        }

    async def whole(agents: Agents) -> Sample:
        group = agents.group()
        task = await agents.take()
        status, answer = await agents.ask(task)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "one")
        assert (await agents.say(task, "reward", {"reward": 3}))[0] == 200
        assert await agents.say(task, "reward", {"reward": 0.25}) == (200, {"id": task["id"], "reward": 0.25})
        assert await agents.say(task, "end", {}) == (200, {"id": task["id"], "ended": True})
        return await only(group)

    outside(test)
    sample = outside(whole)
    assert (sample.status, sample.reward, sample.failure) == (SampleStatus.COMPLETED, 0.25, None)


def test_the_runs_functions_judge_the_conversation_unless_a_reward_was_told() -> None:
    async def test(agents: Any) -> tuple[Sample, Any]:
        group = agents.group()
        task = await agents.take()
        await agents.ask(task)
        await agents.say(task, "end", {})
        return await only(group), agents.rewards

    sample, rewards = outside(test)
    assert sample.reward == 1  # PaperRewards: the answer is the row's
    assert rewards.conversations == [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "one"}]]


def test_an_end_may_say_the_reward_or_what_failed() -> None:
    async def test(agents: Agents) -> tuple[Sample, ...]:
        group = agents.group()
        for end in ({"reward": -1}, {"error": "the  browser\ncrashed"}):
            task = await agents.take()
            await agents.ask(task)
            assert (await agents.say(task, "end", end))[0] == 200
        return tuple((await group).samples)

    good, bad = outside(test, samples=2)
    assert (good.reward, bad.status) == (-1, SampleStatus.FAILED)
    assert "the agent says: the browser crashed" in str(bad.failure)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1, 2}])
def test_a_row_without_a_form_in_json_fails_its_own_episode(value: Any) -> None:
    async def test(agents: Agents) -> tuple[Sample, Sample]:
        bad = Prompt("1", "hi", {"prompt": "hi", "answer": "one", "score": [value]})
        failing = asyncio.ensure_future(agents.runner.run_group(GroupKey(0, 1, 0), bad, INITIAL, 1))
        await asyncio.sleep(0)
        group = agents.group()
        task = await agents.take()
        assert task["group"] == "0/0#0"
        await agents.ask(task)
        await agents.say(task, "end", {"reward": 1})
        return await only(failing), await only(group)

    failed, good = outside(test)
    assert (failed.status, good.reward) == (SampleStatus.FAILED, 1)
    assert "told of a row as JSON, and this one has no form in it" in str(failed.failure)


def test_two_who_ask_at_once_get_two_episodes() -> None:
    async def test(agents: Agents) -> None:
        group = agents.group()
        one, other, nothing = await asyncio.gather(
            agents.take(), agents.take(), agents.post("/tasks", {"wait_s": 0.05}), return_exceptions=False
        )
        assert nothing[0] == 429
        assert {one["episode"], other["episode"]} == {0, 1}
        status, told = await agents.say(one, "end", {}, key=other["api_key"])
        assert status == 401, told
        for task in (one, other):
            await agents.ask(task)
            await agents.say(task, "end", {"reward": task["episode"]})
        assert [sample.reward for sample in (await group).samples] == [0, 1]

    outside(test, samples=2)


def test_what_is_wrong_is_told_and_the_episode_goes_on() -> None:
    async def test(agents: Agents) -> Sample:
        group = agents.group()
        for body, words in (
            ("[]", "must be a JSON object"),
            ('{"wait_s": -1}', "wait_s is -1; it must be between 0 and 300"),
            ('{"wait": 1}', "unknown field 'wait'"),
            ("{", "is not JSON"),
        ):
            status, told, _ = await agents.post("/tasks", body)
            assert (status, words in told["error"]["message"]) == (400, True), told
        assert (await agents.post("/tasks", "{}", **{"Content-Type": "text/plain"}))[0] == 415
        task = await agents.take()
        for what, body, words in (
            ("reward", "{}", "has no reward"),
            ("reward", '{"reward": "1"}', "must be a number"),
            ("reward", '{"reward": true}', "must be a number"),
            ("reward", '{"reward": NaN}', "NaN is no JSON value"),
            ("reward", '{"reward": 1e999}', "1e999 is larger than any number"),
            ("reward", '{"reward": 1e16}', "between -1e+15 and 1e+15"),
            ("reward", '{"reward": 1, "score": 2}', "unknown field 'score'"),
            ("end", '{"error": 3}', "error must be a text"),
            ("end", '{"error": " "}', "error must be a text"),
            ("end", '{"error": "e", "reward": 1}', "no reward"),
        ):
            status, told = await agents.say(task, what, body)
            assert (status, words in told["error"]["message"]) == (400, True), told
        for path in ("nothing", "%C3%A9"):
            assert (await agents.post(f"/tasks/{path}/end", {}, task["api_key"]))[0] == 401
        assert (await agents.post(f"/tasks/{task['id']}/end", {}))[0] == 401
        await agents.ask(task)
        assert (await agents.say(task, "end", {"reward": 1}))[0] == 200
        for what, body in (("reward", {"reward": 2}), ("end", {})):
            status, told = await agents.say(task, what, body)
            assert (status, told["error"]["code"]) == (409, "task_ended"), told
        assert (await agents.ask(task))[0] == 401
        return await only(group)

    assert outside(test).reward == 1


def test_with_a_token_nothing_is_given_out_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_TOKEN", "secret é")

    async def test(agents: Agents) -> Sample:
        group = agents.group()
        for key in (None, "wrong", "secret"):
            status, told, _ = await agents.post("/tasks", {}, key)
            assert (status, "TASKS_TOKEN" in told["error"]["message"]) == (401, True)
        status, task, _ = await agents.post("/tasks", {}, "secret é")
        assert status == 200, task
        await agents.ask(task)
        assert (await agents.say(task, "reward", {"reward": 2}, key="secret é"))[0] == 200
        status, told, _ = await agents.post("/tasks/nothing/end", {}, "secret é")
        assert (status, told["error"]["code"]) == (404, "task_not_found")
        assert (await agents.say(task, "end", {}))[0] == 200
        return await only(group)

    assert outside(test, token_env="TASKS_TOKEN").reward == 2
    monkeypatch.setenv("TASKS_TOKEN", "")
    with pytest.raises(ConfigError, match="TASKS_TOKEN, which is not set"):
        OutsidePlayer(OutsideAgent(outside=True, token_env="TASKS_TOKEN"), 1).token()


def test_nobody_else_is_listened_to_without_a_token() -> None:
    with pytest.raises(ValueError, match="others can reach"):
        OutsideAgent(outside=True, host="0.0.0.0")
    with pytest.raises(ValueError, match="one of them plays"):
        OutsideAgent.model_validate({"outside": True, "command": ["a"]})


def test_while_the_gate_is_shut_it_says_when_to_come_again() -> None:
    async def test(agents: Agents) -> None:
        status, told, headers = await agents.post("/tasks", {"wait_s": 0})
        assert (status, told["error"]["code"], headers["Retry-After"]) == (429, "no_task", "5")

    outside(test)


@pytest.mark.slow
def test_time_in_which_nobody_had_taken_it_does_not_count_and_a_late_agent_is_told() -> None:
    async def test(agents: Agents) -> Sample:
        group = agents.group()
        await asyncio.sleep(2.5)  # more than an episode may take
        task = await agents.take()
        assert (await agents.ask(task))[0] == 200
        sample = await only(group)  # it never reports
        status, told = await agents.say(task, "end", {"reward": 1})
        assert (status, told["error"]["code"]) == (409, "task_ended")
        assert "the run has ended it" in told["error"]["message"]
        status, told = await agents.ask(task)
        assert (status, told["error"]["code"]) == (401, "episode_closed")
        return sample

    sample = outside(test, timeout_s=2)
    assert (sample.status, str(sample.failure).partition(":")[0]) == (SampleStatus.FAILED, "timeout")


def test_an_agent_whose_group_the_run_drops_is_told_so() -> None:
    async def test(agents: Agents) -> None:
        group = agents.group()
        task = await agents.take()
        group.cancel()
        await asyncio.gather(group, return_exceptions=True)
        for what in ("reward", "end"):
            status, told = await agents.say(task, what, {"reward": 1})
            assert (status, told["error"]["code"]) == (409, "task_ended")
        assert (await agents.ask(task))[0] == 401
        assert (await agents.post("/tasks", {"wait_s": 0}))[0] == 429, "its sibling is no task any more"

    outside(test, samples=2)


def test_an_evaluation_that_nobody_takes_ends() -> None:
    async def test(agents: Agents) -> Sample:
        return await only(agents.group())

    sample = outside(test, timeout_s=0.2, trained=False)
    assert "an agent to ask for a task" in str(sample.failure)


def test_an_evaluation_ends_as_soon_as_its_agent_says_so() -> None:
    """Also where that asks for no other task."""

    async def test(agents: Agents) -> Sample:
        group = agents.group()
        task = await agents.take(wait_s=1)
        await agents.ask(task)
        await agents.say(task, "end", {"reward": 1})
        return await asyncio.wait_for(only(group), 2.0)

    assert outside(test, timeout_s=30.0, trained=False).reward == 1


def test_an_agent_that_goes_away_while_it_waits_takes_nothing_with_it() -> None:
    async def test(agents: Agents) -> Sample:
        asking = asyncio.ensure_future(agents.take())
        await asyncio.sleep(0.1)
        asking.cancel()
        await asyncio.sleep(0.1)
        group = agents.group()
        task = await agents.take(wait_s=1)
        await agents.ask(task)
        await agents.say(task, "end", {"reward": 1})
        return await only(group)

    assert outside(test).reward == 1


@pytest.mark.slow
def test_an_agent_that_does_not_read_its_task_uses_up_no_time_of_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.gateway.agents.task_routes._BODY_S", 2.5)
    large = Prompt("0", "hi", {"prompt": "hi", "long": "x" * (12 << 20)})  # more than what sockets hold

    async def test(agents: Agents) -> Sample:
        group = asyncio.ensure_future(agents.runner.run_group(GroupKey(0, 0, 0), large, INITIAL, 1))
        at = urlsplit(agents.address)
        _, writer = await asyncio.open_connection(at.hostname, at.port, limit=1)
        lines = (f"Host: {at.netloc}", "Content-Type: application/json", "Content-Length: 2", "", "{}")
        writer.write("\r\n".join(("POST /tasks HTTP/1.1", *lines)).encode())
        await asyncio.sleep(0.2)
        task = await agents.take()  # once it is put back, which is longer than an episode may take
        assert task["deadline_s"] == 2
        await agents.ask(task)
        assert (await agents.say(task, "end", {"reward": 1}))[0] == 200
        writer.close()
        return await only(group)

    assert outside(test, timeout_s=2).reward == 1.0


def test_an_agent_that_asks_the_model_for_nothing_fails() -> None:
    async def test(agents: Agents) -> Sample:
        group = agents.group()
        assert (await agents.say(await agents.take(), "end", {"reward": 1}))[0] == 200
        return await only(group)

    assert "asked the policy for nothing" in str(outside(test).failure)


@pytest.mark.parametrize(
    ("forwarded", "scheme"),
    [("https", "https"), ("https, http", "https"), ("http,https", "http"), ("ftp", "http"), ("", "http")],
)
def test_behind_a_proxy_with_tls_the_address_is_the_proxys(
    forwarded: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As X-Forwarded-Proto says; the first proxy is the one that the agent knows."""
    monkeypatch.setenv("AGENTS_TOKEN", "secret")

    async def test(agents: Agents) -> str:
        group = agents.group()
        headers = {"Host": "agents.example", "X-Forwarded-Proto": forwarded}
        status, task, _ = await agents.post("/tasks", {}, "secret", **headers)
        assert status == 200
        group.cancel()
        return str(task["base_url"])

    assert outside(test, token_env="AGENTS_TOKEN") == f"{scheme}://agents.example/episodes/0/v1"


def test_a_task_that_is_played_elsewhere_has_the_host_that_the_agent_knows_and_the_port_of_who_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENTS_TOKEN", "secret")

    async def main() -> list[str]:
        runtime = InlineRuntime()
        player = OutsidePlayer(OutsideAgent(outside=True, token_env="AGENTS_TOKEN"), 10)
        listener = TaskListener(TaskRoutes(player, runtime.clock), ("127.0.0.1", 0))
        await listener.start()
        told = []
        try:
            async with aiohttp.ClientSession() as client:
                for number, host in enumerate(("", "agents.example:8100", "agents.example", "[::1]:8100")):
                    where = f"http://0.0.0.0:7/episodes/{number}/v1"
                    player.tasks.offer(OutsideTask(f"hr-{number}", where, {"row": {}}, nullcontext))
                    headers = {"Authorization": "Bearer secret", **({"Host": host} if host else {})}
                    async with client.post(f"{player.tasks.address}/tasks", json={}, headers=headers) as answer:
                        assert answer.status == 200
                        told.append((await answer.json())["base_url"])
        finally:
            await listener.close()
            await runtime.close()
        return told

    assert asyncio.run(main()) == [
        "http://127.0.0.1:7/episodes/0/v1",
        "http://agents.example:7/episodes/1/v1",
        "http://agents.example:7/episodes/2/v1",
        "http://[::1]:7/episodes/3/v1",
    ]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8100", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.7:8100", 403),
        ("127.0.0.1.nip.io", 403),
        ("localhost:8100", 200),
        ("LOCALHOST", 200),
        ("127.3.4.5:8100", 200),
        ("[::1]:8100", 200),
    ],
)
def test_without_a_token_only_who_knows_it_by_loopback_is_answered(host: str, status: int) -> None:
    """A page in a browser that has its own name lead to this machine (DNS rebinding) names that."""

    async def test(agents: Agents) -> None:
        group = agents.group()
        there, told, _ = await agents.post("/tasks", {}, None, Host=host)
        assert there == status
        task = told if status == 200 else await agents.take()
        if status == 403:
            assert told["error"]["code"] == "host_not_allowed"
            assert told["error"]["message"] == (
                f"the header Host is {host!r}, which is not on loopback, and no token is asked for; ask at "
                f"{agents.address}, or set rollout.agent.token_env"
            )
        for what in ("reward", "end"):
            path = f"/tasks/{task['id']}/{what}"
            assert (await agents.post(path, {"reward": 1}, task["api_key"], Host=host))[0] == status
        group.cancel()

    outside(test)


@pytest.mark.parametrize("host", ["agents.example:99999", "agents.example:port"])
def test_who_asks_at_an_address_that_is_none_gets_no_task_and_the_next_one_has_it(host: str) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        player = OutsidePlayer(OutsideAgent(outside=True), 10)
        listener = TaskListener(TaskRoutes(player, runtime.clock), ("127.0.0.1", 0))
        await listener.start()
        try:
            player.tasks.offer(OutsideTask("hr-0", "http://0.0.0.0:7/episodes/0/v1", {"row": {}}, nullcontext))
            async with aiohttp.ClientSession() as client:
                ask = f"{player.tasks.address}/tasks"
                async with client.post(ask, json={}, headers={"Host": host}) as answer:
                    told = await answer.json()
                    assert (answer.status, host in told["error"]["message"]) == (400, True)
                async with client.post(ask, json={"wait_s": 0}) as answer:
                    assert answer.status == 200
        finally:
            await listener.close()
            await runtime.close()

    asyncio.run(main())


def test_who_waits_when_the_run_ends_is_told_that_it_is_over() -> None:
    async def test(agents: Any) -> None:
        asking = asyncio.ensure_future(agents.post("/tasks", {}))
        await asyncio.sleep(0.1)
        await agents.gateway.close()
        status, told, _ = await asking
        assert (status, told["error"]["code"]) == (410, "run_over")

    outside(test)
