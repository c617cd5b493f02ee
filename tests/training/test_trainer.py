from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from devices import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st
from marked import said
from training_helpers import (
    CONFIGS,
    SETTINGS,
    gradients,
    make_rows,
    make_trainer,
    state,
    tiny_model,
    weighted_loss,
    weights,
)

from headrace.config import ConfigError
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.models.logprobs import token_logprobs
from headrace.models.operations import TrainingOperations, multiplying
from headrace.models.packing import PackRow, pack, plan_microbatches
from headrace.runtime.heap import Heap
from headrace.runtime.progress import rest
from headrace.training import replicas
from headrace.training import trainer as trainer_module
from headrace.training.layouts.ranks import Layout
from headrace.training.optimizer.whole_weights import l2_norm
from headrace.training.protocol import LossTerms, StepReport
from headrace.training.replicas import Meeting
from headrace.training.shared_model import SharedModel
from headrace.training.trainer import HFTrainer

LENGTHS = [9, 4, 17, 4, 1, 12, 6, 6]
ROWS = make_rows(LENGTHS)


def train(trainer: HFTrainer, batches: Iterable[Iterable[list[PackRow]]]) -> list[StepReport]:
    reports = []
    for batch in batches:
        for rows in batch:
            trainer.accumulate(pack(rows))
        reports.append(trainer.step())
    return reports


def master_gradients(trainer: HFTrainer) -> dict[str, torch.Tensor]:
    return {name: view.clone() for name, view in gradients(trainer).items()}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=len(LENGTHS), max_size=len(LENGTHS)))
def test_any_split_into_micro_batches_gives_the_whole_batch(assignment: list[int]) -> None:
    whole, split = make_trainer(), make_trainer()
    whole.accumulate(pack(ROWS))
    for part in set(assignment):
        split.accumulate(pack([row for row, home in zip(ROWS, assignment, strict=True) if home == part]))
    expected = master_gradients(whole)
    for name, grad in master_gradients(split).items():
        scale = float(expected[name].abs().max())
        torch.testing.assert_close(grad, expected[name], rtol=1e-6, atol=3e-6 * (scale + 1))
    a, b = whole.step(), split.step()
    assert b.loss == pytest.approx(a.loss, rel=1e-6)
    assert b.grad_norm == pytest.approx(a.grad_norm, rel=1e-5)
    assert b.denominator == a.denominator == sum(int(row.mask[1:].sum()) for row in ROWS) == a.trained_tokens
    assert b.stats == pytest.approx(a.stats, rel=1e-6)
    assert a.stats["samples"] == b.stats["samples"] == 8
    assert b.maxima == pytest.approx(a.maxima, rel=1e-6)
    assert a.maxima["length"] == 17
    assert (a.forwarded_tokens, a.padding_tokens) == (b.forwarded_tokens, b.padding_tokens) == (sum(LENGTHS), 0)


def test_a_report_counts_what_samples_begin_with_once() -> None:
    """By hand: a prompt of 10 tokens, with eight answers of 3 behind it."""
    trainer = make_trainer()
    rows = [make_rows([13])[0]] * 8
    for place, row in enumerate(rows):
        tokens = row.tokens.copy()
        tokens[10:] = place
        rows[place] = replace(row, tokens=tokens, mask=np.arange(13) >= 10)
    micro = pack(rows)
    trainer.accumulate(micro)
    report = trainer.step()
    assert (report.forwarded_tokens, report.trained_tokens, report.padding_tokens) == (10 + 8 * 3, 24, 0)
    assert report.operations == TrainingOperations(trainer.model).computed(trainer._lm, micro).operations


def test_whether_sums_can_be_in_order_is_tried_before_ranks_come_together() -> None:
    """As in `sync` on a CUDA device, in the constructor."""
    model = tiny_model()
    trainer = HFTrainer(model, config=SETTINGS, loss=weighted_loss, total_steps=1, layout=Layout(dp=2, zero=3))
    assert trainer._sums_in_order()
    assert all(parameter.grad is None for parameter in model.parameters())


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(len(LENGTHS))), st.integers(1, 60))
def test_the_gradient_does_not_depend_on_the_order_of_arrival(order: list[int], budget: int) -> None:
    """Within 1e-5 of its norm; in the same order, to the last bit."""

    def gradient(order: list[int], budget: int) -> torch.Tensor:
        trainer = make_trainer()
        for places in plan_microbatches([LENGTHS[i] for i in order], budget):
            trainer.accumulate(pack([ROWS[order[place]] for place in places]))
        return torch.cat([view.flatten() for view in gradients(trainer).values()])

    expected, actual = gradient(list(range(len(LENGTHS))), 1000), gradient(order, budget)
    assert float((actual - expected).norm()) <= 1e-5 * float(expected.norm())
    assert torch.equal(actual, gradient(order, budget))


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_equal_plain_torch(name: str) -> None:
    """Against torch.optim.AdamW and clip_grad_norm_ on the model's own forward pass, one sample at a time."""
    model = tiny_model(name).eval()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=1e-2
    )
    trainer = make_trainer(name, temperature=0.8)
    for step in range(3):
        rows = make_rows(LENGTHS, seed=step)
        count = sum(int(row.mask[1:].sum()) for row in rows)
        loss = torch.zeros((), device=DEVICE)
        for row in rows:
            tokens = torch.as_tensor(row.tokens).to(DEVICE)
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, :-1] / 0.8
            chosen = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
            kept = torch.as_tensor(row.columns["weights"] * row.mask, dtype=torch.float32)[1:].to(DEVICE)
            loss = loss - (chosen * kept).sum() / count
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for group in optimizer.param_groups:
            # warm-up over 2 steps: 1/3, 2/3, then the peak
            group["lr"] = 1e-2 * (step + 1) / 3
        optimizer.step()

        (report,) = train(trainer, [[rows[:3], rows[3:]]])
        assert report.loss == pytest.approx(loss.item(), rel=1e-4)
        assert report.grad_norm == pytest.approx(norm.item(), rel=1e-3)
        assert report.lr == pytest.approx(1e-2 * (step + 1) / 3)
    expected = dict(model.named_parameters())
    actual = weights(trainer)
    assert actual.keys() == expected.keys()
    # Adam turns rounding of gradients near 0 into whole steps, so a few entries differ by up to one.
    different = sum(int((~torch.isclose(actual[n], expected[n], atol=1e-4)).sum()) for n in expected)
    assert different <= 0.002 * sum(p.numel() for p in expected.values())


def test_a_nan_skips_the_update_but_counts_the_step() -> None:
    def loss(logprobs: torch.Tensor, micro: object) -> LossTerms:
        return LossTerms(logprobs.sum() * poison, 1.0)

    trainer = make_trainer(loss=loss)
    before = weights(trainer)
    poison = math.nan
    (report,) = train(trainer, [[ROWS]])
    assert report.skipped
    assert math.isnan(report.grad_norm)
    assert trainer.step_count == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in trainer.tensors())

    poison = 1.0
    (report,) = train(trainer, [[ROWS]])
    assert not report.skipped, "nothing of the bad batch is left in the gradients"
    assert report.lr == pytest.approx(SETTINGS.optimizer.lr * 2 / 3), "the schedule goes on"
    assert any(not torch.equal(before[name], tensor) for name, tensor in trainer.tensors())


def test_on_a_cpu_each_step_offers_the_heap_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its gradients are gone, when little is in use."""
    if DEVICE.type != "cpu":
        pytest.skip("of the host's memory")
    gradients_then: list[bool] = []

    class Asked(Heap):
        def give_back(self) -> bool:
            grads = [each.grad for each in trainer.model.parameters()]
            gradients_then.append(any(grad is not None and bool(grad.any()) for grad in grads))
            return False

    monkeypatch.setattr(trainer_module, "own_heap", lambda: Asked(lambda: 0, None))
    trainer = make_trainer()
    train(trainer, [[ROWS], [ROWS]])
    assert gradients_then == [False, False]


def test_nothing_to_train_skips_the_update() -> None:
    trainer = make_trainer()
    empty = [PackRow(row.tokens, row.mask & False, row.columns) for row in ROWS]
    (report,) = train(trainer, [[empty]])
    assert report.skipped
    assert (report.denominator, report.loss, report.grad_norm, report.trained_tokens) == (0, 0, 0, 0)
    assert report.stats["samples"] == 8
    assert trainer.step().skipped, "a batch without any micro-batch"


def test_discard_forgets_what_was_accumulated() -> None:
    disturbed, clean = make_trainer(), make_trainer()
    disturbed.accumulate(pack(make_rows([20, 3], seed=9)))
    disturbed.discard()
    assert train(disturbed, [[ROWS]]) == train(clean, [[ROWS]])
    expected = weights(clean)
    assert all(torch.equal(expected[name], tensor) for name, tensor in disturbed.tensors())


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    for name in CONFIGS:
        plain, checkpointed = make_trainer(name), make_trainer(name, gradient_checkpointing=True)
        for trainer in (plain, checkpointed):
            trainer.accumulate(pack(ROWS))
        expected = master_gradients(plain)
        for key, grad in master_gradients(checkpointed).items():
            torch.testing.assert_close(grad, expected[key], rtol=1e-6, atol=1e-6)


def test_gradient_checkpointing_recomputes(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, calls = make_trainer(gradient_checkpointing=True), []
    monkeypatch.setattr(
        "headrace.models.attention._fused",
        lambda q, k, v, scaling, window: calls.append(1) or q * v.repeat_interleave(2, 1),
    )
    trainer.accumulate(pack([ROWS[0]]))
    assert len(calls) == 4, "two layers, each forward twice"


def test_models_that_cannot_checkpoint_gradients_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match=r"gradient_checkpointing is true, but Qwen3ForCausalLM.*set it to false"):
        HFTrainer(model, config=SETTINGS, loss=weighted_loss, total_steps=1, gradient_checkpointing=True)


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_has_no_dropout(name: str, checkpointing: bool) -> None:
    assert max(CONFIGS["qwen3"].attention_dropout, CONFIGS["gpt2"].resid_pdrop) == 0.5
    trainer = make_trainer(name, gradient_checkpointing=checkpointing)
    first, second = trainer.logprobs(pack(ROWS)), trainer.logprobs(pack(ROWS))
    assert torch.equal(first, second)
    plain = make_trainer(name).logprobs(pack(ROWS))
    assert torch.equal(first, plain)


def test_tied_weights_are_handed_out_once_and_under_the_name_that_is_saved() -> None:
    names = [name for name, _ in make_trainer("qwen3").tensors()]
    assert len(names) == len(set(names))
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    assert "lm_head.weight" in dict(make_trainer("llama").tensors())


def test_tied_weights_get_both_gradients_and_stay_tied() -> None:
    trainer = make_trainer("qwen3")
    train(trainer, [[ROWS]])
    model = trainer._model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_remembered_comes_back_bit_for_bit(dtype: torch.dtype) -> None:
    """Weights, moments and the place in the schedule, twice from the same memory, with gradients under way."""
    disturbed, clean = make_trainer(dtype=dtype), make_trainer(dtype=dtype)
    for _ in range(2):
        assert train(disturbed, [[ROWS]]) == train(clean, [[ROWS]])
        disturbed.remember()
        train(disturbed, [[make_rows([20, 3], seed=9)], [ROWS[:2]]])
        disturbed.accumulate(pack(ROWS[:3]))
        disturbed.recall()
        assert disturbed.step_count == clean.step_count
        expected = weights(clean)
        assert all(torch.equal(expected[name], tensor) for name, tensor in disturbed.tensors())
    assert train(disturbed, [[ROWS], [ROWS[:4]]]) == train(clean, [[ROWS], [ROWS[:4]]])
    expected = weights(clean)
    assert all(torch.equal(expected[name], tensor) for name, tensor in disturbed.tensors())


def test_tensors_are_views_of_the_weights_in_use() -> None:
    trainer = make_trainer(dtype=torch.bfloat16)
    tensors = dict(trainer.tensors())
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    train(trainer, [[ROWS]])
    assert any(not torch.equal(before[name], tensor) for name, tensor in tensors.items())
    for name, parameter in trainer._model.named_parameters():
        assert parameter.data_ptr() == tensors[name].data_ptr()


def test_small_bfloat16_gradients_are_not_lost() -> None:
    """256 equal gradients: a bfloat16 sum would stop growing at 8 bits, the float32 sum is exact to rounding."""
    trainer = make_trainer(dtype=torch.bfloat16)
    micro = pack(ROWS[:1])
    trainer.accumulate(micro)
    once = master_gradients(trainer)
    for _ in range(255):
        trainer.accumulate(micro)
    for name, grad in master_gradients(trainer).items():
        torch.testing.assert_close(grad, 256 * once[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_small_bfloat16_updates_are_not_lost() -> None:
    """Updates below bfloat16's resolution add up in the masters until the compute weights move."""
    settings = TrainerConfig(optimizer=OptimizerConfig(lr=1e-5))
    trainer = make_trainer("llama", config=settings, dtype=torch.bfloat16)
    before = weights(trainer)["model.norm.weight"]
    assert before.eq(1).all()
    train(trainer, [[ROWS]] * 10)
    assert torch.equal(weights(trainer)["model.norm.weight"], before), "1e-4 is less than bfloat16 can add to 1"
    masters = state(trainer, "master")["model.norm.weight"]
    assert (masters - 1).abs().mean() > 3e-5
    train(trainer, [[ROWS]] * 500)
    assert not torch.equal(weights(trainer)["model.norm.weight"], before)


def test_bfloat16_learns_as_float32_does() -> None:
    full, half = make_trainer(), make_trainer(dtype=torch.bfloat16)
    a, b = train(full, [[ROWS]] * 8), train(half, [[ROWS]] * 8)
    assert a[-1].loss < a[0].loss - 0.5
    assert b[-1].loss == pytest.approx(a[-1].loss, abs=0.15)


def test_clipping_leaves_the_norm_reported() -> None:
    loud = TrainerConfig(optimizer=OptimizerConfig(lr=1e-2), max_grad_norm=1e9)
    trainer = make_trainer(config=loud)
    quiet = make_trainer(config=TrainerConfig(optimizer=OptimizerConfig(lr=1e-2), max_grad_norm=1e-3))
    (a,), (b,) = train(trainer, [[ROWS]]), train(quiet, [[ROWS]])
    assert a.grad_norm == b.grad_norm > 1e-3
    # Adam's first moment is (1 - beta1) times the gradient that was clipped
    loudly, quietly = (torch.cat([*map(torch.flatten, state(each, "exp_avg").values())]) for each in (trainer, quiet))
    ratio = loudly.norm() / quietly.norm()
    assert float(ratio) == pytest.approx(a.grad_norm / 1e-3, rel=2e-3)


@pytest.mark.parametrize("count", [1, 255, 256, 5_000_003])
def test_the_norm_of_many_gradients_is_as_exact_as_that_of_few(count: int) -> None:
    """By three numbers again and again, whose squares add up to 0.14."""
    flat = torch.tensor([0.1, -0.2, 0.3]).repeat(count)
    assert l2_norm(flat) == pytest.approx((0.14 * count) ** 0.5, rel=2e-7)


def test_a_pass_says_at_each_matrix_product_that_it_gets_on() -> None:
    """There, and back; and before the loss, which is the micro-batch's own."""
    trainer, micro = make_trainer(), pack(ROWS)
    there = ["layer"] * len(multiplying(trainer.model))
    with said() as accumulated:
        trainer.accumulate(micro)
    assert accumulated.units == ["microbatch", *there, "microbatch", *there]
    with said() as scored:
        trainer.logprobs(micro)
    assert scored.units == ["microbatch", *there]


def test_a_model_that_only_scores_says_so_too() -> None:
    model = tiny_model()
    shared, there = SharedModel(model), ["layer"] * len(multiplying(model))
    with said() as scored:
        shared.compute(partial(token_logprobs, temperature=1.0), pack(ROWS))
    assert scored.units == ["microbatch", *there]


def test_the_sums_of_a_step_its_update_and_a_heal_are_told() -> None:
    """Between replicas bucket by bucket: gradients are one, and so is what has one dtype of the state."""
    alone, paired = make_trainer(), make_trainer()
    paired.pair(0, Meeting(30.0), 30.0)
    for trainer, buckets in ((alone, 0), (paired, 1)):
        trainer.accumulate(pack(ROWS))
        with said() as summed:
            trainer.add_up()
        assert summed.units == ["chunk"] * (1 + buckets)
        with said() as stepped:
            trainer.step()
        assert stepped.units == ["chunk"]
    with said() as healed:
        paired.heal(0)
    assert healed.units == ["chunk"] * (1 + 3), "counts, weights and moments, and random states"


def test_one_that_is_left_of_two_replicas_steps_by_itself() -> None:
    alone, left = make_trainer(), make_trainer()
    left._model_replicas = 2
    left.pair(0, Meeting(2.0), 2.0, 1)
    for trainer in (alone, left):
        trainer.accumulate(pack(ROWS))
        trainer.add_up()
        trainer.step()
    for one, other in zip(alone.model.parameters(), left.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_large_tensors_are_told_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_BUCKET", 2)
    alone = replicas.Replicas(0, 1, Meeting(30.0), 30.0)
    with said() as summed:
        alone.add_up([torch.zeros(5)])
        rest()
    assert summed.units == ["chunk"] * 3


def test_ranks_of_one_model_say_so_of_others_rows_too() -> None:
    """One rank, by FSDP2, whose passes are those of all."""
    trainer, shared = make_trainer(layout=Layout(zero=3)), SharedModel(tiny_model(), layout=Layout(zero=3))
    there, outputs = ["layer"] * len(multiplying(trainer.model)), partial(token_logprobs, temperature=1.0)
    for model, idle in ((trainer, partial(trainer.idle, trains=False)), (shared, partial(shared.idle, outputs))):
        model.join(0, Meeting(30.0), 30.0)
        with said() as idled:
            idle()
        assert idled.units == ["microbatch", *there]
        if model is trainer:
            with said() as accumulated:
                trainer.accumulate(pack(ROWS))
            assert accumulated.units == ["microbatch", *there, "microbatch", *there]
        assert model._ranks is not None
        model._ranks.close()
