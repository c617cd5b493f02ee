"""Reward functions that take lists: which calls go together, and what one bad sample costs the others."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import ConfigError
from headrace.config.reward import RewardConfig
from headrace.experience.text.conversation import Messages
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock


def scored(folder: Path, body: str, responses: list[str], *, given: Any = None, **config: Any) -> list[RewardOutcome]:
    """The outcomes of `responses`, all asked for at once, by `f` of a file with `body`."""
    (folder / "mine.py").write_text(textwrap.dedent(body))
    made = RewardConfig.model_validate(
        {"function": f"{folder}/mine.py:f", "style": "batched", "workers": 1, "timeout_s": 20.0, **config}
    )

    async def run() -> list[RewardOutcome]:
        pool = RewardPool(made, clock=SystemClock(), given=given or {})
        await pool.start()
        try:
            rows = [{"answer": f"{place}"} for place in range(len(responses))]
            asked = (pool.score(*each, "p?") for each in zip(responses, rows, strict=True))
            return await asyncio.gather(*asked)
        finally:
            await pool.close()

    return asyncio.run(run())


SIZES = """
    def f(responses, rows, prompts):
        assert len(responses) == len(rows) == len(prompts) and set(prompts) == {"p?"}
        return [len(responses) + (a == r["answer"]) / 2 for a, r in zip(responses, rows)]
"""


@pytest.mark.parametrize("trusted", [True, False])
def test_samples_that_ask_together_are_given_as_lists(tmp_path: Path, trusted: bool) -> None:
    outcomes = scored(tmp_path, SIZES, ["0", "x", "2", "3", "x"], trusted=trusted, batch=3)
    assert [outcome.value for outcome in outcomes] == [3.5, 3.0, 3.5, 2.5, 2.0]


def test_while_all_processes_are_busy_samples_gather(tmp_path: Path) -> None:
    body = """
        import os, time
        def f(responses, rows):
            open("{folder}/begun", "w").close()
            end = time.monotonic() + 20
            while os.path.exists("{folder}/hold") and time.monotonic() < end:
                time.sleep(0.01)
            return [len(responses)] * len(responses)
    """
    (tmp_path / "mine.py").write_text(textwrap.dedent(body.replace("{folder}", str(tmp_path))))
    (tmp_path / "hold").touch()
    made = RewardConfig(function=f"{tmp_path}/mine.py:f", style="batched", workers=1, trusted=True, timeout_s=40)

    async def run() -> list[float | None]:
        pool = RewardPool(made, clock=SystemClock())
        await pool.start()
        try:
            first = asyncio.create_task(pool.score("r", {}, "p"))
            while not (tmp_path / "begun").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            later = []
            for _ in range(4):  # one after another, while the first is being scored
                later.append(asyncio.create_task(pool.score("r", {}, "p")))
                await asyncio.sleep(0)
            (tmp_path / "hold").unlink()
            return [(await task).value for task in (first, *later)]
        finally:
            await pool.close()

    assert asyncio.run(run()) == [1.0, 4.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        ("raise ValueError('no')", "reward_raised: ValueError: no"),
        ("return [float('nan')] * len(responses)", "reward_nan: returned nan"),
        ("import os; os._exit(3)", "reward_died: the process ended"),
    ],
)
def test_a_sample_that_fails_its_call_fails_alone(tmp_path: Path, bad: str, failure: str, trusted: bool) -> None:
    body = f"""
        def f(responses, rows):
            if "bad" in responses:
                {bad}
            return [float(len(response)) for response in responses]
    """
    a, bad_one, b = scored(tmp_path, body, ["a", "bad", "bb"], trusted=trusted)
    assert (a, b) == (RewardOutcome(1.0), RewardOutcome(2.0))
    assert bad_one.value is None
    assert (bad_one.failure or "").startswith(failure)


def test_items_may_have_metrics_and_the_function_may_be_async(tmp_path: Path) -> None:
    body = """
        async def f(responses, rows, messages):
            return [{"score": 1, "turns": len(each)} for each in messages]
    """
    outcomes = scored(tmp_path, body, ["a", "b"])
    assert outcomes == [RewardOutcome(1.0, terms={"turns": 2.0})] * 2


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "returned a float, and has to return a list of 1 rewards"),
        ("{'score': 1}", "returned a dict, and has to return a list of 1 rewards"),
        ("None", "returned a NoneType, and has to return a list of 1 rewards"),
        ("[1.0, 1.0]", "returned 2 rewards for 1 samples"),
        ("['good']", "returned 'good' (str), which is not a number"),
    ],
)
def test_what_is_no_list_of_rewards_fails_the_sample(tmp_path: Path, value: str, said: str) -> None:
    (outcome,) = scored(tmp_path, f"def f(responses, rows): return {value}", ["a"], trusted=True)
    assert said in (outcome.failure or "")


def test_one_of_several_terms_may_take_lists(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text("def f(responses, rows): return [2.0] * len(rows)\ndef g(response, row): return 1")
    terms = [{"function": f"{tmp_path}/two.py:f", "style": "batched"}, {"function": f"{tmp_path}/two.py:g"}]
    made = RewardConfig.model_validate({"terms": terms, "workers": 1, "trusted": True})

    async def run() -> RewardOutcome:
        pool = RewardPool(made, clock=SystemClock())
        await pool.start()
        try:
            return await pool.score("a", {}, "p")
        finally:
            await pool.close()

    assert asyncio.run(run()) == RewardOutcome(3.0, terms={"f": 2.0, "g": 1.0})


def test_a_function_that_was_given_is_called_with_lists_in_the_run_s_process(tmp_path: Path) -> None:
    seen: list[int] = []

    def mine(responses: list[str], rows: list[dict[str, Any]], messages: list[Messages]) -> list[float]:
        seen.append(len(responses))
        return [0.5] * len(rows)

    spec = "<memory>:mine"
    outcomes = scored(tmp_path, "", ["a", "b", "c"], given={spec: mine}, function=spec, trusted=True)
    assert outcomes == [RewardOutcome(0.5)] * 3
    assert seen == [3]


def test_a_function_of_one_sample_is_refused_with_what_it_should_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has the signature \(response\), but is called as \(responses, rows\)"):
        scored(tmp_path, "def f(response): return 1", ["a"])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"function": "a.py:f", "batch": 8}, "batch is 8, which is of style: batched; set that, or remove it"),
        ({"function": "math", "style": "batched"}, "style is batched, which is of functions of yours"),
        ({"function": "a.py:f", "style": "batched", "batch": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_would_not_be_heeded_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RewardConfig.model_validate(config)


def test_a_call_that_fails_and_those_after_it_are_reckoned_with() -> None:
    longest = RewardConfig(function="a.py:f", style="batched", timeout_s=7).longest
    assert longest == (14, "timeout_s (x2 for style: batched)")
