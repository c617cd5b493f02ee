"""From rewards, log-probs and values to the columns that the losses read: by hand."""

import pytest
import torch

from headrace.algorithms.estimate import AdvantageEstimator, Compared, Episodes
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.algorithms.pieces import Pieces
from headrace.config.algorithm import AlgorithmConfig

F64 = torch.float64
# Two groups of two episodes; the last episode has two samples. Each sample: a prompt token, then chosen ones.
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=F64)
GROUPS = torch.tensor([0, 0, 1, 1])
EPISODE = torch.tensor([0, 1, 2, 3, 3])
LENGTHS = (2, 1, 3, 1, 2)
MASK = torch.cat([torch.tensor([False] + [True] * length) for length in LENGTHS])
INDEX = torch.repeat_interleave(torch.arange(5), torch.tensor([length + 1 for length in LENGTHS]))
BEHAVIOR = torch.full((14,), -1.0, dtype=F64)
REFERENCE = torch.full((14,), -1.5, dtype=F64)


def data(**changes: torch.Tensor) -> Compared:
    return Compared(REWARDS, GROUPS, EPISODE, MASK, INDEX, BEHAVIOR, **changes)


def estimate(compared: Compared | None = None, **settings: object) -> dict[str, torch.Tensor]:
    return AdvantageEstimator(AlgorithmConfig(**settings), max_length=3)(data() if compared is None else compared)


def of_samples(values: torch.Tensor) -> list[list[float]]:
    """Of each sample its trained tokens; what is outside the mask must be 0."""
    assert not values[~MASK].any()
    return [[round(v, 6) for v in part.tolist()] for part in values[MASK].split(list(LENGTHS))]


def test_an_episode_of_two_samples_counts_once_in_its_group() -> None:
    values = of_samples(estimate(advantage="mean_only")["advantages"])
    assert values == [[0.5, 0.5], [-0.5], [-0.5] * 3, [0.5], [0.5, 0.5]]
    values = of_samples(estimate(advantage="leave_one_out")["advantages"])
    assert values == [[1, 1], [-1], [-1] * 3, [1], [1, 1]]


def test_opo_weighs_by_the_tokens_of_the_episode() -> None:
    """Group 0: baseline 2 / 3. Group 1: both episodes have three tokens, 1 / 2."""
    values = of_samples(estimate(advantage="opo")["advantages"])
    assert values == [[0.333333] * 2, [-0.666667], [-0.5] * 3, [0.5], [0.5] * 2]


def test_the_kl_is_taken_from_the_reward_of_whole_episodes() -> None:
    """k1 is 0.5 a token: an episode of n tokens pays 0.1 x 0.5 n."""
    compared = data(reference=REFERENCE)
    kl = {"coefficient": 0.1, "place": "reward", "estimator": "k1"}
    values = of_samples(estimate(compared, advantage="mean_only", kl=kl)["advantages"])
    # Rewards 0.9, -0.05 | -0.15, 0.85.
    assert values == [[0.475, 0.475], [-0.475], [-0.5] * 3, [0.5], [0.5, 0.5]]


def test_shaping_changes_what_is_compared_and_not_the_raw_rewards() -> None:
    raw = REWARDS.clone()
    settings = {"clip": (0.0, 0.5), "overlong_buffer": 2}
    values = of_samples(estimate(advantage="mean_only", shaping=settings)["advantages"])
    # Clipped: 0.5, 0 | 0, 0.5. Longest 3, buffer 2: turns of 2, 1 | 3, 2 pay 0.5, 0 | 1, 0.5.
    assert values == [[0.0, 0.0], [0.0], [-0.5] * 3, [0.5], [0.5, 0.5]]
    assert torch.equal(REWARDS, raw)


def test_a_turn_and_not_the_episode_is_held_against_the_limit_of_a_turn() -> None:
    """Four turns of 200 tokens with a token between them, and one of 480 among two: of at most 512, the last 64 are
    penalised. The first pays nothing, the second (480 - 448) / 64."""
    turns = [[200] * 4, [8, 480]]
    mask = torch.cat([torch.tensor([False] + [True] * tokens) for sample in turns for tokens in sample])
    index = torch.repeat_interleave(torch.arange(2), torch.tensor([sum(sample) + len(sample) for sample in turns]))
    rewards, groups = torch.ones(2, dtype=F64), torch.zeros(2, dtype=torch.int64)
    data = Compared(rewards, groups, torch.arange(2), mask, index, torch.zeros(len(mask), dtype=F64))
    config = AlgorithmConfig(advantage="mean_only", shaping={"overlong_buffer": 64})
    estimator = AdvantageEstimator(config, max_length=512)
    assert data.lengths.tolist() == [800, 488]
    assert data.longest_turns.tolist() == [200, 480]
    values = estimator(data)["advantages"]
    assert values[1].item() == 0.25
    assert values[-1].item() == -0.25, "rewards are 1 and 1/2"
    of_episodes = Episodes(rewards, groups, data.lengths, data.longest_turns)
    assert estimator.of_episodes(of_episodes).tolist() == [0.25, -0.25]


def test_gae_by_hand() -> None:
    """gamma = lam = 1: the return is the reward to come, the advantage that less the value."""
    values = torch.where(MASK, 0.25, float("nan")).to(F64)
    columns = estimate(data(values=values), recipe="ppo", whiten=False, lam=1.0, kl={"coefficient": 0.0})
    assert of_samples(columns["returns"]) == [[1, 1], [0], [0] * 3, [1], [1, 1]]
    assert of_samples(columns["advantages"]) == [[0.75, 0.75], [-0.25], [-0.25] * 3, [0.75], [0.75, 0.75]]


def test_ppo_pays_the_kl_token_by_token_and_whitens() -> None:
    compared = data(values=torch.zeros(14, dtype=F64), reference=REFERENCE)
    kl = {"coefficient": 0.1, "estimator": "k1"}
    columns = estimate(compared, recipe="ppo", lam=1.0, kl=kl)
    # Each token pays 0.05, its own and all later ones'.
    assert of_samples(columns["returns"]) == [[0.9, 0.95], [-0.05], [-0.15, -0.1, -0.05], [0.95], [0.9, 0.95]]
    whitened = columns["advantages"][MASK]
    assert whitened.mean().item() == pytest.approx(0, abs=1e-12)
    assert whitened.var().item() == pytest.approx(1, abs=1e-6)


def test_an_adaptive_coefficient_follows_and_is_restored() -> None:
    """An episode's mean KL is 9 x 0.5 / 4 = 1.1; the target 0.45 is exceeded by more than a fifth: + 20 % x 4 / 50."""
    kl = {"coefficient": 0.1, "place": "reward", "estimator": "k1", "target": 0.45, "horizon": 50}
    config = AlgorithmConfig(kl=kl)
    coefficient = KLCoefficient(config.kl)
    estimator = AdvantageEstimator(config, max_length=3, coefficient=coefficient)
    first = estimator(data(reference=REFERENCE), 7)["advantages"]
    assert coefficient.value == pytest.approx(0.1 * 1.016)
    assert coefficient.of(7) == 0.1
    again = estimator(data(reference=REFERENCE), 7)["advantages"]
    assert torch.equal(first, again), "a batch whose rows were lost is estimated as it was"
    assert coefficient.value == pytest.approx(0.1 * 1.016), "and followed once"
    assert coefficient.of(8) == coefficient.value
    again = KLCoefficient(config.kl)
    again.restore(coefficient.state)
    assert again.value == coefficient.value


def test_a_user_may_give_values_of_episodes_or_of_tokens() -> None:
    config = AlgorithmConfig(advantage="mine.py:advantage")
    by_episode = AdvantageEstimator(config, max_length=3, pieces=Pieces(advantage=lambda data: data.rewards - 0.25))
    assert of_samples(by_episode(data())["advantages"]) == [[0.75] * 2, [-0.25], [-0.25] * 3, [0.75], [0.75] * 2]
    by_token = AdvantageEstimator(config, max_length=3, pieces=Pieces(advantage=lambda data: torch.ones(14, dtype=F64)))
    assert of_samples(by_token(data())["advantages"]) == [[1] * 2, [1], [1] * 3, [1], [1] * 2]


def test_a_shaping_of_the_users_own_sees_rewards_after_ours() -> None:
    def halve_long(rewards: torch.Tensor, lengths: torch.Tensor, group_index: torch.Tensor) -> torch.Tensor:
        assert lengths.tolist() == [2, 1, 3, 3]
        assert group_index.tolist() == [0, 0, 1, 1]
        return torch.where(lengths > 2, rewards / 2, rewards)

    config = AlgorithmConfig(advantage="mean_only", shaping={"clip": (0.0, 0.5), "function": "mine.py:halve_long"})
    values = AdvantageEstimator(config, max_length=3, pieces=Pieces(shaping=halve_long))(data())["advantages"]
    # Clipped: 0.5, 0 | 0, 0.5; halved: 0.5, 0 | 0, 0.25.
    assert of_samples(values) == [[0.25, 0.25], [-0.25], [-0.125] * 3, [0.125], [0.125] * 2]


def test_a_kl_of_the_users_own_is_taken_from_the_reward() -> None:
    config = AlgorithmConfig(
        advantage="mean_only", kl={"coefficient": 0.1, "place": "reward", "estimator": "mine.py:half"}
    )
    pieces = Pieces(kl=lambda logprobs, reference: (logprobs - reference) / 2)
    values = AdvantageEstimator(config, max_length=3, pieces=pieces)(data(reference=REFERENCE))["advantages"]
    # 0.25 a token: rewards 0.95, -0.025 | -0.075, 0.925.
    assert of_samples(values) == [[0.4875] * 2, [-0.4875], [-0.5] * 3, [0.5], [0.5] * 2]


def test_an_advantage_of_the_users_own_may_have_a_critic() -> None:
    """It learns advantage + value unless returns are given."""
    values = torch.full((14,), 0.5, dtype=F64)
    config = AlgorithmConfig(advantage="mine.py:advantage", advantage_reads=["values"])
    assert config.needs_critic
    ours = AdvantageEstimator(config, max_length=3, pieces=Pieces(advantage=lambda data: data.rewards - 0.25))
    assert of_samples(ours(data(values=values))["returns"]) == [[1.25] * 2, [0.25], [0.25] * 3, [1.25], [1.25] * 2]
    both = Pieces(advantage=lambda data: {"advantages": data.rewards, "returns": data.values * 2})
    columns = AdvantageEstimator(config, max_length=3, pieces=both)(data(values=values))
    assert of_samples(columns["returns"]) == [[1] * 2, [1], [1] * 3, [1], [1] * 2]


def test_a_controller_of_the_users_own() -> None:
    kl = {"coefficient": 0.1, "place": "reward", "estimator": "k1", "controller": "mine.py:double"}
    config = AlgorithmConfig(kl=kl)
    seen = []

    def double(coefficient: float, mean: float, samples: int) -> float:
        seen.append((mean, samples))
        return 2 * coefficient

    coefficient = KLCoefficient(config.kl, double)
    AdvantageEstimator(config, max_length=3, coefficient=coefficient)(data(reference=REFERENCE), 0)
    assert coefficient.value == 0.2
    assert seen == [(9 * 0.5 / 4, 4)]
