import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.policy_loss import LossTerms, PolicyLoss, PolicyTokens
from headrace.config.algorithm import AlgorithmConfig, BehaviorConfig

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


# Probabilities of three trained tokens (samples 0, 0, 1) and one of the prompt.
CURRENT = tensor(0.6, 0.2, 0.1, 0.9)
PROXIMAL = tensor(0.4, 0.2, 0.2, 0.9)
BEHAVIOR = tensor(0.2, 0.4, 0.02, 0.9)
ADVANTAGES = tensor(1.0, 1.0, -2.0, 7.0)
MASK = torch.tensor([True, True, True, False])
SAMPLES = torch.tensor([0, 0, 1, 1])


def config(**options: object) -> AlgorithmConfig:
    settings = {"recipe": "dapo", **options}
    return AlgorithmConfig(clip_low=0.2, clip_high=0.3, behavior=BehaviorConfig(low=0.75, high=5.0), **settings)


def run(algorithm: AlgorithmConfig, proximal: torch.Tensor | None = PROXIMAL) -> tuple[LossTerms, list[float]]:
    logprobs = CURRENT.log().requires_grad_()
    terms = PolicyLoss(algorithm)(
        logprobs,
        PolicyTokens(
            mask=MASK,
            sample_index=SAMPLES,
            behavior=BEHAVIOR.log(),
            advantages=ADVANTAGES,
            proximal=None if proximal is None else proximal.log(),
        ),
    )
    terms.numerator.backward()
    assert logprobs.grad is not None
    return terms, logprobs.grad.tolist()


def test_decoupled_by_hand() -> None:
    terms, gradient = run(config())
    # current / proximal 1.5, 1, 0.5, clipped to 1.3, 1, 0.8; proximal / behaviour 2, 0.5, 10, truncated to 2,
    # 0.75, 5.
    assert terms.numerator.item() == pytest.approx(-1.3 * 2 - 1 * 0.75 + 2 * 0.8 * 5, abs=1e-10)
    assert terms.denominator.item() == 3
    assert gradient == pytest.approx([0, -0.75, 0, 0], abs=1e-10)
    assert terms.stats["clipped"].item() == 2
    assert terms.stats["behavior_weight"].item() == pytest.approx(2 + 0.75 + 5, abs=1e-10)


def test_without_proximal_the_current_policy_anchors_and_the_clip_is_inert() -> None:
    terms, gradient = run(config(), proximal=None)
    # current / behaviour 3, 0.5, 5, truncated to 3, 0.75, 5; the ratio is 1, its gradient the weight's.
    assert terms.numerator.item() == pytest.approx(-3 - 0.75 + 2 * 5, abs=1e-10)
    assert gradient == pytest.approx([-3, -0.75, 10, 0], abs=1e-10)
    assert terms.stats["clipped"].item() == 0


@pytest.mark.parametrize("proximal", [PROXIMAL, None])
def test_naive_takes_the_behaviour_policy_for_the_proximal_one(proximal: torch.Tensor | None) -> None:
    terms, gradient = run(config(objective="naive"), proximal)
    # current / behaviour 3, 0.5, 5: clipped to 1.3; a gain is not bounded below; a loss not above.
    assert terms.numerator.item() == pytest.approx(-1.3 - 0.5 + 2 * 5, abs=1e-10)
    assert gradient == pytest.approx([0, -0.5, 10, 0], abs=1e-10)
    assert terms.stats["behavior_weight"].item() == 3


def test_sample_mean_divides_within_samples() -> None:
    terms, _ = run(config(aggregation="sample_mean"), proximal=None)
    assert terms.numerator.item() == pytest.approx((-3 - 0.75) / 2 + 10, abs=1e-10)
    assert terms.denominator.item() == 2


def test_stats_and_maxima_by_hand() -> None:
    terms, _ = run(config())
    ratios = (3, 0.5, 5)  # current / behaviour
    assert terms.stats["tokens"].item() == 3
    drift = sum(abs(math.log(r)) for r in (2, 0.5, 10))  # proximal / behaviour
    assert terms.stats["drift_abs"].item() == terms.stats["mismatch_abs"].item() == pytest.approx(drift, abs=1e-10)
    assert terms.stats["mismatch_tokens"].item() == 3
    assert terms.stats["approx_kl"].item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratios), abs=1e-10)
    assert terms.maxima["drift_abs"].item() == pytest.approx(math.log(10), abs=1e-10)
    assert terms.maxima["mismatch_abs"].item() == pytest.approx(math.log(10), abs=1e-10)
    assert not any(value.requires_grad for value in (*terms.stats.values(), *terms.maxima.values()))


def test_the_mismatch_is_of_fresh_tokens_and_the_trainers_log_probs() -> None:
    """The first and the last token are fresh, and the last is of the prompt."""
    data = PolicyTokens(
        mask=MASK,
        sample_index=SAMPLES,
        behavior=BEHAVIOR.log(),
        advantages=ADVANTAGES,
        proximal=PROXIMAL.log(),
        trainer=(BEHAVIOR * tensor(3.0, 5.0, 7.0, 9.0)).log(),
        fresh=torch.tensor([True, False, False, True]),
    )
    terms = PolicyLoss(config())(CURRENT.log(), data)
    assert terms.stats["mismatch_tokens"].item() == 1
    assert terms.stats["mismatch_abs"].item() == pytest.approx(math.log(3), abs=1e-10)
    assert terms.maxima["mismatch_abs"].item() == pytest.approx(math.log(3), abs=1e-10)
    assert terms.stats["drift_abs"].item() == pytest.approx(math.log(3 * 5 * 7), abs=1e-10)
    plain, _ = run(config())
    assert terms.numerator.item() == plain.numerator.item(), "what is measured changes no loss"


def test_dr_grpo_divides_by_the_longest_answer_and_not_by_its_own_length() -> None:
    """By hand, on the policy's own tokens: three of two samples with advantages 1, 1 and -2, answers of 10 at most; the
    loss is -(1 + 1 - 2) / 20 and the gradients of its tokens -1/20, -1/20 and 2/20."""
    logprobs = CURRENT.log().requires_grad_()
    data = PolicyTokens(mask=MASK, sample_index=SAMPLES, behavior=CURRENT.log(), advantages=ADVANTAGES)
    terms = PolicyLoss(AlgorithmConfig(recipe="dr_grpo"), max_length=10)(logprobs, data)
    (terms.numerator / terms.denominator).backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.05, -0.05, 0.1, 0.0])


def test_a_micro_batch_without_trained_tokens_adds_nothing() -> None:
    logprobs = tensor(-1.0, -2.0).requires_grad_()
    zero = tensor(0.0, 0.0)
    nothing = PolicyTokens(
        mask=torch.tensor([False, False]), sample_index=torch.tensor([0, 0]), behavior=zero, advantages=zero
    )
    terms = PolicyLoss(config())(logprobs, nothing)
    terms.numerator.backward()
    assert terms.numerator.item() == terms.denominator.item() == terms.maxima["mismatch_abs"].item() == 0
    assert all(value.item() == 0 for value in terms.stats.values())


def test_no_input_is_changed() -> None:
    before = [x.clone() for x in (CURRENT, PROXIMAL, BEHAVIOR, ADVANTAGES, MASK, SAMPLES)]
    run(config())
    for x, y in zip((CURRENT, PROXIMAL, BEHAVIOR, ADVANTAGES, MASK, SAMPLES), before, strict=True):
        assert torch.equal(x, y)


token = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.floats(-3, 0), st.booleans())
sample = st.tuples(st.floats(-2, 2), st.lists(token, min_size=1, max_size=5))


def terms_of(loss: PolicyLoss, samples, with_proximal: bool) -> tuple[LossTerms, list[list[float]]]:
    rows = [(a, index, *row) for index, (a, tokens) in enumerate(samples) for row in tokens]
    columns = list(zip(*rows, strict=True))
    logprobs = tensor(*columns[2]).requires_grad_()
    data = PolicyTokens(
        mask=torch.tensor(columns[5]),
        sample_index=torch.tensor(columns[1]),
        behavior=tensor(*columns[4]),
        advantages=tensor(*columns[0]),
        proximal=tensor(*columns[3]) if with_proximal else None,
    )
    terms = loss(logprobs, data)
    terms.numerator.backward()
    assert logprobs.grad is not None
    return terms, [part.tolist() for part in logprobs.grad.split([len(tokens) for _, tokens in samples])]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(sample, min_size=1, max_size=6),
    st.sampled_from(["decoupled", "naive"]),
    st.sampled_from(["token_mean", "sample_mean", "constant_length"]),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_micro_batches_of_any_split_add_up(samples, objective, aggregation, with_proximal, random) -> None:
    loss = PolicyLoss(AlgorithmConfig(objective=objective, aggregation=aggregation), max_length=16)
    whole, gradients = terms_of(loss, samples, with_proximal)
    order = list(range(len(samples)))
    random.shuffle(order)
    cut = random.randint(0, len(order))
    parts = [part for part in (order[:cut], order[cut:]) if part]
    results = [terms_of(loss, [samples[i] for i in part], with_proximal) for part in parts]
    for part, (_, part_gradients) in zip(parts, results, strict=True):
        for place, index in enumerate(part):
            assert part_gradients[place] == pytest.approx(gradients[index], abs=1e-10)
    terms = [result[0] for result in results]
    assert sum(t.numerator.item() for t in terms) == pytest.approx(whole.numerator.item(), abs=1e-10)
    assert sum(t.denominator.item() for t in terms) == whole.denominator.item()
    for name, total in whole.stats.items():
        assert sum(t.stats[name].item() for t in terms) == pytest.approx(total.item(), abs=1e-10)
    for name, largest in whole.maxima.items():
        assert max(t.maxima[name].item() for t in terms) == pytest.approx(largest.item(), abs=1e-12)


def test_distillation_is_the_reverse_kl_also_of_stale_tokens() -> None:
    """The expectation over what the behaviour policy samples, against the gradient of KL(current || teacher)."""
    generator = torch.Generator().manual_seed(3)
    logits, behavior, teacher = torch.randn(3, 5, generator=generator, dtype=torch.float64).unbind()
    behavior, teacher = behavior.log_softmax(0), teacher.log_softmax(0)
    logits = logits.requires_grad_()
    logprobs = logits.log_softmax(0)
    config = AlgorithmConfig(recipe="opd", aggregation="sample_sum", behavior={"high": 1e9})
    tokens = PolicyTokens(
        mask=torch.ones(5, dtype=torch.bool), sample_index=torch.arange(5), behavior=behavior, teacher=teacher
    )
    of_token = torch.autograd.grad(PolicyLoss(config)(logprobs, tokens).numerator, logprobs, retain_graph=True)[0]
    (expected,) = torch.autograd.grad((behavior.exp() * of_token * logprobs).sum(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - teacher)).sum(), logits)
    assert torch.allclose(expected, exact, atol=1e-12)
