"""Callables and rows in the place of a text anywhere in a config."""

from pathlib import Path
from typing import Any

import pytest
from api_jobs import ROWS, job
from api_rewards import half, letters, quarter

import headrace


def closed(value: float) -> Any:
    def score(response: str, row: dict[str, Any]) -> float:
        return value

    return score


def train(folder: Path, **given: Any) -> headrace.Run:
    config = given.pop("config", job(folder))
    return headrace.train(config, **{"dir": folder / "run", "data": ROWS, "trainer__batches": 1, **given})


def test_weighted_terms_may_be_callables(tmp_path: Path) -> None:
    terms = [{"function": half, "weight": 0.5}, {"function": closed(0.25), "weight": 2.0}, {"function": "numeric"}]
    run = train(tmp_path, reward={"terms": terms, "timeout_s": 5})
    assert [batch.reward_terms["half"] for batch in run.metrics] == [0.5]
    assert run.metrics[0].reward_mean == pytest.approx(0.25 + 0.5 + run.metrics[0].reward_terms["numeric"])
    assert run.config.reward.timeout_s == 5
    assert [term.weight for term in run.config.reward.terms] == [0.5, 2.0, 1.0]


def test_a_whole_group_may_be_scored_by_a_callable(tmp_path: Path) -> None:
    shares = [0.125, 0.25, 0.375]

    def rank(responses: list[str], row: dict[str, Any]) -> list[float]:
        return shares[: len(responses)]

    run = train(tmp_path, reward={"group": rank})
    assert (run.metrics[0].reward_mean, run.config.reward.group) == (0.25, "<memory>:rank")


@pytest.mark.parametrize(
    "given",
    [
        {"reward": {"function": half, "timeout_s": 5}},
        {"reward__function": half},
        {"reward": [{"function": quarter, "weight": 2.0}]},
    ],
    ids=["section", "override", "list"],
)
def test_a_callable_stands_where_a_function_s_place_is_expected(given: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path, **given)
    assert [batch.reward_mean for batch in run.metrics] == [0.5]


def test_rows_and_callables_stand_in_the_config_itself(tmp_path: Path) -> None:
    kept: list[headrace.Group] = []

    def keep(group: headrace.Group) -> bool:
        kept.append(group)
        return True

    config = job(tmp_path, reward={"function": closed(0.5), "workers": 1}, data={"train": ROWS, "eval": ROWS[:2]})
    config["rollout"]["filters"] = [keep]
    config["evaluation"] = {"sets": {"own": {"data": iter(ROWS[:3]), "reward": quarter}}}
    run = train(tmp_path, config=config, data=None)
    assert [batch.reward_mean for batch in run.metrics] == [0.5]
    assert kept
    assert [evaluation.score for evaluation in run.evaluations if evaluation.set == "own"] == [0.25, 0.25]
    own = run.config.evaluation.sets["own"].reward.function
    assert own is not None
    assert own.startswith(str(run.path / "inputs" / "reward-"))
    assert own.endswith(".py:quarter")
    assert {path.name.partition("-")[0] for path in (run.path / "inputs").iterdir()} == {"train", "eval", "reward"}


def test_several_held_out_sets_are_given_by_name(tmp_path: Path) -> None:
    sets = {"eval": ROWS[:2], "a": ROWS[:3], "b": (row for row in ROWS[:4])}
    run = train(tmp_path, reward=letters, eval_data=sets, evaluation__sets={"a": {"reward": closed(0.5)}})
    found = {evaluation.set: evaluation for evaluation in run.evaluations if evaluation.number == 1}
    assert {name: each.prompts for name, each in found.items()} == {"eval": 2, "a": 3, "b": 4}
    assert found["a"].score == 0.5


def test_an_evaluation_of_several_sets_needs_no_rows_to_train_on(tmp_path: Path) -> None:
    result = headrace.evaluate(job(tmp_path), eval_data={"a": ROWS[:2], "b": ROWS[:3]}, reward=half)
    assert {name: one["reward_mean"] for name, one in result["sets"].items()} == {"a": 0.5, "b": 0.5}
    assert result["sets"]["b"]["prompts"] == 3


LONG = [{"prompt": "a text that no message repeats " * 20, "answer": str(n)} for n in range(100)]

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a function where none goes": (
        {"trainer__batches": half},
        r"^trainer.batches is the function half, and functions are taken at reward.function, .* path.py:name$",
    ),
    "a loss": ({"algorithm": {"loss": half}}, "^algorithm.loss is the function half"),
    "a generator where none goes": ({"trainer__batches": iter(LONG)}, "^trainer.batches is of type list_iterator"),
    "rows where none go": ({"trainer__batches": LONG}, "trainer.batches"),
    "rows for a reward": ({"reward": None, "reward__function": LONG}, "reward.function"),
    "rows without a column": (
        {"data": None, "data__train": [{"question": "1"}]},
        r"^data.train, line 1 has no prompt column 'prompt' \(it has 'question'\)",
    ),
    "a set's rows without a column": (
        {"eval_data": {"a": [{"question": "1"}]}},
        r"^eval_data\['a'\], line 1 has no prompt column 'prompt'",
    ),
    "columns for rows": ({"eval_data": {"prompt": ["1", "2"]}}, r"^eval_data\['prompt'\]: row 0 is a str; give rows"),
    "a set without a name": ({"eval_data": {"a.b": ROWS}}, r"^eval_data has a set called 'a.b'; begin with a letter"),
    "no sets": ({"eval_data": {}}, "^eval_data is an empty mapping; give rows"),
    "a set that is none": ({"eval_data": {"a": 5}}, r"^eval_data\['a'\] is a int; give rows"),
    "options for rows": ({"eval_data": {"path": "x", "split": "y"}}, r"as data__eval=\{\.\.\.\}"),
    "a folder that is none": ({"dir": 5}, r"^dir is 5, of type int; give the path of a folder$"),
    "a resume that is none": ({"resume": "yes"}, r"^resume is 'yes'; give True or False$"),
    "a filter that is none": ({"filters": 5}, r"^filters\[0\] is of type int; give a function"),
}


@pytest.mark.parametrize(("given", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_what_has_no_place_is_one_error_that_names_the_key(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=words) as caught:
        train(tmp_path, **{"reward": letters, **given})
    assert len(str(caught.value)) < 500
    assert not (tmp_path / "run").exists()


def test_a_config_that_holds_itself_is_refused(tmp_path: Path) -> None:
    config = job(tmp_path)
    config["trainer"]["self"] = config
    with pytest.raises(headrace.ConfigError, match="holds itself"):
        train(tmp_path, config=config)
