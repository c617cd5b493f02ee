import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.losses import preference, reward_ranking

F64 = torch.float64
NAN = math.nan


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


# Four samples, of pairs 9 (rejected first) and 4. Log-ratios to the reference: sample 10: 1 and 2 (and a prompt);
# 11: 0.5; 12: -1, -1, -1; 13: 2 and 0.
LOG_RATIOS = tensor(NAN, 1, 2, 0.5, -1, -1, -1, 2, 0, NAN)
MASK = LOG_RATIOS.isfinite()
SAMPLES = torch.tensor([10, 10, 10, 11, 12, 12, 12, 13, 13, 13])
PAIRS, CHOSEN = torch.tensor([9, 4, 9, 4]), torch.tensor([False, True, True, False])


def run(**options):
    logprobs = (LOG_RATIOS - 5).requires_grad_()
    reference = torch.full_like(LOG_RATIOS, -5).requires_grad_()
    loss = preference(logprobs, reference, MASK, SAMPLES, PAIRS, CHOSEN, **options)
    loss.per_pair.sum().backward()
    assert reference.grad is None
    assert logprobs.grad is not None
    return loss, logprobs.grad


def test_dpo_by_hand() -> None:
    # h: pair 4: 0.5 - 2 = -1.5; pair 9: -3 - 3 = -6.
    loss, gradient = run(beta=0.5)
    assert loss.per_pair.tolist() == pytest.approx([-log_sigmoid(-0.75), -log_sigmoid(-3)], abs=1e-12)
    # d / dh = -beta sigmoid(-beta h), at every token of the chosen, its opposite at the rejected.
    four, nine = (0.5 / (1 + math.exp(-x)) for x in (0.75, 3))
    expected = [0, nine, nine, -four, -nine, -nine, -nine, four, four, 0]
    assert gradient.tolist() == pytest.approx(expected, abs=1e-12)
    assert {name: stat.item() for name, stat in loss.stats.items()} == pytest.approx(
        {"pairs": 2, "correct": 0, "margin": -3.75, "chosen": -1.25, "rejected": 2.5}
    )


def test_label_smoothing_by_hand() -> None:
    loss, _ = run(beta=0.5, label_smoothing=0.1)
    expected = [-0.9 * log_sigmoid(x) - 0.1 * log_sigmoid(-x) for x in (-0.75, -3)]
    assert loss.per_pair.tolist() == pytest.approx(expected, abs=1e-12)


def test_ipo_by_hand() -> None:
    loss, _ = run(beta=0.5, kind="ipo")
    assert loss.per_pair.tolist() == pytest.approx([2.5**2, 7**2], abs=1e-12)
    loss, _ = run(beta=0.5, kind="ipo", per_length=True)
    # Means: 0.5 - 1 and -1 - 1.5.
    assert loss.per_pair.tolist() == pytest.approx([1.5**2, 3.5**2], abs=1e-12)


def test_reward_ranking_by_hand() -> None:
    scores = tensor(1, 5, 0.5, 2).requires_grad_()
    loss = reward_ranking(scores, PAIRS, CHOSEN)
    assert loss.per_pair.tolist() == pytest.approx([-log_sigmoid(3), -log_sigmoid(-0.5)], abs=1e-12)
    assert {name: stat.item() for name, stat in loss.stats.items()} == {"pairs": 2, "correct": 1, "margin": 2.5}
    loss.per_pair.sum().backward()
    four, nine = 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-0.5))
    assert scores.grad.tolist() == pytest.approx([nine, -four, -nine, four], abs=1e-12)
    with_margin = reward_ranking(scores, PAIRS, CHOSEN, margin=1.0)
    assert with_margin.per_pair.tolist() == pytest.approx([-log_sigmoid(2), -log_sigmoid(-1.5)], abs=1e-12)
    assert with_margin.stats["margin"].item() == 2.5


def test_far_scores_stay_finite() -> None:
    scores = torch.tensor([-1e4, 1e4], requires_grad=True)
    loss = reward_ranking(scores, torch.tensor([0, 0]), torch.tensor([True, False]))
    loss.per_pair.sum().backward()
    assert loss.per_pair.item() == pytest.approx(2e4)
    assert scores.grad.tolist() == [-1, 1]


@pytest.mark.parametrize(
    ("pairs", "chosen"), [([1, 1, 2], [1, 0, 1]), ([1, 1, 2, 2], [1, 0, 1, 1]), ([1, 1, 1], [1, 0, 0])]
)
def test_a_broken_pair_is_named(pairs: list[int], chosen: list[int]) -> None:
    with pytest.raises(ValueError, match=rf"pairs \[{pairs[-1]}\]"):
        reward_ranking(torch.zeros(len(pairs)), torch.tensor(pairs), torch.tensor(chosen, dtype=torch.bool))


def test_no_pairs_give_no_loss() -> None:
    none = torch.tensor([], dtype=torch.int64)
    loss = reward_ranking(tensor(), none, none.bool())
    assert loss.per_pair.shape == (0,)
    assert loss.stats["pairs"].item() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.0}, "beta is 0.0"),
        ({"beta": 0.1, "label_smoothing": 0.5}, "label_smoothing is 0.5"),
        ({"beta": 0.1, "label_smoothing": 0.1, "kind": "ipo"}, "ipo has none"),
        ({"beta": 0.1, "kind": "kto"}, "'kto'.*'dpo'"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**options)


pair_of_samples = st.tuples(
    *[st.lists(st.tuples(st.floats(-3, 3), st.booleans()), min_size=1, max_size=4)] * 2, st.booleans()
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(pair_of_samples, min_size=1, max_size=5),
    st.sampled_from(["dpo", "ipo"]),
    st.randoms(use_true_random=False),
)
def test_whole_pairs_add_up_in_any_order(pairs, kind, random) -> None:
    def total(chosen_pairs: list[int]) -> tuple[float, dict[str, float]]:
        rows = [(i, pairs[i][side], side == 0) for i in chosen_pairs for side in (0, 1)]
        random.shuffle(rows)
        tokens = [(place, *token) for place, (_, sample, _) in enumerate(rows) for token in sample]
        index, values, mask = zip(*tokens, strict=True)
        logprobs = tensor(*values)
        loss = preference(
            logprobs,
            torch.zeros_like(logprobs),
            torch.tensor(mask),
            torch.tensor(index),
            torch.tensor([row[0] for row in rows]),
            torch.tensor([row[2] for row in rows]),
            beta=0.3,
            kind=kind,
        )
        return loss.per_pair.sum().item(), {name: stat.item() for name, stat in loss.stats.items()}

    whole, stats = total(list(range(len(pairs))))
    cut = random.randint(0, len(pairs))
    parts = [total(part) for part in (list(range(cut)), list(range(cut, len(pairs)))) if part]
    assert sum(part[0] for part in parts) == pytest.approx(whole, abs=1e-9)
    for name, value in stats.items():
        assert sum(part[1][name] for part in parts) == pytest.approx(value, abs=1e-9)
