"""New weights that are not what was published are found before a token of them comes out."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines_helpers import VOCAB, collect, prompt, request, serving, tiny_model

from headrace.config.values.dtypes import dtype_name
from headrace.engines.protocol import SwapMode
from headrace.models.packed_lm import PackedLM
from headrace.training.frozen import FrozenScorer
from headrace.training.taking import scored, taken
from headrace.weights import swap_check
from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.plane import Snapshot, WeightError, WeightPublisher
from headrace.weights.receiving import receiver_of
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import SwapCheck, check_tokens, make_check
from headrace.weights.transport import open_transport
from headrace.weights.version import INITIAL, Version

ONE, TWO, THREE = (Version(0, number) for number in (1, 2, 3))


def check_of(model: Any, temperature: float = 0.8, *, routes: bool = True) -> SwapCheck:
    """As a trainer makes it."""
    scorer = FrozenScorer(copy.deepcopy(model), temperature=temperature)
    return make_check(
        check_tokens(VOCAB),
        partial(scored, scorer.logprobs),
        temperature=temperature,
        dtype=dtype_name(next(model.parameters()).dtype),
        routed=PackedLM(copy.deepcopy(model)).routed if routes else None,
    )


def spoilt(model: Any, fault: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's parameters, as one comes to have them on a faulty way."""
    names = [name for name, _ in model.named_parameters()]
    matrices = [name for name in names if name.endswith(("q_proj.weight", "c_attn.weight"))]
    for name, parameter in model.named_parameters():
        value = parameter.detach().clone()
        if name == matrices[0] and fault == "zeros":
            value.zero_()
        if name == matrices[0] and fault == "of another layer":
            value = dict(model.named_parameters())[matrices[1]].detach().clone()
        yield name, value


@pytest.fixture(params=["memory", "disk", "shm"])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> WeightPublisher:
    (tmp_path / "weights").mkdir()
    return open_transport(request.param, tmp_path / "weights")


def swapped(old: Any, new: WeightPublisher, **config: Any) -> Version:
    """The version that an engine with `old` samples from after an update."""

    async def run() -> Version:
        async with serving(old, **config) as engine:
            await engine.update(new.receiver(), SwapMode.RECOMPUTE)
            chunk = await collect(engine, request("r", prompt(1, 6), 5))
            return Version(int(chunk.branches[0]), int(chunk.versions[0]))

    return asyncio.run(run())


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_version_that_arrived_as_it_was_is_taken(name: str, dtype: torch.dtype, publisher: WeightPublisher) -> None:
    new = tiny_model(name, 1, dtype)
    publisher.publish(ONE, new.named_parameters())
    publisher.send(publisher.snapshot(TWO, new.named_parameters(), check_of(new)))
    assert swapped(tiny_model(name, 0, dtype), publisher) == TWO


def test_an_engine_of_a_coarser_dtype_is_held_to_its_own_bound(publisher: WeightPublisher) -> None:
    new = tiny_model("qwen3", 1)
    publisher.send(publisher.snapshot(ONE, new.named_parameters(), check_of(new)))
    assert swapped(tiny_model("qwen3", 0), publisher, dtype="bfloat16") == ONE


def test_where_experts_are_as_good_as_alike_it_is_no_fault_to_choose_the_other(publisher: WeightPublisher) -> None:
    """Router rows that differ by a thousandth: an engine in bfloat16 routes otherwise than a trainer in float32."""
    new = tiny_model("qwen3_moe", 1)
    with torch.no_grad():
        for layer in new.model.layers:
            layer.mlp.experts.down_proj.mul_(4)
            weight = layer.mlp.gate.weight
            for place in range(len(weight)):
                weight[place] = weight[0] * (1 + 1e-3 * place)
    check = check_of(new)
    freely = replace(check, logprobs=check_of(new, routes=False).logprobs, routed=None)
    publisher.send(publisher.snapshot(ONE, new.named_parameters(), freely))
    with pytest.raises(WeightError, match="v1 did not arrive as it was published"):
        swapped(tiny_model("qwen3_moe", 0), publisher, dtype="bfloat16")
    publisher.send(publisher.snapshot(TWO, new.named_parameters(), check))
    assert swapped(tiny_model("qwen3_moe", 0), publisher, dtype="bfloat16") == TWO


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "gpt2"])
@pytest.mark.parametrize("fault", ["zeros", "of another layer"])
def test_a_faulty_version_is_refused_and_the_old_one_goes_on(name: str, fault: str, publisher: WeightPublisher) -> None:
    old, new = tiny_model(name, 0), tiny_model(name, 1)
    publisher.send(publisher.snapshot(ONE, spoilt(new, fault), check_of(new)))

    async def run() -> None:
        async with serving(old) as engine:
            with pytest.raises(WeightError, match=r"v1 did not arrive as it was published: it gives 256 tokens"):
                await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            assert engine.version == INITIAL
            chunk = await collect(engine, request("r", prompt(1, 6), 5))
            assert set(chunk.versions.tolist()) == {0}
            publisher.send(publisher.snapshot(TWO, new.named_parameters(), check_of(new)))
            await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            assert engine.version == TWO, "the next one is whole"

    asyncio.run(run())


def by_parts(publisher: ShmPublisher, version: Version, model: Any, fault: str | None = None) -> None:
    """As two ranks publish it that have half of each tensor's rows. With a `fault`, the second one's, all bytes are
    told all the same."""
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    manifest = build_manifest(version, tensors, checksums=False)
    slot = publisher.begin(manifest)
    opened, told = OpenSlot(publisher.address, slot.generation), 0
    for rank in range(2):
        parts = []
        for name, whole in tensors.items():
            half = len(whole) // 2
            begin, own = (half, whole[half:]) if rank else (0, whole[:half])
            if rank and fault == "a row too early":
                begin -= 1
            if rank and fault == "not written":
                told += own.numel() * own.element_size()
                continue
            parts.append(Part(name, (begin, *[0] * (own.dim() - 1)), own))
        told += PartWriter().write(opened, parts)
    require_all(manifest, told)
    publisher.send(Snapshot(manifest, slot.tensors, check_of(model)))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
@pytest.mark.parametrize("fault", ["a row too early", "not written"])
def test_a_part_that_a_rank_tells_and_did_not_write_is_found(name: str, fault: str, tmp_path: Path) -> None:
    """What lies there instead is of the version before the last one."""
    publisher, old, new = ShmPublisher(tmp_path), tiny_model(name, 0), tiny_model(name, 1)
    for number in range(2):
        by_parts(publisher, Version(0, number), old)
    by_parts(publisher, TWO, new, fault)

    async def run() -> None:
        async with serving(old) as engine:
            with pytest.raises(WeightError, match=r"v2 did not arrive as it was published: it gives 256 tokens"):
                await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            chunk = await collect(engine, request("r", prompt(1, 6), 5))
            assert set(chunk.versions.tolist()) == {0}
            by_parts(publisher, THREE, new)
            await engine.update(publisher.receiver(), SwapMode.RECOMPUTE)
            assert engine.version == THREE

    asyncio.run(run())


def test_an_engine_that_comes_back_is_held_to_the_same(publisher: WeightPublisher) -> None:
    old, new = tiny_model("qwen3", 0), tiny_model("qwen3", 1)
    publisher.send(publisher.snapshot(ONE, spoilt(new, "zeros"), check_of(new)))

    async def run() -> None:
        async with serving(old) as engine:
            with pytest.raises(WeightError, match="did not arrive as it was published"):
                await engine.successor(publisher.receiver())
            publisher.send(publisher.snapshot(TWO, new.named_parameters(), check_of(new)))
            again = await engine.successor(publisher.receiver())
            assert again.version == TWO
            await again.stop()

    asyncio.run(run())


def test_a_scorer_that_follows_the_policy_loads_in_buckets_and_is_held_to_the_same(
    publisher: WeightPublisher,
) -> None:
    model, new = FrozenScorer(copy.deepcopy(tiny_model("qwen3", 0))), tiny_model("qwen3", 1)
    publisher.send(publisher.snapshot(ONE, new.named_parameters(), check_of(new, temperature=1.0)))
    assert taken(model, publisher.receiver()) == ONE
    publisher.send(publisher.snapshot(TWO, spoilt(new, "zeros"), check_of(new, temperature=1.0)))
    with pytest.raises(WeightError, match="v2 did not arrive"):
        taken(model, publisher.receiver())


def test_where_routers_choose_a_coarse_check_allows_more_and_a_fine_one_does_not() -> None:
    tokens, none = np.zeros((1, 3), np.int32), np.zeros((1, 2), np.float32)
    check = swap_check.from_json(
        swap_check.to_json(SwapCheck(tokens, none, temperature=1.0, dtype="bfloat16", routers_choose=True))
    )
    assert check.fault(none + 0.09, "bfloat16") is None
    assert check.fault(none + 0.11, "bfloat16") is not None
    assert replace(check, routers_choose=False).fault(none + 0.09, "bfloat16") is not None
    assert replace(check, dtype="float32").fault(none + 0.001, "float32") is not None


def test_no_number_is_no_agreement() -> None:
    check = check_of(tiny_model("qwen3", 0), temperature=1.0)
    assert check.fault(check.logprobs, "float32") is None
    assert check.fault(check.logprobs * float("nan"), "float32") is not None
    assert check.fault(check.logprobs + 2e-4, "float32") is not None
    assert check.fault(check.logprobs + 2e-4, "bfloat16") is None
    assert check.fault(check.logprobs + 4e-2, "bfloat16") is not None
    cold = check_of(tiny_model("qwen3", 0), temperature=0.01)
    assert cold.fault(cold.logprobs + 5e-3, "float32") is None, "a rounding of logits weighs a hundred times as much"


def test_an_offer_says_what_will_arrive(publisher: WeightPublisher) -> None:
    new = tiny_model("qwen3", 1)
    assert publisher.receiver().offer() is None
    publisher.publish(INITIAL, new.named_parameters())
    check = check_of(new)
    manifest = publisher.send(publisher.snapshot(ONE, new.named_parameters(), check))
    offer = publisher.receiver().offer()
    assert offer is not None
    assert (offer.version, offer.transport, offer.address) == (ONE, publisher.transport, publisher.address)
    assert offer.manifest == manifest
    assert offer.swap_check is not None
    assert (offer.swap_check.logprobs == check.logprobs).all()


def test_the_check_of_a_slot_goes_with_its_version(tmp_path: Path) -> None:
    publisher, model = ShmPublisher(tmp_path), tiny_model("qwen3", 1)
    for number in range(5):
        check = check_of(model) if number % 2 else None
        publisher.send(publisher.snapshot(Version(0, number), model.named_parameters(), check))
        received = publisher.receiver().received()
        assert (received.manifest.version.number, received.check is None) == (number, number % 2 == 0)
    assert len(list(tmp_path.glob("check-*"))) <= 2


def test_what_is_no_number_on_both_sides_is_no_difference() -> None:
    check = check_of(tiny_model("qwen3", 0), temperature=1.0)
    check.logprobs[0, 0], check.logprobs[1, 1] = float("nan"), float("-inf")
    assert check.fault(check.logprobs.copy(), "float32") is None


def test_a_scorer_refuses_a_publication_of_another_model_before_it_loads_any_of_it(publisher: WeightPublisher) -> None:
    own, new = copy.deepcopy(tiny_model("qwen3", 0)), tiny_model("qwen3", 1)
    model, before = FrozenScorer(own), {name: value.clone() for name, value in own.named_parameters()}
    named = list(new.named_parameters())
    publisher.publish(ONE, named[:-1])
    with pytest.raises(WeightError, match="does not fit the model: it lacks 1 tensors"):
        taken(model, publisher.receiver())
    assert all(torch.equal(value, before[name]) for name, value in own.named_parameters())


def test_a_norm_of_another_shape_is_not_broadcast(publisher: WeightPublisher) -> None:
    model, new = FrozenScorer(copy.deepcopy(tiny_model("qwen3", 0))), tiny_model("qwen3", 1)
    short = [(name, value[:1] if value.ndim == 1 else value) for name, value in new.named_parameters()]
    publisher.publish(ONE, short)
    with pytest.raises(WeightError, match=r"has shape \(1,\), the model has"):
        taken(model, publisher.receiver())


def test_who_was_offered_a_version_takes_no_older_one_and_none_that_differs(tmp_path: Path) -> None:
    publisher, new = ShmPublisher(tmp_path), tiny_model("qwen3", 1)
    publisher.publish(ONE, new.named_parameters())
    offer = publisher.receiver().offer()
    assert offer is not None
    assert receiver_of(offer).received().manifest.version == ONE
    with pytest.raises(WeightError, match="v2 was offered, and v1 is the newest"):
        receiver_of(replace(offer, version=TWO)).received()
    assert offer.manifest is not None
    fewer = replace(offer, manifest=replace(offer.manifest, entries=offer.manifest.entries[:-1]))
    with pytest.raises(WeightError, match="v1 is not what was offered"):
        receiver_of(fewer).receive_as(lambda received: None)


@pytest.mark.parametrize("other", [-10_048.0, -np.inf])
def test_how_far_a_token_is_excluded_is_no_fault(other: float) -> None:
    """In bfloat16 there is no number between -9,984 and -10,048, and some servers say -inf."""
    logprobs = np.full((64, 4), -6.0, np.float32)
    logprobs[0, 0] = -9_984.0
    check = SwapCheck(check_tokens(512), logprobs, 1.0, "bfloat16")
    found = logprobs.copy()
    found[0, 0] = other
    assert check.fault(found, "bfloat16") is None


def test_that_a_token_is_excluded_by_one_side_alone_is_a_fault() -> None:
    logprobs = np.full((64, 4), -6.0, np.float32)
    check = SwapCheck(check_tokens(512), logprobs, 1.0, "bfloat16")
    found = logprobs.copy()
    found[0, 0] = -10_000.0  # counts as -100: 94 / 256 = 0.367
    assert "0.367" in (check.fault(found, "bfloat16") or "")


def test_in_bfloat16_log_probs_that_are_far_apart_may_differ_by_more() -> None:
    """Of a standard deviation of 4, by 4 × 0.03: what is rounded is as much larger."""
    logprobs = np.full((64, 4), -4.0, np.float32)
    logprobs[:, 2:] = -12.0
    logprobs[0, 0] = -10_000.0  # excluded, and so no part of it: 4.008 without, 10 with it
    check = SwapCheck(check_tokens(512), logprobs, 1.0, "bfloat16")
    for apart, at, is_right in ((0.11, 1.0, True), (0.13, 1.0, False), (0.11, 0.5, True), (0.13, 0.5, False)):
        fault = replace(check, temperature=at).fault(logprobs + apart, "bfloat16")
        assert (fault is None) == is_right, "log-probs at 0.5 are as far apart already"
    assert replace(check, dtype="float32").fault(logprobs + 2e-4, "float32") is not None


@pytest.mark.parametrize("fault", [None, "of another layer"])
def test_a_model_that_is_sure_of_its_tokens_is_taken_in_bfloat16_and_a_fault_of_it_is_found(
    fault: str | None, tmp_path: Path
) -> None:
    new = tiny_model("qwen3", 1, torch.bfloat16)
    with torch.no_grad():
        new.lm_head.weight.mul_(4 / check_of(new, 1.0).logprobs.std())
    check = check_of(new, temperature=1.0)
    assert 3.5 < check.logprobs.std() < 4.5
    publisher = ShmPublisher(tmp_path)
    publisher.send(publisher.snapshot(ONE, spoilt(new, fault or "none"), check))
    if fault is None:
        assert swapped(tiny_model("qwen3", 0, torch.bfloat16), publisher) == ONE
    else:
        with pytest.raises(WeightError, match="did not arrive"):
            swapped(tiny_model("qwen3", 0, torch.bfloat16), publisher)
