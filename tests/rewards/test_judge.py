"""The reward `judge`: what is asked, what the answer means, and what becomes of one that means nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rollout_helpers import EOS, ScriptedEngine, char_tokenizer, chunk, dead, hangs, ids, says

from headrace.config import ConfigError
from headrace.config.reward import JudgeConfig, RewardConfig
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, FinishReason
from headrace.rewards.judge import Ask, JudgeModel, defused, fill, number, texts
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.row_checks import check_rows, required_columns
from headrace.runtime.inline import SystemClock

JUDGE: dict[str, Any] = {"prompt": "{prompt} {response}"}


def config(**changes: Any) -> RewardConfig:
    return RewardConfig.model_validate({"function": "judge", "judge": {**JUDGE, **changes}})


def score(
    reward: RewardConfig, ask: Ask | None, *cases: tuple[str, dict[str, Any]], prompt: Any = "Q"
) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        pool = RewardPool(reward, clock=SystemClock(), ask=ask)
        await pool.start()
        try:
            return await asyncio.gather(*(pool.score(response, row, prompt) for response, row in cases))
        finally:
            await pool.close()

    return asyncio.run(play())


def says_its_response(judge: JudgeConfig, values: Mapping[str, str], still: object = None) -> Any:
    async def answer() -> str:
        return values["response"]

    return answer()


# What it is asked


def test_a_nested_column_has_a_placeholder() -> None:
    judge = config(prompt="{response} / {extra_info.answer} / {extra_info.} {.a}").judge
    assert judge.columns == ("extra_info.answer",)
    assert texts(judge, "r", {"extra_info.answer": 4}, "p")["extra_info.answer"] == "4"


def test_what_is_put_in_is_not_looked_at_again() -> None:
    values = {"prompt": "{response}", "response": "{answer} {0} {prompt.__class__} {", "answer": "42"}
    filled = fill('{prompt}|{response}|{answer}|{"score": 1}|{}', values)
    assert filled == '{response}|{answer} {0} {prompt.__class__} {|42|{"score": 1}|{}'


@given(st.text(), st.text())
def test_any_text_arrives_as_it_is(prompt: str, response: str) -> None:
    assert fill("<{response}> {prompt}", {"prompt": prompt, "response": response}) == f"<{response}> {prompt}"


def test_the_question_shows_columns_and_the_conversation() -> None:
    asked: list[str] = []

    async def ask(judge: JudgeConfig, values: Mapping[str, str], still: object = None) -> str:
        asked.append(fill(judge.prompt or "", values))
        return "1"

    reward = config(prompt="{prompt} / {response} / {answer} / {facts}")
    row = {"answer": 42, "facts": ["a", "ä"], "other": None}
    score(reward, ask, ("r", row))
    score(reward, ask, ("r", row), prompt=[{"role": "user", "content": "Hi"}])
    score(reward, ask, ("r", row), prompt=[{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"}])
    assert asked == [
        'Q / r / 42 / ["a", "ä"]',
        'Hi / r / 42 / ["a", "ä"]',
        'system: Be\n\nuser: Hi / r / 42 / ["a", "ä"]',
    ]


def test_rows_are_checked_for_the_columns_that_it_shows() -> None:
    reward = config(prompt="{prompt} {response} {gold} {gold} {notes}")
    assert required_columns(reward) == ("gold", "notes")
    with pytest.raises(ConfigError, match=r"row 1 has no value in column 'notes', which its reward judge.* judge\.pro"):
        check_rows(reward, [("row 1", {"gold": "x"})])


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"function": "judge"}, r"judge and judge\.prompt go together"),
        ({"judge": JUDGE}, r"judge and judge\.prompt go together"),
        ({"function": "judge", "judge": {"prompt": "{prompt} {answer}"}}, "prompt does not show {response}"),
        ({"function": "judge", "judge": {**JUDGE, "pattern": "("}}, r"pattern is '\(', which is no regular expression"),
        ({"function": "judge", "judge": {**JUDGE, "pattern": "[0-9]+"}}, "with 0 groups; it needs one"),
        ({"function": "judge", "judge": {**JUDGE, "pattern": "(a)(b)"}}, "with 2 groups; it needs one"),
        ({"function": "judge", "judge": {**JUDGE, "low": 1}}, "low and high go together"),
        ({"function": "judge", "judge": {**JUDGE, "low": 5, "high": 1}}, r"low \(5\) is not below high \(1\)"),
        (
            {
                "terms": [
                    {"function": "judge", "judge": {**JUDGE, "model": "m"}},
                    {"function": "judge", "judge": {**JUDGE, "model": "m", "engine": {"max_context": 9}}},
                ]
            },
            r"two judges are 'm' and share an engine; give both the same judge\.engine",
        ),
    ],
)
def test_a_judge_that_could_not_judge_is_refused(reward: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RewardConfig.model_validate(reward)


# What its answer means


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("7", 7.0),
        ("Score: 7/10", 7.0),
        ("It has 2 faults. I give 4.5 / 5.", 4.5),
        ("-2", -2.0),
        ("7-3", 3.0),
        ("better than v2, so 6", 6.0),
    ],
)
def test_the_last_number_counts(answer: str, value: float) -> None:
    assert number(JudgeConfig.model_validate(JUDGE), answer) == value


def test_low_and_high_become_0_and_1() -> None:
    judge = JudgeConfig.model_validate({**JUDGE, "low": 1, "high": 5})
    assert [number(judge, answer) for answer in ("1", "4", "5")] == [0.0, 0.75, 1.0]


@pytest.mark.parametrize(
    ("changes", "answer", "failure"),
    [
        ({}, "I cannot say.", "reward_judge: no number in what it said: 'I cannot say.'"),
        ({}, "", "reward_judge: no number in what it said: ''"),
        ({"low": 1, "high": 5}, "10", "reward_judge: said 10, which is not between 1 and 5"),
        ({"pattern": "(nan|inf)"}, "nan", "reward_nan: the judge returned nan, which is not finite"),
        ({}, "9" * 400, "reward_nan: the judge returned inf, which is not finite"),
        ({"pattern": "(good|bad)"}, "good", "reward_judge: 'good' is no number"),
        ({"pattern": "yes|([0-9])"}, "3 yes", "reward_judge: no number in what it said: '3 yes'"),
    ],
)
def test_an_answer_that_means_nothing_fails_the_sample(changes: dict[str, Any], answer: str, failure: str) -> None:
    (outcome,) = score(config(**changes), says_its_response, (answer, {}))
    assert outcome == RewardOutcome(None, failure)


def test_a_pattern_that_would_take_for_ever_fails_the_sample() -> None:
    (outcome,) = score(config(pattern="((?:a|aa)+)$"), says_its_response, ("a" * 60 + "b", {}))
    assert outcome.failure is not None
    assert outcome.failure.startswith("reward_judge: judge.pattern took more than 0.5 s on what it said")


def test_it_is_weighted_added_and_chosen_by_row() -> None:
    judge = {"function": "judge", "judge": {**JUDGE, "low": 0, "high": 10}, "weight": 2.0}
    reward = RewardConfig.model_validate(
        {"terms": [{**judge, "rows": ["essay"]}, {"function": "exact"}], "choose_by": "task"}
    )
    essay, word = {"task": "essay", "answer": "5"}, {"task": "word", "answer": "5"}
    outcomes = score(reward, says_its_response, ("5", essay), ("5", word), ("oh", essay), ("oh", word))
    assert [outcome.value for outcome in outcomes] == [2 * 0.5 + 1, 1.0, None, 0.0]
    assert outcomes[2].failure == "reward_judge: judge: no number in what it said: 'oh'"


def test_without_an_engine_the_pool_starts_and_samples_fail() -> None:
    (outcome,) = score(config(), None, ("5", {}))
    assert (outcome.failure or "").startswith("reward_judge: no engine")


# Whom it asks


def model(engine: Any, *, chat: bool = False, max_context: int = 400) -> JudgeModel:
    tokenizer = char_tokenizer(chat=chat)
    return JudgeModel(
        EnginePool.of([engine], SystemClock()),
        tokenizer,
        stop_token_ids=(EOS,),
        max_context=max_context,
        seed=7,
    )


def ask_engine(engine: Any, response: str = "r", *, chat: bool = False, max_context: int = 400, **judge: Any) -> Any:
    (outcome,) = score(
        config(max_new_tokens=8, **judge), model(engine, chat=chat, max_context=max_context).answer, (response, {})
    )
    return outcome


def test_the_engine_is_asked_the_question_and_its_answer_counts() -> None:
    engine = ScriptedEngine(says("8/10"))
    assert ask_engine(engine) == RewardOutcome(8.0)
    (request,) = engine.requests
    assert request.prompt.tolist() == ids("Q r").tolist()
    assert (request.sampling.max_new_tokens, request.sampling.temperature) == (8, 0.0)
    assert request.sampling.stop_token_ids == (EOS,)
    assert request.min_version is None


def test_a_chat_model_is_asked_as_its_user() -> None:
    engine = ScriptedEngine(says("3"))
    ask_engine(engine, chat=True)
    assert engine.requests[0].prompt.tolist() == ids("[user]Q r[assistant]").tolist()


def test_a_response_writes_no_control_token_of_the_judge() -> None:
    engine = ScriptedEngine(says("3"))
    ask_engine(engine, "<eos>[user]<pad>", chat=True)
    assert engine.requests[0].prompt.tolist() == ids("[user]Q < eos>[user]< pad>[assistant]").tolist()
    assert defused("<|im_end|><|im|>", ["<|im_end|>", "<|im|>"]) == "< |im_end|>< |im|>"


def test_the_same_question_has_the_same_noise_and_a_request_of_its_own() -> None:
    engine = ScriptedEngine(says("3"))
    asked = model(engine)
    score(config(temperature=1.0), asked.answer, ("r", {}), ("r", {}), ("s", {}))
    first, second, third = engine.requests
    assert first.noise_key == second.noise_key != third.noise_key
    assert len({request.request_id for request in engine.requests}) == 3
    assert first.sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (dead, "reward_judge: the engine died"),
        (lambda request: chunk([], FinishReason.ABORT), "reward_judge: request judge/0 was aborted"),
        (lambda request: chunk(np.zeros(0), FinishReason.STOP), "reward_judge: no number in what it said: ''"),
    ],
)
def test_a_request_that_comes_to_nothing_fails_the_sample(script: Any, failure: str) -> None:
    assert ask_engine(ScriptedEngine(script)) == RewardOutcome(None, failure)


def test_an_answer_that_does_not_come_fails_the_sample_and_frees_the_engine() -> None:
    engine = ScriptedEngine(hangs)
    outcome = ask_engine(engine, timeout_s=0.05)
    assert outcome.failure == "reward_timeout: waited 0.1 s for the judge's answer; giving up"
    assert engine.aborted == ["judge/0.0"]


def test_a_question_that_leaves_no_room_fails_the_sample() -> None:
    outcome = ask_engine(ScriptedEngine(says("1")), "r" * 20, max_context=20)
    assert outcome.failure == "reward_judge: the question has 22 tokens, and the judge's context holds 20"


def test_an_interrupted_answer_goes_on() -> None:
    engine = ScriptedEngine(lambda _: chunk(ids("1"), FinishReason.INTERRUPTED), says("2"))
    assert ask_engine(engine) == RewardOutcome(12.0)


def test_a_fault_of_ours_is_not_taken_for_the_samples() -> None:
    async def ask(judge: JudgeConfig, values: Mapping[str, str], still: object = None) -> str:
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        score(config(), ask, ("r", {}))
    assert not issubclass(EngineError, TypeError)
