"""Rollout functions: what their buffer gives, what becomes of what they add, and of what they leave."""

from __future__ import annotations

import asyncio
import runpy
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rollout_helpers import EOS, PaperRewards, ScriptedEngine, chunk, dead, hangs, ids, says, settings

from headrace.config import ConfigError
from headrace.engines.completions import NotServed
from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk
from headrace.experience.header import header_of
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import Group, GroupKey, SampleStatus
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.episode_scoring import EpisodeScoring
from headrace.rollout.filters import not_taken
from headrace.rollout.kept_partials import KeptNotes, KeptPartials
from headrace.rollout.rollout_function import FunctionRunner, FunctionSettings, load_rollout_function
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.store.partials import Partials
from headrace.weights.version import INITIAL, Lineage, Version

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_job" / "partial_rollout.py"
PROMPT = Prompt("p9", "3+4=", {"answer": "7"})


class StreamingEngine(ScriptedEngine):
    """Gives its text token by token. If that has no end, it goes on until it is aborted, which gives the rest. All
    tokens are routed to one expert, if somebody asks."""

    def __init__(
        self, text: str, *, rest: str = "", version: Version = INITIAL, ends: bool = True, expert: int = 0
    ) -> None:
        super().__init__(version=version)
        self.expert = expert
        self.text, self.rest, self.ends = text, rest, ends
        self._aborted = asyncio.Event()

    def abort(self, request_ids: Iterable[str]) -> None:
        super().abort(request_ids)
        self._aborted.set()

    async def generate(self, request: GenerateRequest) -> Any:
        self.requests.append(request)
        done = len(request.prompt) - len(ids(PROMPT.content))
        for letter in self.text[done:]:
            await asyncio.sleep(0)
            done += 1
            yield TokenChunk(*_arrays(ids(letter), self.version), None, experts=self._experts(request, done))
        if self.ends:
            yield replace(chunk([EOS], version=self.version), experts=self._experts(request, done + 1))
            return
        await self._aborted.wait()
        yield chunk(ids(self.rest), FinishReason.ABORT, self.version)

    def _experts(self, request: GenerateRequest, done: int) -> np.ndarray | None:
        """With the one chunk of so many `done`: of one token more, and with the first of the prompt as well."""
        if request.experts_from is None:
            return None
        first = len(ids(PROMPT.content)) + done - len(request.prompt) == 1
        count = len(request.prompt) - request.experts_from if first else 1
        return np.full((count, 1, 1), self.expert, np.uint8)


def _arrays(tokens: np.ndarray, version: Version) -> Iterator[np.ndarray]:
    made = chunk(tokens, version=version)
    yield from (made.tokens, made.logprobs, made.versions, made.branches)


async def while_it_holds(condition: Callable[[], bool]) -> None:
    while condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class Playing:
    """A runner, and the groups that it was given."""

    def __init__(self, function: Any, engine: Any, *, samples: int = 2, folder: Path | None = None, **changes: Any):
        self.engine, self.runtime = engine, changes.pop("runtime", None) or InlineRuntime()
        values = {"timeout_s": 5.0, "evaluation": False, "masks_continued": False, **changes}
        buffer_filter, rewards = values.pop("buffer_filter", None), values.pop("rewards", None)
        policy = settings(
            engine,
            services=self.runtime,
            return_experts=values.pop("return_experts", False),
            stop=values.pop("stop", ()),
        )
        kept, notes = None, None
        if folder is not None:
            notes = KeptNotes(Partials(folder), self.runtime)
            kept = KeptPartials(Partials(folder), self.runtime, masks=values["masks_continued"])
        self.runner = FunctionRunner(
            function,
            FunctionSettings(name="f", prompts_per_batch=2, samples_per_prompt=samples, max_staleness=2, **values),
            policy,
            EpisodeScoring(policy, rewards or PaperRewards()),
            buffer_filter=buffer_filter,
            partials=kept,
            notes=notes,
        )

    def group(self, position: int = 0, deadline: int | None = None, issue: int = 0) -> asyncio.Task[Group]:
        version = self.engine.version
        due = version.number + 2 if deadline is None else deadline
        return asyncio.create_task(self.runner.run_group(GroupKey(0, position, 0), PROMPT, version, due, issue))


def play(function: Any, engine: Any, count: int = 1, **changes: Any) -> list[Group]:
    async def run() -> list[Group]:
        playing = Playing(function, engine, **changes)
        return await asyncio.gather(*(playing.group(position) for position in range(count)))

    return asyncio.run(run())


async def all_of(buffer: Any, batch: int, evaluation: bool) -> list[Any]:
    groups = await buffer.get(8)
    await asyncio.gather(*(sample.generate() for group in groups for sample in group))
    return groups


def test_what_a_function_returns_is_scored_and_trained() -> None:
    seen = []

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        seen.append((batch, evaluation, len(buffer), buffer.prompts_per_batch, buffer.samples_per_prompt))
        groups = await all_of(buffer, batch, evaluation)
        assert [sample.row for group in groups for sample in group] == [PROMPT.row] * 4
        assert len(buffer) == 0
        return groups

    v4 = Version(0, 4)
    groups = play(function, ScriptedEngine(lambda _: chunk([*ids("7"), EOS], version=v4), version=v4), 2)
    assert seen == [(4, False, 2, 2, 2)]
    assert [group.key for group in groups] == [GroupKey(0, 0, 0), GroupKey(0, 1, 0)]
    assert all((group.start_version, group.deadline, group.prompt_id) == (4, 6, "p9") for group in groups)
    samples = [sample for group in groups for sample in group.samples]
    assert [(sample.episode, sample.reward, str(sample.status)) for sample in samples] == [
        (0, 1.0, "completed"),
        (1, 1.0, "completed"),
    ] * 2
    assert all(sample.versions.tolist() == [-1] * 4 + [4, 4] for sample in samples)
    assert all(sample.loss_mask.tolist() == [False] * 4 + [True, True] for sample in samples)


def test_rewards_may_be_given_or_asked_for() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await all_of(buffer, batch, evaluation)
        group[0].reward = 0.25
        assert await group[1].score() == 1.0
        group[1].metadata["turn"] = 3
        await buffer.add([group])

    (group,) = play(function, ScriptedEngine(says("7")))
    assert [sample.reward for sample in group.samples] == [0.25, 1.0]
    assert [sample.metadata for sample in group.samples] == [{}, {"turn": 3}]


def test_observations_are_given_and_not_trained() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await all_of(buffer, batch, evaluation)
        for sample in group:
            assert (await sample.generate()).tokens.size == 0, "it is finished"
            sample.add_observation(ids("no"))
            assert not sample.is_finished
            await sample.generate()
            assert sample.response == "7"
        return [group]

    (group,) = play(function, ScriptedEngine(says("7")), samples=1)
    (sample,) = group.samples
    assert sample.loss_mask.tolist() == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 2


def test_a_group_that_is_put_back_goes_on_from_what_it_has() -> None:
    calls = []

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        (sample,) = group
        calls.append((sample.response, sample.status))
        under_way = asyncio.create_task(sample.generate())
        if len(calls) == 1:
            await while_it_holds(lambda: len(sample._coming) < 2)
            await buffer.abort()
            assert (await under_way).finish_reason is FinishReason.ABORT
            sample.metadata["aborted"] = True
            engine.version, engine.ends = Version(0, 1), True
        await under_way
        return [group]

    engine = StreamingEngine("1234567", ends=False)
    (group,) = play(function, engine, samples=1)
    (sample,) = group.samples
    had, status = calls[1]
    assert calls[0] == ("", None)
    assert status is SampleStatus.ABORTED
    assert had
    assert "1234567".startswith(had)
    assert sample.tokens.tolist() == [*ids("3+4=1234567"), EOS]
    assert sample.versions[4:].tolist() == [0] * len(had) + [1] * (8 - len(had))
    assert sample.metadata == {"aborted": True}
    assert (group.start_version, group.deadline) == (0, 2), "it is due when its oldest token is"
    first, second = engine.requests
    assert second.prompt.tolist() == ids("3+4=" + had).tolist()
    assert (second.sampling.max_new_tokens, second.noise_key) == (16 - len(had), first.noise_key)


@pytest.mark.parametrize("cut", [2, 3, 4, 5])
def test_a_stop_text_ends_a_sample_that_was_cut_off_in_its_midst(cut: int) -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        if not engine.ends:
            await while_it_holds(lambda: len(group[0]._coming) < cut)
            await buffer.abort()
            assert len(group[0].response) == cut
            engine.ends, engine.text = True, "12</a>345"
        await under_way
        return [group]

    engine = StreamingEngine("12</a>345"[:cut], ends=False)
    (group,) = play(function, engine, samples=1, stop=("</a>",))
    (sample,) = group.samples
    assert sample.tokens.tolist() == ids("3+4=12</a>").tolist()
    assert sample.status is SampleStatus.COMPLETED


def test_a_stop_text_does_not_begin_in_what_is_given() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await all_of(buffer, batch, evaluation)
        group[0].add_observation(ids("x"))
        await group[0].generate()
        return [group]

    engine = ScriptedEngine(says("a"), lambda _: chunk([*ids("ba"), EOS]))
    (group,) = play(function, engine, samples=1, stop=("xb",))
    assert group.samples[0].tokens.tolist() == [*ids("3+4=a"), EOS, *ids("xba"), EOS]


def test_what_an_engine_had_sampled_and_not_sent_is_kept_too() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        if not engine.ends:
            await while_it_holds(lambda: len(group[0]._coming) < 3)
            engine.ends, engine.text = True, "1234567"
            return None  # while it is being generated
        await under_way
        return [group]

    engine = StreamingEngine("123", rest="45", ends=False)
    (group,) = play(function, engine, samples=1)
    assert group.samples[0].tokens.tolist() == [*ids("3+4=1234567"), EOS]
    assert [len(request.prompt) for request in engine.requests] == [4, 9]


def test_an_engine_that_does_not_hear_of_it_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.rollout.rollout_sample._GRACE_S", 0.05)

    class Deaf(StreamingEngine):
        def abort(self, request_ids: Iterable[str]) -> None:
            pass

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        if not engine.ends:
            await while_it_holds(lambda: len(group[0]._coming) < 3)
            await buffer.abort()
            engine.ends, engine.text = True, "12345"
            assert (await under_way).tokens.tolist() == ids("123").tolist()
            return None
        await under_way
        return [group]

    engine = Deaf("123", ends=False)
    (group,) = play(function, engine, samples=1)
    assert group.samples[0].tokens.tolist() == [*ids("3+4=12345"), EOS]


@pytest.mark.parametrize("error", [None, ValueError("late"), NotServed("late")])
def test_a_call_that_ends_after_the_next_has_begun_leaves_that_alone(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.rollout.rollout_sample._GRACE_S", 0.0)

    class Slow(StreamingEngine):
        """To end what was cut off."""

        async def generate(self, request: GenerateRequest) -> Any:
            try:
                async for each in super().generate(request):
                    yield each
            except asyncio.CancelledError:
                for _ in range(20):
                    await asyncio.sleep(0)
                if error is not None:
                    raise error from None
                raise

        def abort(self, request_ids: Iterable[str]) -> None:
            pass

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        first = asyncio.create_task(group[0].generate())
        await while_it_holds(lambda: len(group[0]._coming) < 3)
        await buffer.abort()
        engine.ends, engine.text = True, "123" + "4" * 40
        second = asyncio.create_task(group[0].generate())
        assert (await first).tokens.tolist() == ids("123").tolist()
        assert not second.done()
        await second
        return [group]

    engine = Slow("123", ends=False)
    (group,) = play(function, engine, samples=1)
    (sample,) = group.samples
    assert sample.tokens.tolist() == [*ids("3+4=123" + "4" * 40), EOS]
    assert (str(sample.status), sample.failure) == ("completed", None)


def continued(masks: bool, rewards: PaperRewards | None = None) -> Group:
    """A group of one sample, which version 0 began and version 1 ended."""

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        if not engine.ends:
            await while_it_holds(lambda: len(group[0]._coming) < 7)
            await buffer.abort()
            engine.version, engine.ends, engine.text = Version(0, 1), True, "123456789"
        await under_way
        return [group]

    engine = StreamingEngine("1234567", ends=False)
    (group,) = play(function, engine, samples=1, masks_continued=masks, rewards=rewards)
    return group


def test_what_older_weights_sampled_is_masked_if_told() -> None:
    (trained,), (masked,) = continued(False).samples, continued(True).samples
    assert trained.tokens.tolist() == masked.tokens.tolist() == [*ids("3+4=123456789"), EOS]
    assert trained.loss_mask.tolist() == [False] * 4 + [True] * 10
    assert masked.loss_mask.tolist() == [False] * 11 + [True] * 3
    assert masked.versions.tolist() == [-1] * 11 + [1] * 3
    assert masked.logprobs.tolist() == [0.0] * 11 + [-0.5] * 3


def test_what_weights_sampled_that_were_taken_back_is_masked_though_its_number_is_not_smaller() -> None:
    """Version 7 began it, the run went back to batch 4, and version 5 of the next branch goes on with it."""

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        if not engine.ends:
            await while_it_holds(lambda: len(group[0]._coming) < 7)
            await buffer.abort()
            line.go_back(Version(1, 5), {0: 4})
            engine.version, engine.ends, engine.text = Version(1, 5), True, "123456789"
        await under_way
        return [group]

    engine, line = StreamingEngine("1234567", version=Version(0, 7), ends=False), Lineage(0, {})

    async def run() -> Group:
        playing = Playing(function, engine, samples=1, masks_continued=True)
        playing.runner._policy.engines.line = line
        return await playing.group()

    (sample,) = asyncio.run(run()).samples
    assert sample.loss_mask.tolist() == [False] * 11 + [True] * 3
    assert sample.versions.tolist() == [-1] * 11 + [5] * 3


def test_the_reward_sees_all_of_a_response_that_was_gone_on_with() -> None:
    plain, masked = PaperRewards(), PaperRewards()
    continued(False, plain)
    continued(True, masked)
    assert plain.asked == masked.asked == ["123456789"]
    conversation = [{"role": "user", "content": "3+4="}, {"role": "assistant", "content": "123456789"}]
    assert plain.conversations == masked.conversations == [conversation]


def test_those_that_are_due_first_come_first_and_what_was_begun_before_what_was_not() -> None:
    order = []

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        groups = await buffer.get(8)
        order.extend(group[0].holder.key.position for group in groups)
        await asyncio.gather(*(sample.generate() for group in groups for sample in group))
        return groups

    async def run() -> None:
        playing = Playing(function, ScriptedEngine(says("7")), samples=1)
        await asyncio.gather(*(playing.group(position, deadline) for position, deadline in enumerate([9, 7, 8, 7])))

    asyncio.run(run())
    assert order == [1, 3, 2, 0]


def reason_of(group: Group) -> str | None:
    return not_taken(header_of(group), lambda: group, 0)


async def generated(buffer: Any) -> Any:
    return await all_of(buffer, 0, False)


def test_a_filter_chooses_among_groups_that_are_added_together() -> None:
    seen: list[list[int]] = []

    def every_other(groups: Any) -> Any:
        groups.sort(key=lambda group: group.key.position)
        seen.append([group.key.position for group in groups])
        return [group for group in groups if group.key.position % 2]

    groups = play(all_of, ScriptedEngine(says("7")), 4, buffer_filter=every_other)
    assert seen == [[0, 1, 2, 3]]
    assert [reason_of(group) for group in groups] == ["buffer_filter", None, "buffer_filter", None]
    assert all(len(group.trainable) == 2 for group in groups), "those that are dropped are in the journal, too"


def test_what_is_dropped_or_left_is_told_apart() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        groups = await all_of(buffer, batch, evaluation)
        by_position = {group[0].holder.key.position: group for group in groups}
        await buffer.drop([by_position[0]])
        await buffer.add([by_position[2]])

    groups = play(function, ScriptedEngine(says("7")), 3)
    assert [reason_of(group) for group in groups] == ["rollout_function", "not_added", None]


def test_the_examples_filter_sees_groups_as_well_that_a_batch_has_no_room_for() -> None:
    """Of four, two make the batch, one is trained with a later one, and one has samples that are all alike."""
    place = runpy.run_path(str(EXAMPLE))["place"]

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        groups = sorted(await all_of(buffer, batch, evaluation), key=lambda group: group[0].holder.key)
        data: list[Any] = []
        for group in groups:
            group[0].reward, group[1].reward = 0.0, float(group is not groups[3])
        assert [await place(buffer, group, data, target=2) for group in groups] == [0, 0, 0, 1]
        assert data == groups[:2]
        return data

    groups = play(function, ScriptedEngine(says("7")), 4)
    assert [reason_of(group) for group in groups] == [None, None, None, "rollout_function"]


def test_an_unfinished_group_that_is_dropped_is_no_failure() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        await buffer.drop(await buffer.get(1))

    (group,) = play(function, ScriptedEngine(says("7")))
    assert [(str(sample.status), sample.failure) for sample in group.samples] == [("aborted", None)] * 2


def failures(group: Group) -> list[str]:
    return [sample.failure or "" for sample in group.samples]


def raising(error: BaseException) -> Callable[..., Any]:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        await buffer.get(1)
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "failure"),
    [
        (raising(ValueError("no")), "workflow: ValueError: no"),
        (raising(SystemExit(3)), "workflow: it called sys.exit(3)"),
        (raising(asyncio.CancelledError()), "workflow: it raised CancelledError, though nobody"),
    ],
)
def test_a_function_that_raises_fails_the_groups_that_it_has(function: Any, failure: str) -> None:
    (group,) = play(function, ScriptedEngine(says("7")))
    assert all(words.startswith(failure) for words in failures(group))
    assert not group.trainable


def leaves(sample: Any) -> None:
    sample.metadata["x"] = float("nan")


def gives_no_number(sample: Any) -> None:
    sample.reward = "good"


@pytest.mark.parametrize(("spoil", "words"), [(leaves, "metadata.own.x is nan"), (gives_no_number, "'good'")])
def test_what_it_leaves_in_a_group_and_cannot_be_kept_fails_that_group(tmp_path: Path, spoil: Any, words: str) -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        first, *others = await buffer.get(2)
        await asyncio.gather(*(sample.generate(max_new_tokens=1) for group in (first, *others) for sample in group))
        for sample in first:
            sample.status = None
            spoil(sample)
        return others

    spoilt, whole = play(function, ScriptedEngine(says("7")), 2, folder=tmp_path / "partial")
    assert all(words in failure for failure in failures(spoilt))
    assert not any(failures(whole))


def calling(call: Callable[[Any], Any]) -> Callable[..., Any]:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        groups = await all_of(buffer, batch, evaluation)
        return await call(buffer, groups)  # type: ignore[call-arg]

    return function


async def returns(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda buffer, batch, evaluation: returns(None), "f returned and had done nothing with any of the 1 groups"),
        (calling(lambda buffer, groups: returns([[1, 2]])), "a group is a list of samples that buffer.get gave, and"),
        (calling(lambda buffer, groups: returns([groups[0][:1]])), "a group of 1 samples is not one that buffer.get"),
        (calling(lambda buffer, groups: buffer.get(0)), "buffer.get was called with 0; ask for a number of groups"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_mend(function: Any, words: str) -> None:
    (group,) = play(function, ScriptedEngine(says("7")))
    assert all(words in failure for failure in failures(group)), failures(group)


Then = Callable[[Any, list[Any]], Any]


def hangs_once(calls: list[int], then: Then | None = None) -> Callable[..., Any]:
    """The first call takes one group, and waits for what never comes; `then`: what it does instead."""

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        calls.append(len(buffer))
        if len(calls) > 1:
            return await all_of(buffer, batch, evaluation)
        groups = await buffer.get(1)
        return await (asyncio.get_running_loop().create_future() if then is None else then(buffer, groups))

    return function


async def two_groups(playing: Playing) -> list[asyncio.Task[Group]]:
    """One that the call has, and one that waits."""
    buffer = playing.runner.buffer
    first = playing.group(0)
    await while_it_holds(lambda: not buffer.taken())
    second = playing.group(1)
    await while_it_holds(lambda: not len(buffer))
    return [first, second]


def is_played(group: Group) -> bool:
    return [sample.reward for sample in group.samples] == [1.0, 1.0]


async def left_alone(buffer: Any, group: Any) -> None:
    await buffer.add([group])


async def ended(buffer: Any, group: Any) -> None:
    await asyncio.gather(*(sample.generate() for sample in group))
    await buffer.add([group])
    await asyncio.sleep(0)  # whoever waits for it has it


async def gone_on_with(buffer: Any, group: Any) -> None:
    await group[0].generate()
    group[0].status = None  # there is more to come
    await buffer.add([group])


@pytest.mark.parametrize(("deed", "is_something"), [(ended, True), (gone_on_with, True), (left_alone, False)])
def test_a_call_may_leave_a_group_alone_for_one_that_came_later(
    tmp_path: Path, deed: Callable[..., Any], *, is_something: bool
) -> None:
    """Which is begun already: the tokens that it came with are no work of the call."""
    calls: list[int] = []

    async def begins(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        await gone_on_with(buffer, group)
        begun.set()
        await asyncio.get_running_loop().create_future()

    async def puts_back(buffer: Any, groups: list[Any]) -> None:
        await both.wait()
        (later,) = await buffer.get(1)
        assert later[0].response_length == 2
        await deed(buffer, later)
        await buffer.add(groups)

    begun, both = asyncio.Event(), asyncio.Event()

    async def run() -> list[Group]:
        earlier = Playing(begins, ScriptedEngine(says("7")), folder=tmp_path)
        task = earlier.group(1)
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        playing = Playing(hangs_once(calls, puts_back), ScriptedEngine(says("7")), folder=tmp_path)
        there = await two_groups(playing)
        both.set()
        return await asyncio.gather(*there)

    groups = asyncio.run(run())
    words = "" if is_something else "f returned and had done nothing with any of the 2 groups"
    assert all(bool(failure) != is_something and words in failure for each in groups for failure in failures(each))


def test_a_filter_that_gives_something_else_is_told() -> None:
    (group,) = play(all_of, ScriptedEngine(says("7")), buffer_filter=lambda groups: ["one"])
    assert all(
        "rollout.buffer_filter has to return a list of those of its groups" in words for words in failures(group)
    )


def test_an_engine_that_fails_costs_its_own_sample() -> None:
    (group,) = play(all_of, ScriptedEngine(says("7"), dead))
    assert sorted(str(sample.status) for sample in group.samples) == ["completed", "failed"]
    assert sorted(failures(group)) == ["", "engine: the engine died"]


def test_a_function_that_never_ends_costs_the_groups_that_it_has() -> None:
    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        await buffer.get(1)
        await asyncio.get_running_loop().create_future()

    async def run() -> Group:
        playing = Playing(function, ScriptedEngine(says("7")), timeout_s=0.1)
        return await playing.group()

    group = asyncio.run(run())
    assert all(words.startswith("timeout: waited 0.1 s for f to add group 0/0#0") for words in failures(group))


@pytest.mark.parametrize("how", ["late", "ended", "not served"])
def test_a_call_that_hangs_costs_the_group_that_it_has_and_the_next_call_has_the_others(how: str) -> None:
    calls: list[int] = []

    async def run() -> None:
        playing = Playing(hangs_once(calls), ScriptedEngine(says("7")), timeout_s=0.3)
        first, second = await two_groups(playing)
        if how == "ended":
            first.cancel()
        elif how == "not served":
            playing.runner.buffer.taken()[0].not_served(NotServed("no engine came back"))
        assert is_played(await asyncio.wait_for(second, 5.0))
        (ended,) = await asyncio.gather(first, return_exceptions=True)
        if isinstance(ended, Group):
            assert all(words.startswith("timeout: waited 0.3 s") for words in failures(ended))
        kinds = {"late": Group, "ended": asyncio.CancelledError, "not served": NotServed}
        assert isinstance(ended, kinds[how])

    asyncio.run(run())
    assert calls == [1, 1]


def takes_nothing_at_first(calls: list[int]) -> Callable[..., Any]:
    """The first call asks for no group."""

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        calls.append(len(buffer))
        if len(calls) == 1:
            await asyncio.get_running_loop().create_future()
        return await all_of(buffer, batch, evaluation)

    return function


def test_a_call_that_takes_no_group_costs_those_that_wait_and_the_next_call_has_later_ones() -> None:
    calls: list[int] = []

    async def main(runtime: VirtualRuntime) -> None:
        function = takes_nothing_at_first(calls)
        playing = Playing(function, ScriptedEngine(says("7")), timeout_s=60.0, runtime=runtime)
        late = await asyncio.gather(playing.group(0), playing.group(1))
        assert runtime.clock.now() == pytest.approx(60.0)
        words = "timeout: waited 60.0 s for f to take any of the 2 groups that wait (buffer.get)"
        assert all(failure.startswith(words) for group in late for failure in failures(group))
        assert is_played(await playing.group(2))

    run_virtually(main)
    assert calls == [2, 1]


@pytest.mark.parametrize("deed", [ended, gone_on_with])
def test_a_call_that_hangs_once_it_has_added_its_group_costs_those_that_wait(deed: Callable[..., Any]) -> None:
    calls: list[int] = []

    async def hangs_later(buffer: Any, groups: list[Any]) -> None:
        await asyncio.sleep(40.0)
        await deed(buffer, groups[0])
        await asyncio.get_running_loop().create_future()

    async def main(runtime: VirtualRuntime) -> None:
        function = hangs_once(calls, hangs_later)
        playing = Playing(function, ScriptedEngine(says("7")), timeout_s=60.0, runtime=runtime)
        *_, last = await asyncio.gather(*await two_groups(playing))
        assert runtime.clock.now() == pytest.approx(100.0, abs=1.0)
        assert all("for f to take any of the" in words for words in failures(last))
        assert is_played(await playing.group(2))

    run_virtually(main)
    assert calls == [1, 1]


def test_a_call_has_its_time_where_no_group_waits_and_anew_with_each_that_it_takes() -> None:
    """As with the gate shut."""
    calls: list[int] = []

    async def goes_on(buffer: Any, groups: list[Any]) -> None:
        await ended(buffer, groups[0])
        await asyncio.sleep(600.0)
        may_come.set()
        for _ in range(4):
            await asyncio.sleep(50.0)
            await ended(buffer, (await buffer.get(1))[0])

    may_come = asyncio.Event()

    async def main(runtime: VirtualRuntime) -> None:
        function = hangs_once(calls, goes_on)
        playing = Playing(function, ScriptedEngine(says("7")), timeout_s=60.0, runtime=runtime)
        assert is_played(await playing.group(0))
        await may_come.wait()
        assert all(map(is_played, await asyncio.gather(*(playing.group(position) for position in range(1, 5)))))

    run_virtually(main)
    assert calls == [1]


@pytest.mark.parametrize("ends", [True, False])
def test_a_call_that_swallows_its_end_gets_nothing_more(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    """Whether it ends a little later or never, the next call begins, and is not disturbed."""
    monkeypatch.setattr("headrace.rollout.rollout_function._GRACE_S", 0.1)
    calls: list[int] = []
    got: list[int] = []

    async def swallows(buffer: Any, groups: list[Any]) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        while not (ends and got) and not is_over:
            got.append(len(await buffer.get(8)) + len(buffer))
            await buffer.abort()
            await buffer.add(groups)
        return groups

    is_over: list[bool] = []

    async def run() -> None:
        playing = Playing(hangs_once(calls, swallows), ScriptedEngine(says("7")))
        first, second = await two_groups(playing)
        first.cancel()
        assert is_played(await asyncio.wait_for(second, 5.0))
        assert is_played(await asyncio.wait_for(playing.group(2), 5.0))
        is_over.append(True)

    asyncio.run(run())
    assert calls == [1, 1, 1]
    assert got
    assert not any(got)


def test_a_call_goes_on_while_it_has_a_group_and_where_one_ends_that_waits() -> None:
    calls: list[int] = []

    async def goes_on(buffer: Any, groups: list[Any]) -> Any:
        others = await buffer.get(1)
        has_two.set()
        await one_ended.wait()
        await asyncio.gather(*(sample.generate() for sample in others[0]))
        await buffer.add(others)
        await another_ended.wait()
        return await all_of(buffer, 0, False)

    has_two, one_ended, another_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def run() -> None:
        playing = Playing(hangs_once(calls, goes_on), ScriptedEngine(says("7")))
        first, second = await two_groups(playing)
        await has_two.wait()
        await ended(first)
        one_ended.set()
        assert is_played(await second)
        third, fourth = playing.group(2), playing.group(3)
        await while_it_holds(lambda: len(playing.runner.buffer) < 2)
        await ended(third)
        another_ended.set()
        assert is_played(await asyncio.wait_for(fourth, 5.0))

    async def ended(task: asyncio.Task[Group]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert calls == [1]


def test_samples_of_a_group_that_has_ended_give_nothing_and_let_others_go_on() -> None:
    """However often a function asks for what was cut off."""
    calls: list[int] = []
    asked: list[bool] = []

    async def asks_again(buffer: Any, groups: list[Any]) -> Any:
        (sample, _) = groups[0]
        while not sample.is_finished and len(asked) < 100_000:
            asked.append(len((await sample.generate()).tokens) > 0)

    async def run() -> None:
        playing = Playing(hangs_once(calls, asks_again), ScriptedEngine(hangs, says("7")))
        first, second = await two_groups(playing)
        await while_it_holds(lambda: not playing.engine.requests)
        first.cancel()
        assert is_played(await asyncio.wait_for(second, 5.0))

    asyncio.run(run())
    assert calls == [1, 1]
    assert asked == [False] * len(asked)
    assert len(asked) < 10, "it is cancelled as soon as it asks again"


def test_what_was_put_back_is_gone_on_with_under_the_next_issue(tmp_path: Path) -> None:
    """By another runner, as after a crash: the tokens of versions that the new deadline allows for."""
    (group,), asked = restarted(tmp_path, version=Version(0, 0), deadline=2)
    assert asked == ["3+4=123"]
    assert group.samples[0].tokens.tolist() == [*ids("3+4=12345"), EOS]
    assert (group.issue, group.samples[0].metadata) == (1, {"n": 1})
    experts = group.samples[0].experts
    assert experts is not None
    assert experts.ravel().tolist() == [1] * 6 + [2] * 3


@pytest.mark.parametrize(("own", "terms"), [(None, {"right": 1.0, "short": 0.5}), (2.0, {})])
def test_what_was_scored_before_a_restart_has_the_terms_of_its_reward(
    tmp_path: Path, own: float | None, terms: dict[str, float]
) -> None:
    """Not those of a reward in whose place the function has set its `own`."""
    rewards = PaperRewards(RewardOutcome(1.5, terms={"right": 1.0, "short": 0.5}))

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        if group[0].is_finished:
            return [group]
        await group[0].generate()
        await group[0].score()
        group[0].reward = group[0].reward if own is None else own
        await buffer.save()
        saved.set()
        return await asyncio.get_running_loop().create_future()

    saved = asyncio.Event()

    async def run() -> Group:
        common: dict[str, Any] = {"samples": 1, "folder": tmp_path / "partial", "rewards": rewards}
        old = Playing(function, ScriptedEngine(says("7")), **common).group()
        await saved.wait()
        group = await Playing(function, ScriptedEngine(), **common).group(issue=1)
        old.cancel()
        await asyncio.gather(old, return_exceptions=True)
        return group

    (sample,) = asyncio.run(run()).samples
    assert (sample.reward, sample.terms) == (1.5 if own is None else own, terms)
    assert len(rewards.asked) == 1


def test_what_would_be_too_old_by_the_new_deadline_begins_again(tmp_path: Path) -> None:
    (group,), asked = restarted(tmp_path, version=Version(0, 1), deadline=3)
    assert asked == ["3+4="]
    assert group.samples[0].versions.tolist() == [-1] * 4 + [1] * 6
    assert group.samples[0].metadata == {}


def test_what_would_be_too_old_is_context_if_told(tmp_path: Path) -> None:
    (group,), asked = restarted(tmp_path, version=Version(0, 1), deadline=3, masks=True)
    assert asked == ["3+4=123"]
    assert group.samples[0].versions.tolist() == [-1] * 7 + [1] * 3
    assert group.samples[0].metadata == {"n": 1}


def test_what_is_due_when_it_was_keeps_its_tokens_on_newer_weights(tmp_path: Path) -> None:
    (group,), _ = restarted(tmp_path, version=Version(1, 2), deadline=2)
    assert group.samples[0].versions.tolist() == [-1] * 4 + [0] * 3 + [2] * 3
    assert group.samples[0].branches.tolist() == [-1] * 4 + [0] * 3 + [1] * 3


def test_what_was_saved_is_read_again_where_the_first_group_was_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, readings = KeptNotes.read, []

    async def hangs_first(kept: KeptNotes) -> bytes | None:
        readings.append(1)
        if len(readings) == 2:
            await asyncio.get_running_loop().create_future()
        return await read(kept)

    monkeypatch.setattr(KeptNotes, "read", hangs_first)
    found = []

    async def saves(buffer: Any, batch: int, evaluation: bool) -> Any:
        found.append(dict(buffer.metadata))
        buffer.metadata["calls"] = 1
        await buffer.save()
        return await all_of(buffer, batch, evaluation)

    async def run() -> None:
        await Playing(saves, ScriptedEngine(says("7")), samples=1, folder=tmp_path / "partial").group()
        again = Playing(saves, ScriptedEngine(says("7")), samples=1, folder=tmp_path / "partial")
        first = again.group()
        await while_it_holds(lambda: len(readings) < 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await again.group(1)

    asyncio.run(run())
    assert found == [{}, {"calls": 1}]


def restarted(folder: Path, *, version: Version, deadline: int, masks: bool = False) -> tuple[list[Group], list[str]]:
    """What comes of a group of one sample that version 0 had written `123` of; and the prompts of later requests."""

    async def puts_back(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        under_way = asyncio.create_task(group[0].generate())
        await while_it_holds(lambda: len(group[0]._coming) < 3)
        await buffer.abort()
        await under_way
        group[0].metadata["n"] = 1
        buffer.metadata["calls"] = 1
        await buffer.save()
        await buffer.add([group])
        saved.set_result(None)
        await asyncio.get_running_loop().create_future()

    async def ends(buffer: Any, batch: int, evaluation: bool) -> Any:
        assert buffer.metadata == {"calls": 1}
        return await all_of(buffer, batch, evaluation)

    saved: asyncio.Future[None]

    async def run() -> tuple[list[Group], list[str]]:
        nonlocal saved
        saved = asyncio.get_running_loop().create_future()
        common: dict[str, Any] = {"folder": folder / "partial", "return_experts": True}
        old = Playing(puts_back, StreamingEngine("123", ends=False, expert=1), samples=1, **common)
        task = old.group()
        await saved
        (kept,) = Partials(folder / "partial").keys()
        assert kept == (0, 0, 0)
        engine = StreamingEngine("12345", version=version, expert=2)
        new = Playing(ends, engine, samples=1, masks_continued=masks, **common)
        group = await new.group(deadline=deadline, issue=1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        text = new.runner._policy.text
        return [group], [text.decode(request.prompt) for request in engine.requests]

    return asyncio.run(run())


def test_one_that_is_ended_keeps_what_it_has(tmp_path: Path) -> None:
    """As at a shutdown."""

    async def function(buffer: Any, batch: int, evaluation: bool) -> Any:
        (group,) = await buffer.get(1)
        samples.extend(group)
        await asyncio.gather(*(sample.generate() for sample in group))

    samples: list[Any] = []

    async def run() -> None:
        playing = Playing(function, StreamingEngine("123", ends=False), folder=tmp_path / "partial")
        task = playing.group()
        await while_it_holds(lambda: not samples or any(len(sample._coming) < 3 for sample in samples))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert playing.runner._call is not None
        assert playing.runner._call.done(), "a call that has nothing left is ended"

    asyncio.run(run())
    assert Partials(tmp_path / "partial").keys() == [(0, 0, 0)]
    assert [sample.response for sample in samples] == ["123", "123"]


def test_what_cannot_be_read_begins_again(tmp_path: Path) -> None:
    Partials(tmp_path / "partial").write((0, 0, 0), b"torn")
    (group,) = play(all_of, StreamingEngine("12345"), samples=1, folder=tmp_path / "partial")
    assert group.samples[0].tokens.tolist() == [*ids("3+4=12345"), EOS]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def f(buffer, batch, evaluation): ...", "which is not async; write async def"),
        ("async def f(buffer): ...", r"has the signature \(buffer\), but is called as \(buffer, batch, evaluation\)"),
        ("f = 3", "is a int; name a function"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(tmp_path: Path, code: str, words: str) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(ConfigError, match=words):
        load_rollout_function(f"{tmp_path}/own.py:f", "rollout.function")
