"""What the policy's loss is told of the weights that a batch begins with, whatever its ratio is against."""

import numpy as np
import pytest
import torch

from headrace.algorithms.losses import Loss
from headrace.algorithms.pieces import Pieces
from headrace.algorithms.policy_loss import LossTerms, PolicyLoss, PolicyTokens
from headrace.config.algorithm import AlgorithmConfig
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.objective import PolicyObjective

BEHAVIOR = np.array([0.0, -1.0, -2.0, -0.5], np.float32)


def micro(**columns: np.ndarray) -> MicroBatch:
    """One sample of 4 tokens, three of which the policy chose, one step staler than batch 5."""
    own = {
        "logprobs": BEHAVIOR,
        "advantages": np.ones(4, np.float32),
        "versions": np.array([-1, 4, 4, 4], np.float32),
        "batch": np.full(4, 5.0, np.float32),
        "made": np.zeros(4, np.float32),
    }
    return pack([PackRow(np.arange(4, dtype=np.int32), np.array([False, True, True, True]), {**own, **columns})])


@pytest.mark.parametrize("proximal", ["behavior", "loglinear", "recompute"])
def test_drift_and_the_steps_kl_are_against_the_weights_that_the_batch_begins_with(proximal: str) -> None:
    """By hand: the policy was 0.3 away from the behaviour when the batch began, and is 0.5 away after a step."""
    config = AlgorithmConfig(proximal=proximal, epochs_per_batch=2)
    objective = PolicyObjective(config, PolicyLoss(config))
    started = torch.tensor(BEHAVIOR) + torch.tensor([0.0, 0.3, 0.3, 0.3])
    given = {"proximal": started.numpy()} if proximal == "recompute" else {}
    first = objective(started, micro(**given))
    assert float(first.stats["drift_abs"]) == pytest.approx(0.9)
    assert float(first.stats["mismatch_abs"]) == pytest.approx(0.9)
    assert float(first.stats["step_kl"]) == pytest.approx(0.0, abs=1e-6)

    left = {name: column.numpy() for name, column in first.columns.items()}
    moved = torch.tensor(BEHAVIOR) + torch.tensor([0.0, 0.5, 0.5, 0.5])
    later = objective(moved, micro(**given, **left))
    k3 = np.exp(0.2) - 1 - 0.2  # of log current / started = 0.2
    assert float(later.stats["step_kl"]) == pytest.approx(3 * k3, rel=1e-5)
    assert float(later.stats["drift_abs"]) == pytest.approx(0.9)
    if proximal == "loglinear":
        np.testing.assert_array_equal(left["proximal"][1:], started[1:].numpy())
        assert later.columns.get("proximal") is None, "the first epoch's are those of all"


@pytest.mark.parametrize(
    ("made", "version", "proximal"), [(0, 4, -1.6), (1, 4, -1.68), (3, 4, -1.7714286), (0, 5, -1.6), (1, 5, -2.0)]
)
def test_log_probs_are_interpolated_to_where_the_steps_before_led(made: int, version: int, proximal: float) -> None:
    """By hand: sampled by version 4 at -2.0, and now at -1.6. After j of batch 5's 4 steps that is version 5 + j/4, so
    that the log-prob at version 5 was -2.0 + 0.4 / (1 + j/4); before any it is -1.6, and nothing is clipped. What
    version 5 sampled had there what the engine says, but that before any step the trainer itself says it."""
    config, given = AlgorithmConfig(proximal="loglinear", updates_per_batch=4, clip_high=0.2), []

    class Loss(PolicyLoss):
        def __call__(self, logprobs: torch.Tensor, data: PolicyTokens) -> LossTerms:
            given.append(data.proximal)
            return super().__call__(logprobs, data)

    behavior = np.full(4, -2.0, np.float32)
    versions = np.array([-1, version, version, version], np.float32)
    columns = micro(logprobs=behavior, versions=versions, made=np.full(4, made, np.float32))
    terms = PolicyObjective(config, Loss(config))(torch.full((4,), -1.6), columns)
    assert given[0][1:].tolist() == pytest.approx([proximal] * 3)
    assert float(terms.stats["clipped"]) == (3 if (made, version) == (1, 5) else 0)


@pytest.mark.parametrize(
    ("settings", "proximal", "made", "kl"),
    [
        ({"proximal": "recompute"}, True, 3, 1.1036383),
        ({"proximal": "recompute"}, True, 0, 1.1036383),
        ({"proximal": "loglinear", "loss": "m2po", "objective": "naive"}, True, 3, 1.1036383),
        ({"proximal": "behavior"}, False, 0, 0.0),
        ({"proximal": "behavior"}, False, 3, None),
        ({"proximal": "behavior", "epochs_per_batch": 2}, False, 3, None),
        ({"proximal": "loglinear"}, False, 0, 0.0),
        ({"proximal": "loglinear"}, False, 3, None),
        ({"proximal": "current"}, False, 3, None),
    ],
)
def test_the_steps_kl_is_told_where_it_is_known_what_the_batch_began_with(
    settings: dict[str, object], proximal: bool, made: int, kl: float | None
) -> None:
    """By hand: three tokens that were at -1 when the batch began are at -2, so that k3 is e^-1 - 1 + 1 each. Who meets
    a sample before a later step of the batch alone has not seen it at -1, and leaves nothing for epochs to come."""
    config = AlgorithmConfig(updates_per_batch=4, **settings)
    given = {"proximal": np.full(4, -1.0, np.float32)} if proximal else {}
    columns = micro(logprobs=np.full(4, -1.5, np.float32), made=np.full(4, made, np.float32), **given)
    terms = PolicyObjective(config, PolicyLoss(config))(torch.full((4,), -2.0), columns)
    assert terms.stats.get("step_kl") == (None if kl is None else pytest.approx(kl))
    assert not terms.columns


def test_one_step_leaves_the_policys_own_logprobs() -> None:
    config = AlgorithmConfig()
    terms = PolicyObjective(config, PolicyLoss(config))(torch.tensor(BEHAVIOR), micro())
    assert list(terms.columns) == ["began"]
    torch.testing.assert_close(terms.columns["began"], torch.tensor(BEHAVIOR))
    assert float(terms.stats["drift_abs"]) == 0.0


def test_a_loss_of_the_users_own_may_change_log_probs_in_place() -> None:
    """Also where they are one of several columns; what is told beside it is of the policy's own. By hand: each token is
    0.5 likelier than where it was sampled, and the gradient of the three is -2 each."""

    def own(logprobs: torch.Tensor, *given: torch.Tensor) -> Loss:
        logprobs *= -2.0
        return Loss(logprobs, {})

    config, pieces = AlgorithmConfig(loss="losses.py:own", aggregation="sample_sum"), Pieces(loss=own)
    objective = PolicyObjective(config, PolicyLoss(config, pieces), pieces, ("logprob", "entropy"))
    outputs = torch.stack([torch.tensor(BEHAVIOR) + 0.5, torch.ones(4)], dim=1).requires_grad_()
    terms = objective(outputs + 0.0, micro())
    terms.numerator.backward()
    weight = np.exp(0.5)  # of the policy that begins, beside the one that sampled
    assert outputs.grad is not None
    assert outputs.grad[1:, 0].tolist() == pytest.approx([-2 * weight] * 3)
    assert float(terms.stats["approx_kl"]) == pytest.approx(3 * (np.exp(0.5) - 1 - 0.5), rel=1e-5)
    assert float(terms.stats["drift_abs"]) == pytest.approx(1.5)
