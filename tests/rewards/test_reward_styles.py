"""Rewards with metrics, and functions written for TRL and verl, in real processes of their own."""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.config import ConfigError
from headrace.config.reward import RewardConfig
from headrace.rewards.outcome import NotARewardError, RewardOutcome, as_scored
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.row_checks import check_rows
from headrace.runtime.inline import SystemClock

CHAT = [{"role": "user", "content": "3+4?"}]


def scored(
    folder: Path,
    body: str,
    *rows: dict[str, Any],
    prompt: Any = "3+4?",
    columns: Any = None,
    earlier: Any = (),
    **config: Any,
) -> list[RewardOutcome]:
    """The outcomes of the response `7` for `rows`; `mine` stands for the file with `body` in the config."""
    (folder / "mine.py").write_text(textwrap.dedent(body))
    terms = [{**term, "function": f"{folder}/{term['function']}"} for term in config.pop("terms", [])]
    function = {} if terms else {"function": f"{folder}/mine.py:f"}
    made = RewardConfig.model_validate({"workers": 1, "trusted": True, "terms": terms, **function, **config})

    async def run() -> list[RewardOutcome]:
        pool = RewardPool(made, clock=SystemClock(), columns=columns)
        await pool.start()
        try:
            ids = np.array([5, 6], dtype=np.int32)
            return [await pool.score("7", row, prompt, None, ids, earlier) for row in rows or ({},)]
        finally:
            await pool.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("style", "body"),
    [
        ("headrace", "def f(response, row, messages, histories): return told(messages, histories)"),
        ("batched", "def f(responses, rows, messages, histories): return list(map(told, messages, histories))"),
        ("trl", "def f(completions, completion_ids): return [float(completion_ids == [[5, 6]])]"),
    ],
)
def test_histories_are_all_conversations_of_the_episode(tmp_path: Path, style: str, body: str) -> None:
    plan = [{"role": "user", "content": "plan"}, {"role": "assistant", "content": "add"}]
    told = """
def told(messages, histories):
    return float([[each["content"] for each in one] for one in histories] == WANTED and histories[-1] == messages)
"""
    for earlier, wanted in (([plan], [["plan", "add"], ["3+4?", "7"]]), ((), [["3+4?", "7"]])):
        whole = told.replace("WANTED", repr(wanted)) + body
        assert scored(tmp_path, whole, style=style, earlier=earlier) == [RewardOutcome(1.0)]


@pytest.mark.parametrize("trusted", [True, False])
def test_a_mapping_is_a_reward_with_metrics(tmp_path: Path, trusted: bool) -> None:
    body = "def f(response, row): return {'score': 0.5, 'format': True, 'length': len(response)}"
    (outcome,) = scored(tmp_path, body, trusted=trusted)
    assert outcome == RewardOutcome(0.5, terms={"format": 1.0, "length": 1.0})


def test_metrics_of_one_of_several_terms_have_its_name(tmp_path: Path) -> None:
    body = """
        def f(response, row): return {'score': 0.5, 'format': 1}
        def g(response, row): return 2
    """
    terms = [{"function": "mine.py:f", "weight": 2}, {"function": "mine.py:g"}]
    (outcome,) = scored(tmp_path, body, terms=terms)
    assert outcome == RewardOutcome(3.0, terms={"f": 0.5, "f.format": 1.0, "g": 2.0})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{'score': 1, 'format': 'good'}", "entry 'format' is 'good' (str), which is not a number"),
        ("{'score': float('nan'), 'x': 1}", "entry 'score' is nan, which is not finite"),
        ("{'reward': 1}", "a mapping without 'score'; return a number, or {'score': number, ...}"),
        ("{'score': 1, 3: 1}", "entry 3 is no metric's name"),
        ("{'score': 1, **{str(i): i for i in range(65)}}", "returned 65 metrics, where 64 is the most"),
        ("{}", "without 'score'"),
    ],
)
def test_a_wrong_entry_fails_the_sample_and_is_named(tmp_path: Path, value: str, said: str) -> None:
    (outcome,) = scored(tmp_path, f"def f(response, row): return {value}")
    assert outcome.value is None
    assert outcome.failure is not None
    assert outcome.failure.startswith("reward_nan: ")
    assert said in outcome.failure


def test_a_number_stays_a_number() -> None:
    assert as_scored(True) == as_scored({"score": 1})["score"] == 1.0  # type: ignore[index]
    with pytest.raises(NotARewardError):
        as_scored("1")


TRL = """
    def f(prompts, completions, answer, **kwargs):
        assert len(prompts) == len(completions) == len(answer) == len(kwargs["completion_ids"]) == 1
        assert "prompt" not in kwargs and "trainer_state" not in kwargs, kwargs
        assert kwargs["level"] == ["easy"] and kwargs["completion_ids"] == [[5, 6]]
        text = completions[0] if isinstance(completions[0], str) else completions[0][0]["content"]
        if not isinstance(completions[0], str):
            assert completions == [[{"role": "assistant", "content": "7"}]]
            assert prompts == [[{"role": "user", "content": "3+4?"}]]
        return [1.0 if text == a else 0.0 for a in answer]
"""


@pytest.mark.parametrize("prompt", ["3+4?", CHAT])
def test_trls_signature_gets_lists_and_columns(tmp_path: Path, prompt: Any) -> None:
    rows = [{"prompt": prompt, "answer": answer, "level": "easy"} for answer in "78"]
    right, wrong = scored(tmp_path, TRL, *rows, prompt=prompt, style="trl", columns=["prompt", "answer", "level"])
    assert (right, wrong) == (RewardOutcome(1.0), RewardOutcome(0.0))


def test_none_of_a_trl_function_is_a_term_that_does_not_apply(tmp_path: Path) -> None:
    body = """
        async def f(completions, task, **kwargs): return [None if t == "code" else 1.0 for t in task]
        def g(completions): return [0.5]
    """
    rows = ({"task": "math"}, {"task": "code"})
    terms = [{"function": f"mine.py:{name}", "style": "trl"} for name in "fg"]
    both, one = scored(tmp_path, body, *rows, terms=terms)
    assert both == RewardOutcome(1.5, terms={"f": 1.0, "g": 0.5})
    assert one == RewardOutcome(0.5, terms={"g": 0.5})
    (_, alone) = scored(tmp_path, body, *rows, style="trl")
    assert alone.failure == "reward_nan: it is None: no reward applies to the sample"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "def f(prompts, completions, trainer_state): ...",
            "wants trainer_state, which TRL's trainer gives and Headrace",
        ),
        ("def f(completions, solution, **kw): ...", "wants 'solution', which is no column of the data (it has answer)"),
        ("def f(prompts): ...", "has no parameter completions; write f(prompts, completions, **columns)"),
    ],
)
def test_what_a_trl_function_cannot_be_given_is_told_at_the_start(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scored(tmp_path, body, style="trl", columns=["answer"])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [("1.0", "returned 1.0, and in the style of trl it returns a list"), ("[1.0, 2.0]", "2 rewards for 1 completion")],
)
def test_what_is_no_list_of_one_fails_the_sample(tmp_path: Path, value: str, said: str) -> None:
    (outcome,) = scored(tmp_path, f"def f(completions, **kwargs): return {value}", style="trl")
    assert said in (outcome.failure or "")


VERL_ROW = {
    "data_source": "gsm8k",
    "reward_model": {"style": "rule", "ground_truth": "7"},
    "extra_info": {"split": "train"},
}


def test_verls_compute_score_gets_what_verl_gives(tmp_path: Path) -> None:
    body = """
        def f(data_source, solution_str, ground_truth, extra_info=None):
            assert data_source == "gsm8k" and extra_info == {"split": "train"}
            right = solution_str == ground_truth
            return {"score": float(right), "acc": right, "pred": solution_str}
    """
    rows = (VERL_ROW, {**VERL_ROW, "reward_model": {"ground_truth": "8"}})
    right, wrong = scored(tmp_path, body, *rows, style="verl")
    assert right == RewardOutcome(1.0, terms={"acc": 1.0}), "what is no number is left out, as verl's functions give it"
    assert wrong == RewardOutcome(0.0, terms={"acc": 0.0})


def test_verls_ground_truth_may_be_headraces_answer(tmp_path: Path) -> None:
    body = "def f(data_source, solution_str, ground_truth): return solution_str == ground_truth and data_source == ''"
    assert scored(tmp_path, body, {"answer": "7"}, style="verl") == [RewardOutcome(1.0)]


def test_a_row_without_a_ground_truth_is_refused_before_the_start() -> None:
    config = RewardConfig(function="mine.py:f", style="verl")
    check_rows(config, [("row 1", VERL_ROW), ("row 2", {"answer": "7"})])
    with pytest.raises(ConfigError, match=r"row 3: the row has no ground truth, neither as reward_model: .* 'answer'"):
        check_rows(config, [("row 3", {"data_source": "gsm8k"})])


def test_a_function_of_another_signature_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has the signature \(response, row\), but is called as \(data_source=\.\.\."
    ):
        scored(tmp_path, "def f(response, row): ...", style="verl")


def test_a_style_is_of_functions_of_the_users() -> None:
    with pytest.raises(ValueError, match="style is trl, which is of functions of yours, but function is exact; remove"):
        RewardConfig(function="exact", style="trl")
