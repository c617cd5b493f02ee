"""Several epochs over a batch: what its losses compare with stays, and the steps are those of plain PPO."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from held import Held, ask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.trainer import LRScheduleConfig, OptimizerConfig, TrainerConfig
from headrace.models.packing import MicroBatch, PackRow
from headrace.roles.actors.whole_batch import WholeBatch, WholeBatches
from headrace.training.epochs import Epochs
from headrace.training.objective import PolicyObjective
from headrace.training.protocol import StepReport
from headrace.training.trainer import HFTrainer

BATCH = 5


def report(**changes: Any) -> StepReport:
    values: dict[str, Any] = {
        "loss": 0.0,
        "grad_norm": 1.0,
        "lr": 1.0,
        "skipped": False,
        "denominator": 1.0,
        "stats": {},
        "maxima": {},
        "forwarded_tokens": 1,
        "trained_tokens": 1,
        "padding_tokens": 0,
    }
    return StepReport(**{**values, **changes})


class Recording:
    """A trainer that writes down its calls."""

    def __init__(self, left: Callable[[MicroBatch], Mapping[str, Tensor]] = lambda micro: {}) -> None:
        self.steps: list[list[MicroBatch]] = [[]]
        self._left = left

    def accumulate(self, micro: MicroBatch) -> Mapping[str, Tensor]:
        self.steps[-1].append(micro)
        return self._left(micro)

    def step(self) -> StepReport:
        self.steps.append([])
        return report(stats={"place": float(len(self.steps) - 1)})


def rows(lengths: Sequence[int]) -> list[PackRow]:
    """Row i's tokens are all i."""
    return [PackRow(np.full(n, i), np.arange(n) > 0, {"advantages": float(i)}) for i, n in enumerate(lengths)]


def made(
    trainer: Any, lengths: Sequence[int], epochs: Epochs, given_up: Callable[[], bool] = lambda: False, **options: Any
) -> WholeBatch:
    held = Held(rows(lengths), BATCH, trainer, **options)
    return WholeBatch(lengths, BATCH, held, ask, epochs, max_tokens=12, given_up=given_up)


def of_step(micros: list[MicroBatch]) -> list[int]:
    """The rows of a step in the order of their packing."""
    return [int(micro.tokens[start]) for micro in micros for start in micro.sequence_starts[:-1]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 4))
def test_every_epoch_goes_over_every_row_once_in_the_shares_of_its_seed(
    lengths: list[int], count: int, updates: int
) -> None:
    trainer, epochs = Recording(), Epochs(count, updates, seed=3)

    async def train() -> tuple[tuple[StepReport, ...], ...]:
        whole = made(trainer, lengths, epochs)
        await whole.begin()
        assert len(trainer.steps) == 1, "nothing is stepped before `finish`"
        return await whole.finish()

    reports = asyncio.run(train())
    per_epoch = min(updates, len(lengths))
    assert [len(of_epoch) for of_epoch in reports] == [per_epoch] * count
    assert trainer.steps.pop() == []
    shares = [share.tolist() for epoch in range(count) for share in epochs.shares(len(lengths), BATCH, epoch)]
    assert [of_step(step) for step in trainer.steps] == shares
    for step in trainer.steps:
        for micro in step:
            assert micro.num_tokens <= 12 or micro.num_samples == 1
            assert (micro.columns["batch"] == BATCH).all()


def test_columns_of_the_batchs_start_are_those_of_every_epoch() -> None:
    """`score` and `prepare` add columns once; each row has them again in each epoch, in whatever company."""
    trainer = Recording()

    def score(micro: MicroBatch) -> Tensor:
        return micro.tokens + micro.positions / 100

    def prepare(whole: Sequence[MicroBatch]) -> None:
        (micro,) = whole
        micro.columns["kept"] = micro.columns["proximal"] * 2

    async def train() -> None:
        whole = made(trainer, [3, 9, 5, 4, 8], Epochs(3, 2), score=score, prepare=prepare)
        await whole.score()
        await whole.prepare()
        await whole.begin()
        await whole.finish()

    asyncio.run(train())
    for micro in (micro for step in trainer.steps for micro in step):
        torch.testing.assert_close(micro.columns["proximal"], micro.tokens + micro.positions / 100)
        torch.testing.assert_close(micro.columns["kept"], 2 * micro.columns["proximal"])


def test_what_the_loss_leaves_is_found_in_later_epochs() -> None:
    def left(micro: MicroBatch) -> Mapping[str, Tensor]:
        return {} if "proximal" in micro.columns else {"proximal": micro.tokens * 10.0}

    trainer = Recording(left)

    async def train() -> None:
        whole = made(trainer, [3, 9, 5], Epochs(2, 2))
        await whole.begin()
        await whole.finish()

    asyncio.run(train())
    first, later = trainer.steps[:2], trainer.steps[2:4]
    assert not any("proximal" in micro.columns for step in first for micro in step)
    for micro in (micro for step in later for micro in step):
        assert torch.equal(micro.columns["proximal"], micro.tokens * 10.0)


def test_a_batch_can_be_given_up_between_two_passes_of_its_first_step() -> None:
    trainer = Recording()

    async def train() -> None:
        whole = made(trainer, [10, 10, 10], Epochs(2), given_up=lambda: len(trainer.steps[0]) == 2)
        await whole.begin()

    asyncio.run(train())
    assert [len(step) for step in trainer.steps] == [2]


def test_an_epoch_that_moved_the_policy_too_far_is_the_last() -> None:
    """KL per token of the epochs: 1/4, then (3 + 1) / 4 = 1."""
    settings_ = WholeBatches(Epochs(5, 2), recompute=True, stop_kl=0.9)
    assert not settings_.enough([report(stats={"step_kl": 1.0}, trained_tokens=4)])
    assert settings_.enough(
        [report(stats={"step_kl": 3.0}, trained_tokens=1), report(stats={"step_kl": 1.0}, trained_tokens=3)]
    )
    trainer = Recording()

    async def train() -> tuple[tuple[StepReport, ...], ...]:
        whole = made(trainer, [5, 5, 5, 5], settings_.epochs)
        await whole.begin()
        return await whole.finish(lambda reports: reports[0].stats["place"] >= 3)

    assert len(asyncio.run(train())) == 2


def tiny() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        Qwen3Config(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            initializer_range=0.3,
            max_position_embeddings=64,
        ),
        dtype=torch.float32,
    )


def sampled(seed: int = 0) -> list[PackRow]:
    """Six answers to a prompt, with advantages and log-probs of a policy some way off."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(6):
        tokens = np.concatenate([np.arange(4), rng.integers(0, 40, 5 + i)])
        behavior = np.float32(-np.abs(rng.normal(3.5, 0.5, len(tokens))))
        columns = {"advantages": float(rng.normal()), "logprobs": behavior, "versions": rng.integers(2, 6, len(tokens))}
        made.append(PackRow(tokens, np.arange(len(tokens)) >= 4, columns))
    return made


def plain_logprobs(model: Any, row: PackRow) -> Tensor:
    tokens = torch.as_tensor(row.tokens)
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[row.mask[1:], 0]


@pytest.mark.parametrize("updates", [1, 2])
def test_the_steps_are_those_of_plain_decoupled_ppo(updates: int) -> None:
    """Against a loop in plain torch, three epochs: old log-probs and behaviour weights once, at the batch's start."""
    algorithm = AlgorithmConfig(epochs_per_batch=3, updates_per_batch=updates, clip_high=0.2)
    config = TrainerConfig(
        optimizer=OptimizerConfig(lr=3e-3),
        lr_schedule=LRScheduleConfig(kind="linear", min_ratio=0.1),
        max_grad_norm=1.0,
    )
    total, epochs, data = 3 * updates, Epochs(3, updates, seed=7), sampled()
    objective = PolicyObjective(algorithm, PolicyLoss(algorithm))
    trainer = HFTrainer(tiny(), config=config, loss=objective, total_steps=total)

    async def train() -> tuple[tuple[StepReport, ...], ...]:
        whole = WholeBatch([len(row) for row in data], BATCH, Held(data, BATCH, trainer), ask, epochs, max_tokens=25)
        await whole.score()
        await whole.begin()
        return await whole.finish()

    reports = asyncio.run(train())

    model = tiny().eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, eps=config.optimizer.eps)
    behavior = [torch.as_tensor(row.columns["logprobs"])[row.mask] for row in data]
    with torch.no_grad():
        old = [plain_logprobs(model, row) for row in data]
    weights = [(before - ours).exp().clamp(max=5.0) for before, ours in zip(old, behavior, strict=True)]
    step = 0
    for epoch in range(3):
        for share in epochs.shares(6, BATCH, epoch):
            losses, kl, clipped = [], 0.0, 0
            for i in share:
                now, advantage = plain_logprobs(model, data[i]), float(data[i].columns["advantages"])
                ratio = (now - old[i]).exp()
                limited = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                losses.append(-(weights[i] * limited).mean())
                kl += float((now.detach() - old[i]).expm1().sub(now.detach() - old[i]).sum())
                clipped += int((limited.detach() != (ratio * advantage).detach()).sum())
            loss = torch.stack(losses).sum() / len(share)
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 - 0.9 * step / (total - 1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            told = reports[epoch][step % updates]
            assert told.loss == pytest.approx(loss.item(), rel=1e-4, abs=1e-5)
            assert told.lr == pytest.approx(optimizer.param_groups[0]["lr"])
            assert told.stats["step_kl"] == pytest.approx(kl, rel=1e-3, abs=1e-5)
            assert told.stats["clipped"] == clipped
            step += 1
    assert sum(of_step.stats["clipped"] for of_step in reports[-1]) > 0, "the trust region was reached"
    expected, actual = dict(model.named_parameters()), dict(trainer.tensors())
    for name, tensor in actual.items():
        torch.testing.assert_close(tensor, expected[name].detach(), atol=1e-4, rtol=1e-3)


def test_log_probs_of_the_first_epoch_are_those_of_all_epochs_of_one_step() -> None:
    algorithm = AlgorithmConfig(epochs_per_batch=2, proximal="loglinear", clip_high=0.2)
    inner = PolicyObjective(algorithm, PolicyLoss(algorithm))
    seen: list[dict[str, Tensor]] = []

    def objective(outputs: Tensor, micro: MicroBatch) -> Any:
        seen.append(dict(micro.columns))
        return inner(outputs, micro)

    trainer = HFTrainer(tiny(), config=TrainerConfig(optimizer=OptimizerConfig(lr=1e-2)), loss=objective, total_steps=2)
    start = trainer.logprobs

    async def train() -> Tensor:
        data = sampled()
        held = Held(data, BATCH, trainer, score=start, column="own")
        whole = WholeBatch([len(row) for row in data], BATCH, held, ask, Epochs(2), max_tokens=1000)
        await whole.score()
        await whole.begin()
        await whole.finish()
        return seen[1]["own"]

    current = asyncio.run(train())
    first, second = seen
    assert "proximal" not in first
    inside = current != 0
    torch.testing.assert_close(second["proximal"][inside], current[inside])
    assert [set(columns["made"].tolist()) for columns in seen] == [{0}, {1}]
