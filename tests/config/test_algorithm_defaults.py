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


@pytest.mark.parametrize(
    ("given", "clips"),
    [
        ({"recipe": "grpo"}, (0.2, 0.2)),
        ({"recipe": "dapo"}, (0.2, 0.28)),
        ({"recipe": "dapo", "loss": "clipped_surrogate"}, (0.2, 0.28)),
        ({"loss": "gspo"}, (3e-4, 4e-4)),
        ({"loss": "geometric_mean"}, (0.4, 0.4)),
        ({"loss": "cispo", "clip_high": 3.0}, (1.0, 3.0)),
        ({"recipe": "gspo", "loss": "clipped_surrogate"}, (0.2, 0.2)),
        ({"recipe": "gspo", "loss": "reinforce"}, (3e-4, 4e-4)),
        ({"loss": "mine.py:loss"}, (0.2, 0.2)),
    ],
)
def test_clips_are_those_of_the_loss(given: dict[str, object], clips: tuple[float, float]) -> None:
    config = AlgorithmConfig.model_validate(given)
    assert (config.clip_low, config.clip_high) == clips


def test_weights_of_gspo_are_of_whole_samples_as_its_ratio_is() -> None:
    assert AlgorithmConfig(recipe="gspo").behavior.level == "geometric"
    assert AlgorithmConfig(recipe="gspo", behavior={"high": 2.0}).behavior.level == "geometric"  # type: ignore[arg-type]
