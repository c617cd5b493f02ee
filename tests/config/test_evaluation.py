"""Held-out sets in the config: what is inherited, and what is refused with its mend."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import TrainConfig, config_sha256
from headrace.config.evaluation import HeldOut


def config(**evaluation: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {"model": {"path": "m"}, "data": {"train": "t", "eval": "e", "prompt_column": "q"}, "evaluation": evaluation}
    )


def sets(**evaluation: Any) -> dict[str, HeldOut]:
    return {each.name: each for each in config(**evaluation).held_out}


def test_a_set_inherits_what_it_does_not_give() -> None:
    found = sets(every=10, temperature=0.7, samples=4, sets={"gsm": {"data": "g", "samples": 8, "metrics": ["pass@8"]}})
    assert list(found) == ["eval", "gsm"]
    plain, gsm = found.values()
    assert (plain.source.path, plain.samples, plain.metrics, plain.key) == ("e", 4, ("mean",), "evaluation")
    assert (gsm.source.path, gsm.samples, gsm.every, gsm.temperature, gsm.prompt_column) == ("g", 8, 10, 0.7, "q")
    assert (gsm.max_new_tokens, gsm.key, gsm.own_reward) == (256, "evaluation.sets.gsm", False)


def test_sets_say_how_a_run_is_looked_at_and_not_what_it_is() -> None:
    """A resumed run may have others."""
    assert config_sha256(config()) == config_sha256(config(sets={"gsm": {"data": "g"}}))


VOTE = {"metrics": ["majority"], "samples": 4, "temperature": 1.0}


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        ({"samples": 4}, "evaluation: samples is 4 and temperature 0, which draws one answer so many times"),
        ({"metrics": ["pass@2"]}, "evaluation: pass@2 needs 2 samples a prompt, and samples is 1; raise it to 2"),
        ({"sets": {"a": {"data": "g", "metrics": ["pass@4"]}}}, "evaluation.sets.a: pass@4 needs 4 samples"),
        ({"metrics": ["pass@0"]}, "'pass@0' is no metric; give mean, majority, or pass@K"),
        ({"metrics": ["mean", "mean"]}, "mean is given twice"),
        ({"metrics": []}, "at least 1 item"),
        ({"metrics": ["majority"]}, "majority needs several samples to vote, and samples is 1"),
        ({"sets": {"eval": {"data": "g"}}}, "a set is called eval, which is the name of the one in data.eval"),
        ({"sets": {"a.b": {"data": "g"}}}, "a set is called 'a.b'; begin with a letter"),
        (
            {"sets": {"a": {"data": "g", "reward": {"function": "f1"}, **VOTE}}},
            "majority votes on the answer that a reward takes out of a response, and f1 takes none; use one of exact,",
        ),
        (
            {"sets": {"a": {"data": "g", "reward": {"model": {"path": "p"}}}}},
            "evaluation.sets.a.reward.model: only training's reward may have a reward model",
        ),
    ],
)
def test_what_does_not_fit_is_refused(evaluation: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(**evaluation)
    assert says in str(caught.value)


def test_majority_wants_single_turns() -> None:
    with pytest.raises(ValidationError, match=r"majority votes on single responses, and rollout.workflow has several"):
        TrainConfig.model_validate(
            {
                "model": {"path": "m"},
                "data": {"train": "t", "eval": "e"},
                "rollout": {"workflow": "multi_turn", "environment": "env.py:E"},
                "evaluation": VOTE,
            }
        )


def test_what_only_sets_read_has_an_effect_without_data_eval() -> None:
    from headrace.config.reading.unused_keys import ineffective

    alone = {"model": {"path": "m"}, "data": {"train": "t"}, "evaluation": {"every": 5}}
    assert any("evaluation.every has no effect" in line for line in ineffective(TrainConfig.model_validate(alone)))
    alone["evaluation"] = {"every": 5, "sets": {"gsm": {"data": "g"}}}
    assert ineffective(TrainConfig.model_validate(alone)) == []
