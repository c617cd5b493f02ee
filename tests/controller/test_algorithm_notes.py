"""What is said of an algorithm that is allowed, and does not do what its name says."""

from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job

from headrace.config import TrainConfig, load_config
from headrace.config.algorithm import AlgorithmConfig
from headrace.controller.planning.algorithm_notes import algorithm_notes
from headrace.controller.planning.plan import make_plan


def notes(**algorithm: Any) -> list[str]:
    return list(algorithm_notes(AlgorithmConfig.model_validate(algorithm)))


@pytest.mark.parametrize("estimator", ["k2", "k3", "abs"])
def test_an_estimator_whose_constant_is_not_the_gradient_of_the_kl(estimator: str) -> None:
    kl = {"coefficient": 0.04, "place": "reward", "estimator": estimator}
    assert notes(kl=kl) == [
        f"algorithm.kl.estimator is {estimator} and kl.place is reward, where an estimate is a constant and only k1 "
        "pushes along the gradient of the KL; use k1, or place: loss"
    ]
    assert not notes(kl={**kl, "place": "loss"})


def test_k1_in_the_loss() -> None:
    kl = {"coefficient": 0.04, "estimator": "k1"}
    assert [line[:57] for line in notes(kl=kl)] == ["algorithm.kl.estimator is k1 and kl.place is loss, where "]
    assert not notes(kl={**kl, "place": "reward"})


@pytest.mark.parametrize("loss", ["cispo", "gspo", "geometric_mean", "sapo"])
def test_a_loss_whose_ratio_is_always_one(loss: str) -> None:
    assert notes(loss=loss) == [
        f"algorithm.loss is {loss} and there is one optimiser step per batch, so that its ratio is 1 and limits "
        "nothing, as in reinforce; set algorithm.updates_per_batch above 1"
    ]
    several = {"loss": loss, "updates_per_batch": 4}
    assert [line[-13:] for line in notes(**several, proximal="current")] == ["use recompute"]
    assert not notes(**several)
    assert not notes(loss=loss, objective="naive")
    assert not notes(loss=loss, proximal="behavior")


def test_where_there_is_nothing_to_say() -> None:
    assert not notes(kl={"coefficient": 0.04, "place": "reward"})
    assert not notes(recipe="grpo")
    assert not notes(kl={"place": "reward", "estimator": "k3"})
    assert not notes(kl={"coefficient": 0.04, "place": "reward", "estimator": "mine.py:f"})


def test_a_plan_says_it(tmp_path: Path) -> None:
    kl = ["algorithm.kl={coefficient: 0.04, place: reward, estimator: k3}"]
    plan = make_plan(load_config(TrainConfig, make_job(tmp_path), kl))
    assert any("algorithm.kl.estimator is k3" in line for line in plan.notes)
