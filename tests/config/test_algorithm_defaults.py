"""What keys of the section `algorithm` are where others of it are given."""

import pytest

from headrace.config.algorithm import AlgorithmConfig


@pytest.mark.parametrize(
    ("recipe", "kl", "estimator"),
    [
        ("grpo", {"coefficient": 0.04}, "k3"),
        ("grpo", {"coefficient": 0.04, "place": "reward"}, "k1"),
        ("grpo", {"coefficient": 0.04, "place": "reward", "estimator": "k3"}, "k3"),
        # A recipe's estimator is for its own place.
        ("ppo", {"coefficient": 0.04}, "k1"),
        ("ppo", {"place": "loss"}, "k3"),
        ("rloo", {"place": "reward"}, "k1"),
        ("reinforce_plus_plus_baseline", {}, "k2"),
        ("reinforce_plus_plus_baseline", {"place": "reward"}, "k1"),
    ],
)
def test_the_estimator_follows_the_place_of_the_kl(recipe: str, kl: dict[str, object], estimator: str) -> None:
    config = AlgorithmConfig.model_validate({"recipe": recipe, "kl": kl})
    assert config.kl.estimator == estimator
    assert AlgorithmConfig.model_validate(config.model_dump()) == config
