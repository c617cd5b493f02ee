"""An agent's session by its tree: what the engine was asked, what is trained, and how often."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from rollout_helpers import EOS, ScriptedEngine, chunk, ids, policy, says

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.gateway.agents.agent_requests import parse_agent_chat, parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered, whole_chat
from headrace.gateway.errors import ApiError
from headrace.rollout.trajectory import Trajectory
from headrace.weights.version import Version

USER = {"role": "user", "content": "hi"}


def played(
    play: Callable[[AgentSession], Any], *script: Any, config: GatewayConfig | None = None, **changes: Any
) -> tuple[Any, AgentSession, ScriptedEngine]:
    engine = ScriptedEngine(*script)

    async def run() -> tuple[Any, AgentSession]:
        its = policy(engine, chat=True, **changes)
        session = AgentSession(its, config or GatewayConfig(), "http://127.0.0.1:1/v1", "key")
        return await play(session), session

    returned, session = asyncio.run(run())
    return returned, session, engine


async def ask(session: AgentSession, messages: list[Any], *, delivered: bool = True, **more: Any) -> Any:
    """The first choice's message, as a client reads it."""
    return (await ask_all(session, messages, delivered=delivered, **more))[0]


async def ask_all(session: AgentSession, messages: list[Any], *, delivered: bool = True, **more: Any) -> list[Any]:
    answered: Answered = await session.chat(parse_agent_chat({"messages": messages, **more}, "policy"), 0)
    if delivered:
        answered.delivered()
    return [choice["message"] for choice in whole_chat(answered)["choices"]]


def read(trajectory: Trajectory) -> str:
    return "".join(
        "<eos>" if token == EOS else chr(token - 3 + 32) if token > 2 else "?" for token in trajectory.tokens.tolist()
    )


def test_a_turn_that_goes_on_reuses_what_was_sampled() -> None:
    """Of an answer that is sent back it is known that it was delivered, whatever became of its connection."""

    async def play(session: AgentSession) -> None:
        first = await ask(session, [USER], delivered=False)
        assert first == {"role": "assistant", "content": "one"}
        back = {"role": "assistant", "content": [{"type": "text", "text": "one"}], "refusal": None, "annotations": []}
        await ask(session, [USER, back, {"role": "user", "content": "go"}])

    _, session, engine = played(play, says("one"), says("two"))
    (only,) = session.trajectories()
    # The template closes the assistant's turn by <eos>, which the policy wrote itself.
    assert read(only) == "[user]hi[assistant]one<eos>[user]go[assistant]two<eos>"
    assert [turn for turn, _ in only.turns] == [False, True, False, True]
    assert engine.requests[1].prompt.tolist() == only.tokens[: -len("two") - 1].tolist()
    assert (only.response, only.metadata) == ("two", {"turns": 2, "requests": 2})


def test_a_conversation_goes_on_from_none_whose_messages_read_alike_put_together() -> None:
    async def play(session: AgentSession) -> None:
        answer = await ask(session, [{"role": "user", "name": "y", "content": "x"}])
        await ask(session, [{"role": "user", "content": "xnamey"}, answer, {"role": "user", "content": "go"}])

    _, session, _ = played(play, says("one"), says("two"))
    assert [trajectory.metadata["turns"] for trajectory in session.trajectories()] == [1, 1]


@pytest.mark.parametrize("within", [False, True], ids=["of the message", "of a part"])
def test_where_a_client_marks_what_is_to_be_cached_is_no_part_of_the_history(within: bool) -> None:
    """It moves to the newest message with each turn."""
    mark = {"cache_control": {"type": "ephemeral"}}

    def marked(message: dict[str, Any]) -> dict[str, Any]:
        part = {"type": "text", "text": message["content"], **mark}
        return {**message, "content": [part]} if within else {**message, **mark}

    async def play(session: AgentSession) -> None:
        answer = await ask(session, [marked(USER)])
        await ask(session, [USER, answer, marked({"role": "user", "content": "go"})])

    _, session, _ = played(play, says("one"), says("two"))
    (only,) = session.trajectories()
    assert read(only) == "[user]hi[assistant]one<eos>[user]go[assistant]two<eos>"


@pytest.mark.parametrize("within", [False, True], ids=["of the tool", "of its function"])
def test_where_a_client_marks_which_tools_are_to_be_cached_changes_no_prompt(within: bool) -> None:
    function = {"name": "look", "parameters": {"type": "object"}}
    mark = {"cache_control": {"type": "ephemeral"}}
    plain = [{"type": "function", "function": function}]
    marked = [{"type": "function", "function": {**function, **mark}} if within else {**plain[0], **mark}]

    async def play(session: AgentSession) -> None:
        answer = await ask(session, [USER], tools=marked)
        await ask(session, [USER, answer, {"role": "user", "content": "go"}], tools=plain)

    _, session, _ = played(play, says("one"), says("two"))
    assert len(session.trajectories()) == 1


def test_a_rewritten_history_branches_and_shares_nothing_that_is_trained_twice() -> None:
    async def play(session: AgentSession) -> None:
        first = await ask(session, [USER])
        await ask(session, [USER, first, {"role": "user", "content": "a"}])
        await ask(session, [USER, first, {"role": "user", "content": "b"}])
        await ask(session, [USER, {"role": "assistant", "content": "edited"}, {"role": "user", "content": "c"}])

    _, session, _ = played(play, says("one"), says("two"), says("three"), says("four"))
    histories = session.trajectories()
    assert [read(each) for each in histories] == [
        "[user]hi[assistant]one<eos>[user]a[assistant]two<eos>",
        "[user]hi[assistant]one<eos>[user]b[assistant]three<eos>",
        "[user]hi[assistant]edited<eos>[user]c[assistant]four<eos>",
    ]
    chosen = [[len(tokens) for is_chosen, tokens in each.turns if is_chosen] for each in histories]
    assert chosen == [[4, 4], [6], [5]], "`one` is trained in the first history alone"
    assert histories[-1].metadata["histories"] == 3


def test_what_a_limit_cut_off_and_what_was_never_delivered() -> None:
    async def play(session: AgentSession) -> None:
        cut = await ask(session, [USER])
        await ask(session, [USER, cut, {"role": "user", "content": "x"}])
        await ask(session, [{"role": "user", "content": "lost"}], delivered=False)

    script = (lambda request: chunk(ids("cu"), FinishReason.LENGTH), says("two"))
    _, session, _ = played(play, *script)
    histories = session.trajectories()
    assert [read(each) for each in histories] == [
        "[user]hi[assistant]cu",
        "[user]hi[assistant]cu<eos>[user]x[assistant]two<eos>",
    ], "a cut answer is no turn: the history goes on from its text"
    assert histories[-1].metadata["undelivered"] == 1


def test_an_answer_that_a_prompt_of_ids_goes_on_from_was_delivered() -> None:
    """Though nobody heard of that, as where its connection broke at the end."""

    async def play(session: AgentSession) -> None:
        prompt = ids("hi").tolist()
        await session.text(parse_agent_text({"prompt": prompt}, "policy"), 0)
        longer = [*prompt, *ids("one").tolist(), EOS, *ids("go").tolist()]
        (await session.text(parse_agent_text({"prompt": longer}, "policy"), 0)).delivered()

    _, session, _ = played(play, says("one"), says("two"))
    (only,) = session.trajectories()
    assert only.metadata == {"turns": 2, "requests": 2}


def test_a_turn_that_the_context_has_no_room_for_cuts_the_history_off() -> None:
    async def play(session: AgentSession) -> None:
        came = await ask(session, [USER])
        with pytest.raises(ApiError, match="the context of 40 must also hold an answer"):
            await ask(session, [USER, came, {"role": "user", "content": "x" * 40}])

    _, session, _ = played(play, says("one"), max_context=40)
    (only,) = session.trajectories()
    assert only.status is SampleStatus.TRUNCATED


def test_of_answers_that_read_alike_the_one_that_came_is_gone_on_from() -> None:
    async def play(session: AgentSession) -> None:
        came = await ask(session, [USER])
        await ask(session, [USER], delivered=False)
        await ask(session, [USER, came, {"role": "user", "content": "go"}])

    _, session, _ = played(play, says("same"), says("same"), says("two"))
    (only,) = session.trajectories()
    assert only.metadata["turns"] == 2
    assert only.metadata["undelivered"] == 1


def test_equal_requests_are_two_samples_of_other_noise() -> None:
    async def play(session: AgentSession) -> None:
        await ask(session, [USER])
        await ask_all(session, [USER], n=2)

    _, session, engine = played(play, says("a"), says("b"), says("c"))
    assert [read(each)[-6:] for each in session.trajectories()] == ["a<eos>", "b<eos>", "c<eos>"]
    assert len({request.noise_key for request in engine.requests}) == 3


def test_other_prompts_have_other_noise_and_a_run_of_the_seed_has_the_same_again() -> None:
    """Noise is drawn by the key and a token's place, so prompts of one length must not share the key; nor does what is
    asked in between change that of a history."""

    async def play(session: AgentSession) -> None:
        for letter in "abcdefgh":
            await ask(session, [{"role": "user", "content": letter}])
        first = await ask(session, [USER])
        for letter in "xy":
            await ask(session, [USER, first, {"role": "user", "content": letter}])

    async def again(session: AgentSession) -> None:
        first = await ask(session, [USER])
        await ask(session, [USER, first, {"role": "user", "content": "y"}])

    keys = [request.noise_key for request in played(play, says("one"))[2].requests]
    assert len(set(keys)) == 11
    assert [request.noise_key for request in played(again, says("one"))[2].requests] == [keys[8], keys[10]]


def test_the_runs_sampling_holds() -> None:
    async def play(session: AgentSession) -> None:
        await ask(session, [USER], temperature=0, seed=3, max_tokens=4)
        await ask(session, [USER], temperature=0.5, max_tokens=4000)

    _, session, engine = played(play, says("a"))
    assert [request.sampling.temperature for request in engine.requests] == [1.0, 1.0]
    assert [request.sampling.max_new_tokens for request in engine.requests] == [4, 16]
    metadata = session.trajectories()[-1].metadata
    assert (metadata["ignored_temperature"], metadata["ignored_seed"]) == (2, 1)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
CALL = '<tool_call>{"name": "look", "arguments": {"key": 1}}</tool_call>'


def test_tool_calls_come_back_as_openai_has_them_and_match() -> None:
    async def play(session: AgentSession) -> Any:
        called = await ask(session, [USER], tools=[TOOL])
        result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "found"}
        await ask(session, [USER, called, result], tools=[TOOL])
        return called

    config = GatewayConfig(tool_parser="hermes")
    called, session, _ = played(
        play, says("so " + CALL), says("done"), config=config, max_context=None, request_timeout_s=5.0
    )
    assert called["content"] == "so"
    assert called["tool_calls"] == [
        {"id": "c00000000", "type": "function", "function": {"name": "look", "arguments": '{"key": 1}'}}
    ]
    (only,) = session.trajectories()
    assert read(only) == f"[user]hi[assistant]so {CALL}<eos>[tool]found[assistant]done<eos>"
    assert only.messages is not None
    assert only.messages[1]["tool_calls"][0]["function"]["arguments"] == {"key": 1}


def test_equal_answers_that_equal_turns_follow_have_other_noise_behind() -> None:
    """Most templates do not show the ids of calls: what follows either is one history."""

    async def play(session: AgentSession) -> None:
        for called in await ask_all(session, [USER], n=2, tools=[TOOL]):
            result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "found"}
            await ask(session, [USER, called, result], tools=[TOOL])

    config = GatewayConfig(tool_parser="hermes")
    _, session, engine = played(play, says(CALL), says(CALL), says("a"), says("b"), config=config)
    assert [trajectory.metadata["turns"] for trajectory in session.trajectories()] == [2, 2]
    one, other = engine.requests[2:]
    assert one.prompt.tolist() == other.prompt.tolist()
    assert one.noise_key != other.noise_key


@pytest.mark.parametrize("said", ["<tool_call>{nonsense</tool_call>", '<tool_call>{"name": 3}</tool_call>', "plain"])
def test_what_is_no_call_is_text(said: str) -> None:
    async def play(session: AgentSession) -> Any:
        return await ask(session, [USER], tools=[TOOL])

    message, _, _ = played(play, says(said), config=GatewayConfig(tool_parser="hermes"))
    assert message == {"role": "assistant", "content": said}


def test_completions_of_ids_go_on_from_the_history_that_they_begin_with() -> None:
    async def play(session: AgentSession) -> None:
        prompt = ids("start").tolist()
        answered = await session.text(parse_agent_text({"prompt": prompt}, "policy"), 0)
        answered.delivered()
        longer = [*prompt, *answered.choices[0].completion.tokens.tolist(), *ids("more").tolist()]
        (await session.text(parse_agent_text({"prompt": longer}, "policy"), 0)).delivered()

    _, session, _ = played(play, says("one"), says("two"))
    (only,) = session.trajectories()
    assert read(only) == "startone<eos>moretwo<eos>"


class Numbered:
    """Each answer is of a version of its own, and each of its tokens has a log-prob of its own."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.count = lengths, 0
        self.given: list[list[int]] = []

    def __call__(self, request: GenerateRequest) -> TokenChunk:
        number, self.count = self.count, self.count + 1
        length = self.lengths[number % len(self.lengths)]
        made = chunk([*ids("abcd"[:length] + str(number)), EOS], version=Version(0, number))
        self.given.append(made.tokens.tolist())
        return TokenChunk(
            tokens=made.tokens,
            logprobs=-np.arange(1, len(made.tokens) + 1, dtype=np.float32) - 100 * number,
            versions=made.versions,
            branches=made.branches,
            finish_reason=FinishReason.STOP,
        )


TURNS = st.tuples(st.integers(0, 30), st.text("xyz", max_size=4), st.sampled_from(["on", "rewritten", "shorter"]))


@examples(deadline=None, max_examples=40)
@given(
    turns=st.lists(st.tuples(TURNS, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=10),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_each_path_is_what_the_engine_saw_and_each_token_is_trained_once(
    turns: list[tuple[tuple[int, str, str], int, int]], lengths: list[int]
) -> None:
    """Each turn goes on from one of those before, or from nothing, in one or several samples; or its history was
    rewritten, or lost its beginning. Some answers never reach the agent."""
    answers = Numbered(lengths)

    async def play(session: AgentSession) -> set[int]:
        conversations: list[list[Any]] = [[]]
        lost: set[int] = set()
        for (place, said, change), n, delivers in turns:
            before = list(conversations[place % len(conversations)])
            if change == "rewritten" and before:
                before[-1] = {"role": "assistant", "content": "rewritten"}
            if change == "shorter":
                before = before[2:]
            asked = [*before, {"role": "user", "content": said}]
            first = answers.count
            messages = await ask_all(session, asked, n=n, delivered=delivers > 0)
            if delivers:
                conversations += [[*asked, message] for message in messages]
            else:
                lost |= set(range(first, answers.count))
        return lost

    lost, session, engine = played(play, answers)
    if len(lost) == len(engine.requests):
        with pytest.raises(ValueError, match="took no answer"):
            session.trajectories()
        return
    sampled = Counter(
        (number, place)
        for number, request in enumerate(engine.requests)
        for place in range(_length(lengths, number))
        if number not in lost
    )
    trained: Counter[tuple[int, int]] = Counter()
    seen_by_engine = {
        number: [*request.prompt.tolist(), *answers.given[number]] for number, request in enumerate(engine.requests)
    }
    paths = []
    for history in session.trajectories():
        paths.append(history.tokens.tolist())
        sample = history.to_sample(GroupKey(0, 0, 0), 0, 0)
        chosen = sample.loss_mask
        assert (sample.versions[~chosen] == -1).all()
        for version, logprob in zip(sample.versions[chosen].tolist(), sample.logprobs[chosen].tolist(), strict=True):
            trained[version, round(-logprob - 100 * version) - 1] += 1
    assert trained == sampled, "each sampled token once, with its own log-prob and version"
    for number, tokens in seen_by_engine.items():
        if number not in lost:
            assert any(path[: len(tokens)] == tokens for path in paths), "a path is what the engine was asked, and said"


def _length(lengths: list[int], number: int) -> int:
    return lengths[number % len(lengths)] + len(str(number)) + 1
