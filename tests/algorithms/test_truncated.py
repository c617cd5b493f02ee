"""Samples that a limit cut off: taken as ended, given the critic's value of what was to come, or left out. By hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace.algorithms.advantages import gae, whiten
from headrace.algorithms.estimate import AdvantageEstimator, Compared
from headrace.config.algorithm import AlgorithmConfig

F64 = torch.float64
# A prompt token (p), tokens that the policy chose (c), and what an environment said (o).
#   0  ended                  p c c      values 0.5 1    reward 2
#   1  cut in a turn          p c c      values 1   2    reward 0    worth 6 where it was cut
#   2  cut after an answer    p c o c o  values 2   4    reward 1    worth 8 where it was cut
#   3  one episode, whose     p c        values 1        reward 1
#   4    second part was cut  p c        values 1        the same    worth 2 where it was cut
KINDS = ("pcc", "pcc", "pcoco", "pc", "pc")
GIVEN = ([0.5, 1], [1, 2], [2, 4], [1], [1])
REWARDS = torch.tensor([2.0, 0.0, 1.0, 1.0], dtype=F64)
EPISODE = torch.tensor([0, 1, 2, 3, 3])
TRUNCATED = torch.tensor([False, True, True, False, True])
LAST = torch.tensor([0.0, 6.0, 8.0, 0.0, 2.0], dtype=F64)
MASK = torch.tensor([kind == "c" for kinds in KINDS for kind in kinds])
INDEX = torch.repeat_interleave(torch.arange(5), torch.tensor([len(kinds) for kinds in KINDS]))
VALUES = torch.full((len(MASK),), float("nan"), dtype=F64)
VALUES[MASK] = torch.tensor([value for values in GIVEN for value in values], dtype=F64)
NOTHING = torch.zeros(len(MASK), dtype=F64)


def data(groups: tuple[int, ...] = (0, 0, 1, 1), last: torch.Tensor | None = LAST) -> Compared:
    values = VALUES if last is not None else None
    return Compared(
        REWARDS,
        torch.tensor(groups),
        EPISODE,
        MASK,
        INDEX,
        NOTHING,
        values=values,
        truncated=TRUNCATED,
        last_values=last,
    )


def of_samples(values: torch.Tensor) -> list[list[float]]:
    """Of each sample what the tokens that it chose have; what is outside the mask must be 0."""
    assert not values[~MASK].any()
    lengths = [kinds.count("c") for kinds in KINDS]
    return [[round(value, 6) for value in part.tolist()] for part in values[MASK].split(lengths)]


def estimate(truncated: str, compared: Compared | None = None, **changes: object) -> dict[str, torch.Tensor]:
    """GAE with gamma and lambda 1/2: each advantage is its delta and a quarter of the next advantage."""
    gae_settings = {"advantage": "gae", "gamma": 0.5, "lam": 0.5}
    config = AlgorithmConfig(truncated=truncated, **{**gae_settings, **changes})  # type: ignore[arg-type]
    return AdvantageEstimator(config, max_length=9)(compared or data())


ENDED = [0.25, 1.0]
"""delta 0.5 x 1 - 0.5 = 0, then 2 - 1 = 1."""


def test_what_is_cut_off_counts_as_ended_by_default() -> None:
    assert AlgorithmConfig().truncated == "terminal"
    columns = estimate("terminal")
    assert of_samples(columns["advantages"]) == [
        ENDED,
        [-0.5, -2.0],  # 0.5 x 2 - 1 = 0, then 0 - 2 = -2: it is taught that nothing came
        [-0.75, -3.0],  # 0.5 x 4 - 2 = 0, then 1 - 4 = -3
        [0.0],
        [0.0],
    ]
    assert of_samples(columns["returns"]) == [[0.75, 2.0], [0.5, 0.0], [1.25, 1.0], [1.0], [1.0]]


def test_the_value_of_where_it_was_cut_is_added_to_the_last_delta() -> None:
    columns = estimate("bootstrap")
    assert of_samples(columns["advantages"]) == [
        ENDED,
        [0.25, 1.0],  # 0, then 0 + 0.5 x 6 - 2 = 1
        [0.25, 1.0],  # 0, then 1 + 0.5 x 8 - 4 = 1, at the last token that it chose, which is not the sample's last
        [0.0],
        [1.0],  # 1 + 0.5 x 2 - 1 = 1
    ]
    assert of_samples(columns["returns"]) == [[0.75, 2.0], [1.25, 3.0], [2.25, 5.0], [1.0], [2.0]]


def test_the_kl_in_the_reward_and_the_value_are_both_there() -> None:
    """0.1 x 0.5 at each token that was chosen."""
    compared = data()
    penalised = Compared(
        *(getattr(compared, name) for name in ("rewards", "group_index", "episode", "mask", "sample_index")),
        behavior=NOTHING,
        reference=NOTHING - 0.5,
        values=VALUES,
        truncated=TRUNCATED,
        last_values=LAST,
    )
    kl = {"coefficient": 0.1, "place": "reward", "estimator": "k1"}
    assert of_samples(estimate("bootstrap", penalised, kl=kl)["advantages"])[1] == [0.1875, 0.95]


def test_left_out_samples_change_no_other_advantage() -> None:
    columns = estimate("mask")
    assert of_samples(columns["advantages"])[0] == ENDED
    assert of_samples(columns["advantages"])[3] == [0.0]


def test_a_batch_is_whitened_over_what_enters_the_loss() -> None:
    """Samples 0 and 3: 0.25, 1, 0 have the mean 5/12."""
    left = of_samples(estimate("mask", whiten=True)["advantages"])
    ended = MASK & ~TRUNCATED[INDEX]
    assert torch.tensor([*left[0], *left[3]]).mean().item() == pytest.approx(0, abs=1e-6)
    expected = whiten(torch.tensor([0.25, 1.0, 0.0], dtype=F64), torch.ones(3, dtype=torch.bool)).tolist()
    assert [*left[0], *left[3]] == pytest.approx(expected, abs=1e-6)
    assert torch.equal(data().ended, ended)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        # Group 0 has rewards 2 and 0; group 1 has 1 and 1.
        ("mean_only", [[1, 1], [-1, -1], [0, 0], [0], [0]]),
        ("leave_one_out", [[2, 2], [-2, -2], [0, 0], [0], [0]]),
        ("group_normalized", [[0.707106, 0.707106], [-0.707106, -0.707106], [0, 0], [0], [0]]),
    ],
)
def test_a_left_out_sample_stays_in_its_groups_baseline(advantage: str, expected: list[list[float]]) -> None:
    """Without a critic too: the sample of reward 2 is compared with the one that was cut off."""
    without_critic = data(last=None)
    columns = estimate("mask", without_critic, advantage=advantage)
    for found, wanted in zip(of_samples(columns["advantages"]), expected, strict=True):
        assert found == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("advantage", ["reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_whitened_advantages_have_no_mean_over_what_enters_the_loss(advantage: str) -> None:
    values = estimate("mask", data(last=None), advantage=advantage)["advantages"]
    ended = data().ended
    assert values[ended].mean().item() == pytest.approx(0, abs=1e-6)
    assert not values[~ended].any()
    whole = estimate("terminal", data(last=None), advantage=advantage)["advantages"]
    assert whole[MASK].mean().item() == pytest.approx(0, abs=1e-6)


def test_the_own_advantage_of_a_user_finds_both() -> None:
    from headrace.algorithms.pieces import Pieces

    config = AlgorithmConfig(advantage="mine.py:f", advantage_reads=("values",), truncated="bootstrap")
    seen: list[Compared] = []

    def advantage(given: Compared) -> torch.Tensor:
        seen.append(given)
        return given.rewards

    AdvantageEstimator(config, max_length=9, pieces=Pieces(advantage=advantage))(data())
    assert seen[0].truncated is TRUNCATED
    assert seen[0].last_values is LAST


@pytest.mark.parametrize("advantage", ["group_normalized", "reinforce_plus_plus", "distillation"])
def test_a_value_is_asked_for_only_where_there_is_a_critic(advantage: str) -> None:
    with pytest.raises(ValidationError, match=r"truncated is bootstrap.*use advantage: gae, or truncated: mask"):
        AlgorithmConfig(advantage=advantage, truncated="bootstrap")
    AlgorithmConfig(advantage=advantage, truncated="mask")


def test_a_missing_value_is_named() -> None:
    compared = data()
    lacking = Compared(
        *(getattr(compared, name) for name in ("rewards", "group_index", "episode", "mask", "sample_index")),
        behavior=NOTHING,
        values=VALUES,
    )
    with pytest.raises(ValueError, match="truncated is bootstrap, which needs last_values"):
        estimate("bootstrap", lacking)


def test_values_of_another_number_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="5 samples"):
        gae(NOTHING, VALUES, MASK, INDEX, gamma=1.0, lam=1.0, last_values=LAST[:3])


step = st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.booleans())
samples_of_steps = st.lists(
    st.tuples(st.lists(step, min_size=1, max_size=10), st.floats(-5, 5)), min_size=1, max_size=5
)


@settings(max_examples=80, deadline=None)
@given(samples_of_steps, st.floats(0, 1), st.floats(0, 1))
def test_it_is_the_same_as_one_step_more_whose_value_is_what_was_to_come(samples, gamma, lam) -> None:
    """A step of reward V and value V has the delta 0: what comes before it is as if the sample had gone on and its
    reward been what the critic says."""
    rewards, values, mask, index, at = [], [], [], [], []
    longer: list[tuple[float, float, bool, int]] = []
    for i, (steps, last) in enumerate(samples):
        for reward, value, inside in steps:
            at.append(len(longer))
            longer.append((reward, value, inside, i))
            rewards.append(reward)
            values.append(value)
            mask.append(inside)
            index.append(i)
        longer.append((last, last, True, i))

    def tensor(column: list[float]) -> torch.Tensor:
        return torch.tensor(column, dtype=F64)

    last_values = tensor([last for _, last in samples])
    found = gae(
        tensor(rewards),
        tensor(values),
        torch.tensor(mask),
        torch.tensor(index),
        gamma=gamma,
        lam=lam,
        last_values=last_values,
    )
    columns = [list(column) for column in zip(*longer, strict=True)]
    wanted = gae(
        tensor(columns[0]), tensor(columns[1]), torch.tensor(columns[2]), torch.tensor(columns[3]), gamma=gamma, lam=lam
    )
    for got, whole in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, whole[at], rtol=1e-10, atol=1e-10)
