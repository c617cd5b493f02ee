"""Against verl's functions. Skipped without it: `pip install -e '.[oracle]'`, in an environment of its own, since verl
wants an older transformers than `constraints.txt`.

verl divides masked means by their count + 1e-8, so that where a mean is part of a value it is 1e-8 off: hence the
wider tolerances. It limits k3 to 10, which is not reached here, and leaves the reward of a group of one as it is;
there is none here.
"""

import pytest
import torch
from oracle_helpers import F64, SEEDS, Batch, close

from headrace.algorithms import advantages, corrections, kl, losses
from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.kl_controllers import AdaptiveKL

core = pytest.importorskip("verl.trainer.ppo.core_algos", exc_type=ImportError)
AlgoConfig = pytest.importorskip("verl.trainer.config").AlgoConfig
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig
correction = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")

pytestmark = pytest.mark.parametrize("seed", SEEDS)

AGGREGATIONS = {
    "token_mean": "token-mean",
    "sample_mean": "seq-mean-token-mean",
    "sample_sum": "seq-mean-token-sum",
}


@pytest.mark.parametrize("scale", ["group_std", "none"])
def test_group_normalized(seed: int, scale: advantages.Scale) -> None:
    batch = Batch.of(seed)
    rewards = batch.samples()
    theirs, _ = core.compute_grpo_outcome_advantage(
        batch.on_the_last_token(rewards),
        batch.padded_mask,
        batch.groups.numpy(),
        norm_adv_by_std_in_grpo=scale == "group_std",
    )
    ours = advantages.group_normalized(rewards, batch.groups, scale=scale)
    close(torch.where(batch.mask, ours[batch.sample_index], 0.0), batch.flat(theirs))


@pytest.mark.parametrize("ours", ["leave_one_out", "opo"])
def test_baselines(seed: int, ours: str) -> None:
    batch = Batch.of(seed)
    rewards = batch.samples()
    given = batch.on_the_last_token(rewards), batch.padded_mask, batch.groups.numpy()
    if ours == "opo":
        theirs, _ = core.compute_opo_outcome_advantage(*given)
        lengths = batch.padded_mask.sum(-1)
        mine = advantages.opo(rewards, lengths, batch.groups)
    else:
        theirs, _ = core.compute_rloo_outcome_advantage(*given)
        mine = advantages.leave_one_out(rewards, batch.groups)
    close(torch.where(batch.mask, mine[batch.sample_index], 0.0), batch.flat(theirs))


def test_gae(seed: int) -> None:
    batch = Batch.of(seed)
    rewards, values = batch.tokens(), batch.tokens()
    theirs, their_returns = core.compute_gae_advantage_return(
        batch.padded(rewards), batch.padded(values), batch.padded_mask, 0.97, 0.9
    )
    ours, returns = advantages.gae(rewards, values, batch.mask, batch.sample_index, gamma=0.97, lam=0.9)
    close(returns[batch.mask], batch.flat(their_returns)[batch.mask])
    close(advantages.whiten(ours, batch.mask)[batch.mask], batch.flat(theirs)[batch.mask], 1e-7)


def test_reinforce_plus_plus(seed: int) -> None:
    batch = Batch.of(seed)
    rewards, penalty = batch.samples(), batch.tokens()
    per_token = batch.on_the_last_token(rewards) - 0.3 * batch.padded(penalty)
    theirs, their_returns = core.compute_reinforce_plus_plus_outcome_advantage(
        per_token, batch.padded_mask, AlgoConfig(gamma=0.95)
    )
    given = rewards, penalty, batch.mask, batch.sample_index
    close(advantages.reinforce_plus_plus(*given, beta=0.3, gamma=0.95, whiten=False), batch.flat(their_returns))
    close(advantages.reinforce_plus_plus(*given, beta=0.3, gamma=0.95), batch.flat(theirs), 1e-7)


def test_reinforce_plus_plus_baseline(seed: int) -> None:
    batch = Batch.of(seed)
    rewards = batch.samples()
    theirs, _ = core.compute_reinforce_plus_plus_baseline_outcome_advantage(
        batch.on_the_last_token(rewards), batch.padded_mask, batch.groups.numpy()
    )
    ours = advantages.reinforce_plus_plus_baseline(rewards, batch.groups, batch.mask, batch.sample_index)
    close(ours, batch.flat(theirs), 1e-7)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_kl(seed: int, kind: kl.Kind) -> None:
    batch = Batch.of(seed)
    p, q = batch.tokens(0.4), batch.tokens(0.4)
    mine, theirs = p.clone().requires_grad_(), p.clone().requires_grad_()
    ours, other = kl.estimate(mine, q, kind=kind), core.kl_penalty(theirs, q, kind)
    close(ours, other)
    close(*torch.autograd.grad(ours.sum(), mine), *torch.autograd.grad(other.sum(), theirs))


def test_k3_with_k2_gradient(seed: int) -> None:
    batch = Batch.of(seed)
    p, q = batch.tokens(0.4), batch.tokens(0.4)
    mine, theirs = p.clone().requires_grad_(), p.clone().requires_grad_()
    ours, other = kl.k3_with_k2_gradient(mine, q), core.kl_penalty(theirs, q, "k3+")
    close(ours, other)
    close(*torch.autograd.grad(ours.sum(), mine), *torch.autograd.grad(other.sum(), theirs))


# verl aggregates the last two by sample_mean alone.
CASES = [
    *((name, mode) for name in ("clipped_surrogate", "cispo", "gspo", "reinforce") for mode in AGGREGATIONS),
    ("sapo", "sample_mean"),
    ("geometric_mean", "sample_mean"),
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_policy_losses(seed: int, name: str, mode: str) -> None:
    batch = Batch.of(seed)
    behind = batch.tokens()
    start = behind + batch.tokens(0.5)
    # Their geometric mean takes one advantage per sample.
    a = batch.samples()[batch.sample_index] if name == "geometric_mean" else batch.tokens()
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28
    )

    theirs = start.clone().requires_grad_()
    their_name = {"clipped_surrogate": "vanilla", "geometric_mean": "geo_mean", "reinforce": "gpg"}.get(name, name)
    given = batch.padded(behind), batch.padded(theirs), batch.padded(a), batch.padded_mask
    expected, _ = core.get_policy_loss_fn(their_name)(*given, AGGREGATIONS[mode], config)
    expected.backward()

    ours = start.clone().requires_grad_()
    clips = {"clip_low": 0.2, "clip_high": 0.28}
    loss = {
        "clipped_surrogate": lambda: losses.clipped_surrogate(ours, behind, a, batch.mask, **clips, dual_clip=3.0),
        "cispo": lambda: losses.cispo(ours, behind, a, batch.mask, **clips),
        "gspo": lambda: losses.gspo(ours, behind, a, batch.mask, batch.sample_index, **clips),
        "sapo": lambda: losses.sapo(ours, behind, a, batch.mask),
        "geometric_mean": lambda: losses.geometric_mean(ours, behind, a, batch.mask, batch.sample_index, **clips),
        "reinforce": lambda: losses.reinforce(ours, a, batch.mask),
    }[name]()
    numerator, denominator = aggregate(loss.per_token, batch.mask, batch.sample_index, mode=mode)
    (numerator / denominator).backward()
    tolerance = 1e-10 if mode != "sample_mean" else 1e-7
    close(numerator / denominator, expected.to(F64), tolerance)
    assert ours.grad is not None
    assert theirs.grad is not None
    close(ours.grad, theirs.grad, tolerance)


def test_value_loss(seed: int) -> None:
    batch = Batch.of(seed)
    values, old, returns = batch.tokens(), batch.tokens(), batch.tokens()
    expected, _ = core.compute_value_loss(
        batch.padded(values), batch.padded(returns), batch.padded(old), batch.padded_mask, 0.4
    )
    loss = losses.value_loss(values, old, returns, batch.mask, clip=0.4)
    numerator, denominator = aggregate(loss.per_token, batch.mask, batch.sample_index, mode="token_mean")
    close(numerator / denominator, expected)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_behavior_weights(seed: int, level: corrections.Level, mode: corrections.Mode) -> None:
    batch = Batch.of(seed)
    proximal, behavior = batch.tokens(), batch.tokens()
    expected, _ = correction.compute_rollout_correction_weights(
        batch.padded(proximal - behavior),
        batch.padded_mask,
        rollout_is=level,
        rollout_is_threshold="0.5_2.0" if mode == "mask" else 2.0,
    )
    low = 0.5 if mode == "mask" else 0.0
    given = proximal, behavior, batch.mask, batch.sample_index
    ours = corrections.behavior_weights(*given, level=level, mode=mode, low=low, high=2.0)
    close(ours.per_token, batch.flat(expected))


def test_adaptive_kl(seed: int) -> None:
    measured = torch.rand(20, generator=torch.Generator().manual_seed(seed)) * 12
    theirs = core.AdaptiveKLController(0.2, 6.0, 1000)
    ours = AdaptiveKL(beta=0.2, target=6.0, horizon=1000)
    for value in measured.tolist():
        theirs.update(value, 64)
        ours = ours.after(value, 64)
    assert ours.beta == pytest.approx(theirs.value, rel=1e-12)
