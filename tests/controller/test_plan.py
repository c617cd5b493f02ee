"""What a plan checks and says before anything starts."""

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from controller_jobs import CONFIGS, make_job

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.trainer import TrainerConfig
from headrace.controller.building.episode_runners import policy_settings
from headrace.controller.planning import cache_memory, engine_memory, free_memory
from headrace.controller.planning.activations import (
    DecoderShape,
    engine_bytes,
    graphs_bytes,
    passes_bytes,
    scored_bytes,
    trained_bytes,
    waiting_kept_bytes,
)
from headrace.controller.planning.cache_memory import plan_kv_cache
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.memory_estimate import MemoryEstimate, estimate_memory
from headrace.controller.planning.plan import make_plan
from headrace.controller.planning.table_size import largest_group, table_bytes
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.runners.graphs import most_graphs
from headrace.models.loading import count_parameters, parameter_sizes
from headrace.runtime.inline import InlineRuntime

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SLOT = 96 * 2 * 2 * 2 * 8
"""Numbers in a sequence's keys and values: context x (key, value) x layers x heads x head_dim."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives a device so many free bytes."""

    def give(free: int) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**12))

    return give


def test_memory_by_use_in_float32(job: Path) -> None:
    model = CONFIGS["qwen3"]()
    numbers, tied = count_parameters(model), model.vocab_size * model.hidden_size
    estimate = estimate_memory(load_config(TrainConfig, job), model, CPU)
    assert estimate.parameters == numbers
    assert estimate.uses == {
        "trainer: float32 weights": 4 * numbers,
        "trainer: gradients (float32)": 4 * numbers,
        "trainer: AdamW moments (float32)": 8 * numbers,
        "engine: weights": 4 * (numbers + tied),
        "engine: next version while it is received": 4 * (numbers + tied),
        "engine: KV cache": 9 * SLOT * 4,
        "weight plane: newest version, and the next": 2 * 4 * numbers,
        "checkpoint: copy while it is written": 12 * numbers,
    }
    assert estimate.total == 44 * numbers + 8 * tied + 36 * SLOT
    assert estimate.place == "this host"


@pytest.mark.parametrize(("overrides", "tokens"), [
    ([], 8),
    (["rollout.workflow=multi_turn", "rollout.environment=e.py:E", "rollout.max_turns=3"], 24),
    (["rollout.workflow=multi_turn", "rollout.environment=e.py:E", "rollout.max_turns=99"], 96),
    (["rollout.workflow=w.py:W"], 96),
])  # fmt: skip
def test_kept_sets_are_counted(job: Path, overrides: list[str], tokens: int) -> None:
    """Of the groups that the table holds, 3 samples each; a set of 74 ids as a bitmap, and its count."""
    config = load_config(TrainConfig, job, ["rollout.sampling.top_p=0.9", *overrides])
    uses = estimate_memory(config, CONFIGS["qwen3"](), CPU).uses
    bitmap = math.ceil(CONFIGS["qwen3"]().vocab_size / 8)
    assert uses["experience table: kept sets, at most"] == config.table_groups(config.ahead(8)) * 3 * tokens * (
        bitmap + 4
    )


@pytest.mark.parametrize(("table_bytes", "kept"), [(10_000, 20 * 336), (4000, 4000), (1, 2 * 336)])
def test_the_tables_bound_bounds_kept_sets_but_not_below_a_batch(job: Path, table_bytes: int, kept: int) -> None:
    """3 samples of 8 tokens, 14 bytes each: 336 a group. The table has places for 20 groups, and batches are of 2."""
    overrides = ["rollout.sampling.top_p=0.9", "async.ahead=12", f"async.table_gib={table_bytes / 2**30}"]
    uses = estimate_memory(load_config(TrainConfig, job, overrides), CONFIGS["qwen3"](), CPU).uses
    assert uses["experience table: kept sets, at most"] == kept


@pytest.mark.parametrize(("overrides", "of_sample"), [
    ([], 96 * (17 + 4)),
    (["rollout.sampling.top_p=0.9"], 96 * (17 + 4) + 88 * 4 + 8 * 14),
    (["rollout.sampling.top_k=2", "rollout.workflow=multi_turn", "rollout.environment=e.py:E", "rollout.max_turns=99"],
     96 * (17 + 4) + 96 * 8),
    (["algorithm.kl.coefficient=0.1", "algorithm.advantage=gae"], 96 * (17 + 4 * 4)),
    (["gateway.sampling=client", "rollout.agent=a.py:f"], 96 * (17 + 4 + 4) + 96 * 14),
])  # fmt: skip
def test_the_largest_group_by_hand(job: Path, overrides: list[str], of_sample: int) -> None:
    """3 samples of 96 tokens, 17 bytes each, and 4 for advantages (and reference, values and returns); of 8 tokens, or
    all that are the policy's, a bitmap of 10 bytes or 2 ids of 2, and 4 for their number, as for any other token; 4 for
    each token's temperature where clients choose it, and kept sets as of 512 ids."""
    loadable = [one for one in overrides if not one.startswith(("rollout.", "gateway."))]
    plan = replace(make_plan(load_config(TrainConfig, job, loadable)), config=load_config(TrainConfig, job, overrides))
    assert largest_group(plan) == 3 * of_sample


def test_check_says_what_the_table_holds_and_whether_that_binds(job: Path) -> None:
    """Groups of 6,048 bytes. Of them 5 are ahead, and 2 in a batch."""
    said = describe_plan(make_plan(load_config(TrainConfig, job, [f"async.table_gib={7 * 6048 / 2**30}"])))
    assert "\n  table             0.04 MiB of host memory at most: 7 of the largest groups, 0.01 MiB\n" in said
    assert "runs less far ahead" not in said
    said = describe_plan(make_plan(load_config(TrainConfig, job, [f"async.table_gib={6 * 6048 / 2**30}"])))
    assert "6 of the largest groups, 0.01 MiB\n                    (fewer than the 7 that run, wait or are tr" in said


def test_half_of_the_host_is_the_tables_unless_given(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1000, available=1))
    assert table_bytes(load_config(TrainConfig, job)) == 500
    assert table_bytes(load_config(TrainConfig, job, ["async.table_gib=0.5"])) == 2**29


def test_check_says_what_truncation_keeps(job: Path) -> None:
    said = describe_plan(make_plan(load_config(TrainConfig, job, ["rollout.sampling.top_p=0.9"])))
    assert "top_p 0.9, top_k 512: what these keep travels with each token" in said
    assert "experience table: kept sets, at most" in said


def test_check_says_that_requests_may_say_otherwise(job: Path) -> None:
    pytest.importorskip("renderers")
    config = load_config(TrainConfig, job, ["gateway.sampling=client", "rollout.agent=a.py:f"])
    said = describe_plan(replace(make_plan(load_config(TrainConfig, job)), config=config))
    assert "unless a request has its own temperature, top_p or top_k: what these keep travels with each token" in said


def test_an_engine_that_cannot_say_what_it_kept_is_refused(job: Path) -> None:
    class Forgetful(EmbeddedEngine):
        @property
        def gives_kept_sets(self) -> bool:
            return False

    plan = make_plan(load_config(TrainConfig, job, ["rollout.sampling.top_k=9"]))
    engine = Forgetful.__new__(Forgetful)
    with pytest.raises(ConfigError, match=r"top_p 1 and top_k 9, but the engine cannot say which tokens they keep"):
        policy_settings(plan, engine, InlineRuntime())
    assert not policy_settings(plan, engine, InlineRuntime(), plan.config.held_out[0]).return_kept
    plain = make_plan(load_config(TrainConfig, job))
    policy_settings(plain, engine, InlineRuntime())


def test_each_rank_has_weights_gradients_and_moments(job: Path) -> None:
    model = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    ranks = ["trainer.placement=process", "trainer.layout.dp=3", "model.dtype=bfloat16"]
    uses = estimate_memory(load_config(TrainConfig, job, ranks), model, CPU).uses
    assert uses["trainer: float32 weights"] == uses["trainer: gradients (float32)"] == 3 * 4 * numbers
    assert uses["trainer: AdamW moments (float32)"] == 3 * 8 * numbers
    assert uses["trainer: bfloat16 weights"] == 3 * 2 * numbers
    for given, words in (
        (["trainer.layout.dp=2"], "trainer.layout is d2, and ranks have processes; set trainer.placement: process"),
        ([*ranks, "algorithm.loss=m2po", "algorithm.objective=naive"], "m2po decides on tokens of the whole batch"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(TrainConfig, job, given)


def test_a_plan_says_how_layers_are_cut_into_stages(job: Path) -> None:
    config = load_config(TrainConfig, job, ["model.device=cpu", "trainer.placement=process", "trainer.layout=d3p2"])
    words = "6 rank(s) (d3p2 by 1f1b, ZeRO-2, in stages of 1, 1 layers), each in a process of its own"
    assert words in describe_plan(make_plan(config))


def test_a_plan_says_by_what_relays_speak(job: Path) -> None:
    apart = ["model.device=cpu", "trainer.placement=process", "weights.transport=collective"]
    plan = make_plan(load_config(TrainConfig, job, apart))
    words = "over a relay for each that takes them by collective ("
    assert f"{words}gloo)" in describe_plan(plan)
    on_device = replace(plan, memory=replace(plan.memory, place="cuda:0"))
    assert f"{words}NCCL where each is on a device of its own, not run: Headrace's tests" in describe_plan(on_device)
    forced = make_plan(load_config(TrainConfig, job, [*apart, "weights.relay_backend=gloo"]))
    assert f"{words}gloo)" in describe_plan(replace(forced, memory=on_device.memory))


def test_memory_in_bfloat16_and_weights_by_disk(job: Path) -> None:
    model = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    config = load_config(TrainConfig, job, ["model.dtype=bfloat16", "weights.transport=disk"])
    uses = estimate_memory(config, model, CPU).uses
    assert uses["trainer: float32 weights"] == 4 * numbers
    assert uses["trainer: bfloat16 weights"] == 2 * numbers
    assert uses["engine: weights"] == 2 * (numbers + model.vocab_size * model.hidden_size)
    assert uses["engine: KV cache"] == 9 * SLOT * 4, "on a CPU the cache is float32"
    plane = {use: size for use, size in uses.items() if use.startswith("weight plane")}
    assert plane == {"weight plane: the copy that leaves": 2 * numbers}
    config = load_config(TrainConfig, job, ["engine.process=true", "rollouts_only=true"])
    uses = estimate_memory(config, model, CPU, trainer=False).uses
    assert not any(use.startswith("weight plane") for use in uses), "an engine's new process reads its model anew"


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """Whether devices have the KV cache in pages, as where Triton is; by the test's parameter."""
    for module in (cache_memory, engine_memory):
        monkeypatch.setattr(module, "is_paged", lambda place, model_config: request.param)
    return bool(request.param)


@pytest.mark.parametrize("paged", [False], indirect=True)
def test_on_a_device_an_engine_alone_takes_half_for_its_cache(
    job: Path, device: Callable[[int], None], paged: bool
) -> None:
    """One slot is no sequence's."""
    device(2 * 6 * 2 * SLOT + 100)
    config = load_config(TrainConfig, job, ["engine.dtype=bfloat16"])
    assert plan_kv_cache(CONFIGS["qwen3"](), config.engine, "bfloat16", CUDA).slots == 5
    assert plan_kv_cache(CONFIGS["qwen3"](), config.engine, "float32", CUDA).slots == 2


@pytest.mark.parametrize("paged", [False, True], indirect=True)
def test_on_a_device_the_cache_gets_what_the_rest_leaves(job: Path, device: Callable[[int], None], paged: bool) -> None:
    """A twentieth is kept back; the cache has the engine's dtype; the rest counts the activations. In pages of 64
    tokens, a context of 96 has two, and two are nobody's; of whole slots one is."""
    page = 2 * SLOT * 64 // 96
    device(2**40)
    model = CONFIGS["qwen3"]()
    config = load_config(TrainConfig, job, ["engine.dtype=bfloat16", "rollout.sampling.top_p=0.9"])
    roomy = estimate_memory(config, model, CUDA)
    assert roomy.slots == 8
    assert roomy.uses["engine: KV cache"] == ((8 * 2 + 2) * page if paged else 9 * 2 * SLOT)
    assert {"trainer: activations", "engine: activations and logits"} <= set(roomy.uses)
    assert (roomy.place, roomy.free, roomy.on_device) == ("cuda:0", 2**40, True)
    assert list(roomy.on_host) == ["experience table: kept sets, at most", "checkpoint: copy while it is written"]
    rest = roomy.total - roomy.uses["engine: KV cache"]
    device(math.ceil((rest + (7.5 * page if paged else 6.5 * 2 * SLOT)) / 0.95))
    tight = estimate_memory(config, model, CUDA)
    assert (tight.slots, tight.cache.pages) == (5, 5 if paged else None)


def test_what_an_engine_needs_beside_weights_and_cache_on_a_device_by_hand(
    job: Path, device: Callable[[int], None]
) -> None:
    """Two layers of 32 numbers (4 query heads of 8, 2 of keys and of values, 64 in the middle), 8 sequences of up to 96
    tokens, 1,024 to prefill a step, in float32. Graphs of 1, 2, 4 and 8 sequences, of one length."""
    device(2**40)
    model, waits = CONFIGS["qwen3"](), "engine: kept sets that wait"
    words = model.vocab_size
    uses = estimate_memory(load_config(TrainConfig, job, ["rollout.sampling.top_p=0.9"]), model, CUDA).uses
    layer = 4 * (2 * 32 + 8 * 64 + 4 * 64) + 6 * 32
    keys, masks = 2 * 4 * 64 * (8 * 96), (2 * 1024 * 96) * (1 + 4 + 4)
    assert uses["engine: activations and logits"] == 2 * 1024 * layer + keys + masks + 5 * 4 * 8 * words
    assert uses["engine: CUDA graphs"] == 4 * 2 * 20 * 8192
    assert uses[waits] == 16 * (8 * words * 8) * 3 // 2
    assert (
        "engine: kept sets that wait"
        not in estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), CUDA).uses
    )


SECTIONS = ["engine.beside=[{max_concurrent_sequences: 24, replicas: 2}, {max_concurrent_sequences: 1}]"]


def test_engines_compute_with_as_many_sequences_as_their_section_has(job: Path, device: Callable[[int], None]) -> None:
    """One of 8, two of 24, one of 1."""
    device(2**40)
    model, shape = CONFIGS["qwen3"](), DecoderShape.of(CONFIGS["qwen3"]())
    config = load_config(TrainConfig, job, [*SECTIONS, "rollout.sampling.top_p=0.9"])
    uses = estimate_memory(config, model, CUDA).uses
    for use, of_slots in {
        "activations and logits": lambda slots: engine_bytes(shape, slots, 1024, 4, 96),
        "CUDA graphs": lambda slots: graphs_bytes(shape, slots, 96),
        "kept sets that wait": lambda slots: waiting_kept_bytes(slots, model.vocab_size),
    }.items():
        assert uses[f"engine: {use}"] == of_slots(8) + 2 * of_slots(24) + of_slots(1)


@pytest.mark.parametrize("paged", [False, True], indirect=True)
def test_caches_of_engines_of_several_sizes_fit_together(job: Path, device: Callable[[int], None], paged: bool) -> None:
    """One slot, or page, more for the first is three more for two others: there is no room for these 7."""
    device(2**40)
    model, part = CONFIGS["qwen3"](), 4 * SLOT * 64 // 96 if paged else 4 * SLOT
    config = load_config(TrainConfig, job, SECTIONS)
    roomy = estimate_memory(config, model, CUDA)
    assert roomy.slots == 8 + 2 * 24 + 1
    rest = roomy.total - roomy.uses["engine: KV cache"]
    for parts in range(24, 60):
        device(free := math.ceil((rest + parts * part) / 0.95))
        tight = estimate_memory(config, model, CUDA)
        assert tight.total <= 0.95 * free < tight.total + 7 * part + 1
        assert tight.slots < roomy.slots
    device(math.ceil((rest + (23 if paged else 11) * part) / 0.95))
    with pytest.raises(ConfigError, match="the least of KV cache included"):
        estimate_memory(config, model, CUDA)


def test_what_to_lower_names_each_section_of_engines(job: Path, device: Callable[[int], None]) -> None:
    device(2**20)
    words = r"engine\.max_concurrent_sequences \(8\), engine\.1\.max_concurrent_sequences \(24\), engine\.2\.max_"
    with pytest.raises(ConfigError, match=words):
        estimate_memory(load_config(TrainConfig, job, SECTIONS), CONFIGS["qwen3"](), CUDA)


@pytest.mark.parametrize(("paged", "places"), [(False, 65 * 5), (True, 66 * 64)], indirect=["paged"])
def test_the_swap_check_of_engines_that_take_copies_is_counted_by_hand(
    job: Path, device: Callable[[int], None], paged: bool, places: int
) -> None:
    """64 samples of 5 tokens, decoded together with a cache of their own: 64 slots and a spare one, or a page each and
    two that are nobody's. Four times their logits, and what a layer computes."""
    device(2**40)
    model, use = CONFIGS["qwen3"](), "engine: swap check"

    def counted(*overrides: str, **more: bool) -> int | None:
        return estimate_memory(load_config(TrainConfig, job, list(overrides)), model, CUDA, **more).uses.get(use)

    layer = 2 * (2 * 32 + 8 * 64 + 4 * 64) + 6 * 32
    one = 2 * places * SLOT // 96 + 64 * layer + 4 * 4 * 64 * model.vocab_size
    assert counted("engine.dtype=bfloat16") == one, "converted"
    assert counted("engine.dtype=bfloat16", "engine.process=true", "engine.replicas=3") == 3 * one
    assert counted() is None, "they are handed the tensors themselves"
    assert counted("engine.dtype=bfloat16", "rollouts_only=true", trainer=False) is None
    by_turns = ["engine.colocated=true", "async.mode=sync", "engine.dtype=bfloat16"]
    assert counted(*by_turns) is None, "it is over before they have their caches"


def test_the_swap_check_of_an_engine_beside_a_server_is_longer(job: Path, device: Callable[[int], None]) -> None:
    """8 samples of 33 tokens: the server has them as prompts."""
    device(2**40)
    model = CONFIGS["qwen3"]()
    uses = estimate_memory(load_config(TrainConfig, job, ["engine.beside=[{kind: vllm}]"]), model, CUDA).uses
    layer = 4 * (2 * 32 + 8 * 64 + 4 * 64) + 6 * 32
    assert uses["engine: swap check"] in (
        4 * places * SLOT // 96 + 8 * layer + 4 * 4 * 8 * model.vocab_size for places in (9 * 33, 10 * 64)
    )


def test_a_prefill_gathers_so_many_keys_at_most_or_those_of_one_sequence() -> None:
    """65,536: as 64 sequences of 1,024 tokens or of 8,192; of one that is longer, all. 64 numbers each, twice."""
    shape = DecoderShape.of(CONFIGS["qwen3"]())
    masks = 2 * (1 + 4 + 4)  # of one token's prefill, a token of context
    short, long, longest = (engine_bytes(shape, 64, 1, 4, n) - masks * n for n in (1024, 8192, 2**17))
    assert short == long == longest - 2 * 4 * 64 * 2**16


def test_kept_sets_that_wait_are_as_many_as_fit_and_a_step_more() -> None:
    """Of 64 sequences and 151,936 words, 78 MB a step."""
    step = 64 * 151936 * 8
    assert waiting_kept_bytes(64, 151936) == (2**28 + step) * 3 // 2
    assert waiting_kept_bytes(64, 50) == 16 * 64 * 50 * 8 * 3 // 2


def test_graphs_are_of_powers_of_two() -> None:
    """Of 1 to 64 sequences, and of 256, 512, 1,024 and 2,048 tokens; of 100 sequences there is one of 100."""
    assert most_graphs(64, 2048) == 7 * 4
    assert most_graphs(100, 2049) == 8 * 5
    assert most_graphs(1, 50) == 1


def test_activations_follow_the_micro_batch_and_its_settings(job: Path, device: Callable[[int], None]) -> None:
    device(2**40)

    def activations(*overrides: str) -> int:
        config = load_config(TrainConfig, job, ["algorithm.recipe=ppo", *overrides])
        uses = estimate_memory(config, CONFIGS["qwen3"](), CUDA).uses
        assert "critic: activations" in uses
        return uses["trainer: activations"]

    usual = activations()
    assert activations("trainer.max_tokens_per_microbatch=8192") == pytest.approx(2 * usual, rel=0.01)
    assert activations("model.gradient_checkpointing=true") < 0.8 * usual
    one, eight = (activations(f"trainer.max_tokens_per_microbatch={tokens}") for tokens in (1, 8))
    assert one == eight, "a whole answer, of 8 tokens"


def test_gradients_of_the_output_layer_are_counted_by_how_they_are_added_up() -> None:
    """A layer keeps 2 x (2 x 64 + 8 x 128 + 4 x 192) + 6 x 64 = 4,224 bytes a token, and two and one more are there.
    Of 128 tokens there are twice as many logits as are held, 4 x 4 x 2^26 bytes; of 32 half as many. The matrix has
    2^26 numbers: its gradient in bfloat16 is there, and where ranks cut the model up the float32 sum of pieces."""
    shape = DecoderShape(layers=2, hidden=64, attention=128, mlp=192, vocabulary=2**20)
    many, few = 128 * 3 * 4224 + 2 * 2**26 + 16 * 2**26, 32 * 3 * 4224 + 2 * 2**26 + 16 * 2**25

    def counted(tokens: int, **layout: int) -> int:
        own = TrainerConfig.model_validate({"layout": layout, "max_tokens_per_microbatch": tokens})
        return passes_bytes(own, shape, 1, 2, checkpointing=False)

    assert (counted(128), counted(32)) == (many, few)
    assert (counted(128, dp=2), counted(32, dp=2)) == (many, few)
    assert (counted(128, dp=2, zero=3), counted(32, dp=2, zero=3)) == (many + 4 * 2**26, few)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_offloaded_is_the_hosts(job: Path, device: Callable[[int], None], dtype: str) -> None:
    device(2**40)
    model = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    overrides = ["trainer.optimizer.offload=true", f"model.dtype={dtype}"]
    found = estimate_memory(load_config(TrainConfig, job, overrides), model, CUDA)
    trained = {use: size for use, size in found.uses.items() if use.startswith("trainer: ") and "activ" not in use}
    weights = "trainer: float32 weights" if dtype == "float32" else "trainer: bfloat16 weights"
    itemsize = 4 if dtype == "float32" else 2
    assert trained == {weights: itemsize * numbers, "trainer: gradients (float32)": 4 * numbers}
    pinned = sum(2 ** math.ceil(math.log2(4 * size)) for size in parameter_sizes(model))
    assert 4 * numbers < pinned < 2 * 4 * numbers
    copied = {"checkpoint: copy while it is written": 3 * pinned}
    assert found.on_host == {"trainer: float32 weights, moments": 12 * numbers, **copied}
    on_cpu = estimate_memory(load_config(TrainConfig, job, overrides), model, CPU)
    assert on_cpu.uses["trainer: AdamW moments (float32)"] == 8 * numbers


def test_a_hybrid_reference_is_a_copy_of_what_its_trainer_has(job: Path, device: Callable[[int], None]) -> None:
    """Of a model that ranks cut up in parts, of the masters; it sleeps with the trainer, in pinned memory."""
    device(2**40)
    model, use = CONFIGS["qwen3"](), "reference: weights"
    numbers = count_parameters(model)
    hybrid = ["algorithm.kl.coefficient=0.1", "reference.placement=hybrid", "model.dtype=bfloat16"]
    parts = [*hybrid, "trainer.placement=process", "trainer.layout={dp: 3, zero: 2}", "reference.refresh_every=2"]

    def estimate(place: torch.device, *overrides: str) -> MemoryEstimate:
        return estimate_memory(load_config(TrainConfig, job, list(overrides)), model, place)

    whole = estimate(CUDA, *hybrid, "async.mode=sync", "engine.colocated=true")
    assert whole.uses[use] == 2 * numbers
    assert whole.on_host["reference: weights, asleep"] == 2 ** math.ceil(math.log2(2 * numbers))
    assert estimate(CUDA, *parts).uses[use] == -(-4 * numbers // 3)
    on_cpu = estimate(CPU, *parts)
    assert (on_cpu.uses[use], on_cpu.uses["checkpoint: copy while it is written"]) == (4 * numbers, 16 * numbers)
    offloaded = estimate(CUDA, *parts, "trainer.optimizer.offload=true")
    assert use not in offloaded.uses
    assert offloaded.on_host[use] == 3 * -(-4 * numbers // 3)


def test_a_critic_in_bfloat16_has_weights_to_compute_with(job: Path) -> None:
    config = load_config(TrainConfig, job, ["algorithm.recipe=ppo", "model.dtype=bfloat16"])
    uses = estimate_memory(config, CONFIGS["qwen3"](), CPU).uses
    numbers = count_parameters(CONFIGS["qwen3"](), gives_values=True)
    found = uses["critic: weights, gradients and moments (float32)"], uses["critic: bfloat16 weights"]
    assert found == (16 * numbers, 2 * numbers)
    plain = estimate_memory(load_config(TrainConfig, job, ["algorithm.recipe=ppo"]), CONFIGS["qwen3"](), CPU).uses
    assert "critic: bfloat16 weights" not in plain


BESIDE = [
    ("critic.model", "algorithm.recipe=ppo"),
    ("reference.model", "algorithm.kl.coefficient=0.1"),
    ("teacher.model", "algorithm.recipe=opd"),
    ("reward.model.path", "reward.workers=1"),
]


@pytest.fixture
def larger(tmp_path: Path) -> Any:
    """Of six layers, with an output layer of its own; its config.json is in `tmp_path`."""
    config = CONFIGS["llama"]()
    config.num_hidden_layers = 6
    config.save_pretrained(tmp_path)
    return config


@pytest.mark.parametrize(("key", "used"), BESIDE)
def test_a_model_beside_the_policy_is_counted_by_its_own_config(
    job: Path, tmp_path: Path, larger: Any, device: Callable[[int], None], key: str, used: str
) -> None:
    """Critic and reward model have a head of one number, and a bias, in the place of their output layer."""
    device(2**40)
    config, name = load_config(TrainConfig, job, [used, f"{key}={tmp_path}"]), key.rpartition(".")[0].replace(".", " ")
    numbers, shape = count_parameters(larger), DecoderShape.of(larger)
    if name in ("critic", "reward model"):
        numbers += larger.hidden_size + 1 - larger.vocab_size * larger.hidden_size
    weights, activations = {"weights": 4 * numbers}, scored_bytes(shape, 4096, 4)
    if name == "critic":
        weights = {"weights, gradients and moments (float32)": 16 * numbers}
        activations = trained_bytes(shape, 4096, 4, checkpointing=False)
    for place, taken in ((CPU, weights), (CUDA, weights | {"activations": activations})):
        uses = estimate_memory(config, CONFIGS["qwen3"](), place).uses
        found = {use.partition(": ")[2]: size for use, size in uses.items() if use.startswith(f"{name}: ")}
        assert found == taken


def test_stages_of_a_critic_have_no_output_layer(
    job: Path, tmp_path: Path, larger: Any, device: Callable[[int], None]
) -> None:
    """Three of its layers each; the first has the embedding."""
    device(2**40)
    given = ["algorithm.recipe=ppo", f"critic.model={tmp_path}", "critic.placement=process", "critic.layout=p2"]
    matrix, numbers = larger.vocab_size * larger.hidden_size, count_parameters(larger, gives_values=True)
    uses = estimate_memory(load_config(TrainConfig, job, given), CONFIGS["qwen3"](), CUDA).uses
    first = matrix + 3 * ((numbers - matrix) // 6)
    assert uses["critic: weights, gradients and moments (float32)"] == 16 * first
    assert uses["critic: weights gathered for a pass"] == 4 * first


def test_what_of_a_critic_the_host_keeps_is_counted_by_its_own_config(
    job: Path, tmp_path: Path, larger: Any, device: Callable[[int], None]
) -> None:
    device(2**40)
    given = ["algorithm.recipe=ppo", f"critic.model={tmp_path}", "critic.optimizer.offload=true", "async.mode=sync"]
    model, numbers = CONFIGS["qwen3"](), count_parameters(larger, gives_values=True)
    kept = estimate_memory(load_config(TrainConfig, job, given), model, CUDA).on_host
    assert kept["critic: float32 weights, moments"] == 12 * numbers
    given = [*given[:2], *given[3:], "engine.colocated=true"]
    kept = estimate_memory(load_config(TrainConfig, job, given), model, CUDA).on_host
    assert kept["critic: float32 weights and moments, asleep"] == 3 * 2 ** math.ceil(math.log2(4 * numbers))
    uses = estimate_memory(load_config(TrainConfig, job, given), model, CPU).uses
    assert uses["checkpoint: copy while it is written"] == 12 * (count_parameters(model) + numbers)


def test_a_judge_of_its_own_is_counted_as_an_engine_is(tmp_path: Path, device: Callable[[int], None]) -> None:
    """Here of the policy's own model, with as many sequences at once, and as long ones."""
    device(2**40)
    model = str(tmp_path / "model")
    own = {"max_concurrent_sequences": 8, "max_context": 96}
    judge = {"model": model, "engine": own, "prompt": "{response}", "timeout_s": 30}
    job = make_job(tmp_path, reward={"function": "judge", "judge": judge})
    uses = estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), CUDA).uses
    for use in ("weights", "activations and logits", "CUDA graphs"):
        assert uses[f"judge {model}: {use}"] == uses[f"engine: {use}"], use


def test_what_the_host_has_no_room_for_is_refused(
    job: Path, device: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    device(2**40)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=2**30, available=1000))
    config = load_config(TrainConfig, job, ["trainer.optimizer.offload=true"])
    with pytest.raises(
        ConfigError, match=r"offload needs 0\.00 GiB of this host's memory, and 0\.00 GiB are free; leave"
    ):
        estimate_memory(config, CONFIGS["qwen3"](), CUDA)
    config = load_config(TrainConfig, job)
    with pytest.raises(ConfigError, match=r"from a copy that takes .* set checkpoint\.background to false"):
        estimate_memory(config, CONFIGS["qwen3"](), CUDA)
    waits = load_config(TrainConfig, job, ["checkpoint.background=false"])
    assert "checkpoint: copy while it is written" not in estimate_memory(waits, CONFIGS["qwen3"](), CUDA).on_host


def test_what_a_checkpoint_is_written_from_is_counted(job: Path) -> None:
    """Critic and a reference that is refreshed as well; nothing where training waits."""
    model = CONFIGS["qwen3"]()
    numbers, use = count_parameters(model), "checkpoint: copy while it is written"
    of_critic = count_parameters(model, gives_values=True)

    def counted(*overrides: str) -> int | None:
        return estimate_memory(load_config(TrainConfig, job, list(overrides)), model, CPU).uses.get(use)

    assert counted("algorithm.recipe=ppo") == 12 * (numbers + of_critic)
    refreshed = ["algorithm.kl.coefficient=0.1", "reference.refresh_every=2", "model.dtype=bfloat16"]
    assert counted(*refreshed) == 14 * numbers
    assert counted("checkpoint.background=false") is None


def test_what_does_not_fit_a_device_is_refused_with_what_to_lower(job: Path, device: Callable[[int], None]) -> None:
    device(2**20)
    with pytest.raises(
        ConfigError,
        match=r"needs .* GiB on cuda:0, .*, and 0\.00 GiB are free there.*: workspaces of .*, trainer: activations .*; "
        r"lower trainer\.max_tokens_per_microbatch \(4096\), engine\.max_concurrent_sequences \(8\) or "
        r"engine\.prefill_tokens_per_step \(1024\), set model\.gradient_checkpointing=true and "
        r"trainer\.optimizer\.offload=true, free memory",
    ):
        estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), CUDA)
    device(2**33)
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_gib gives 1073 \(7[0-9]{9} bytes are free\); raise"):
        estimate_memory(load_config(TrainConfig, job, ["engine.kv_cache_gib=1e-6"]), CONFIGS["qwen3"](), CUDA)
    with pytest.raises(ConfigError, match=r"engine: KV cache 9\.00 GiB"):
        estimate_memory(load_config(TrainConfig, job, ["engine.kv_cache_gib=9"]), CONFIGS["qwen3"](), CUDA)


def test_a_run_that_does_not_fit_is_told_so(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(load_config(TrainConfig, job, ["model.device=cpu"]))
    assert plan.memory.free == pytest.approx(free_memory.free_bytes(CPU), rel=0.5)
    assert "WARNING" not in describe_plan(plan)
    tight = replace(plan, memory=replace(plan.memory, free=plan.memory.total - 2**30))
    said = describe_plan(tight)
    assert "  WARNING: that is 1.00 GiB more than is free: free memory, lower engine.max_concurrent_sequences" in said


FULL = "5 groups run or wait at most: a batch of 2, and what 8 slots decode, 3 a group; never under 2 batches"


@pytest.mark.parametrize(("overrides", "ahead", "reached"), [
    ([], "5 groups run or wait at most", "2 by answers that take equally long, bound by max_staleness"),
    (["async.mode=sync"], "2 groups run or wait at most",
     "0 by answers that take equally long, bound by max_staleness"),
    (["async.max_staleness=8"], FULL, "4 by answers that take equally long, bound by the engine's slots"),
    (["async.max_staleness=8", "async.ahead=4"], "4 groups run or wait at most",
     "3 by answers that take equally long, bound by async.ahead"),
    (["async.max_staleness=8", "async.ahead=13"], "13 groups run or wait at most",
     "8 by answers that take equally long, bound by max_staleness"),
])  # fmt: skip
def test_the_staleness_that_is_reached_and_what_binds_it(
    job: Path, overrides: list[str], ahead: str, reached: str
) -> None:
    """Batches of 2 groups of 3 samples; 8 slots, which hold 3 groups."""
    said = describe_plan(make_plan(load_config(TrainConfig, job, overrides)))
    assert f"  ahead             {ahead}\n" in said
    assert f"  staleness reached {reached}\n" in said
    assert ("(8 only by groups that others overtake; async.ahead=13 would" in said) == ("max_staleness" not in reached)


def test_slots_are_those_that_the_memory_holds(job: Path) -> None:
    """24 are asked for, and the cache may have room for 12 and a spare one: a batch of 2 groups, and 4 of 3 samples."""
    overrides = ["async.max_staleness=8", "engine.max_concurrent_sequences=24"]
    wide = make_plan(load_config(TrainConfig, job, overrides))
    assert wide.memory.slots == 24
    assert wide.config.ahead(24) == 10
    narrow = make_plan(load_config(TrainConfig, job, [*overrides, f"engine.kv_cache_gib={13.5 * SLOT * 4 / 2**30}"]))
    assert narrow.memory.slots == 12
    assert "ahead             6 groups run or wait at most: a batch of 2, and what 12 slots" in describe_plan(narrow)


@pytest.mark.parametrize("device", ["gpu", "cpu:0", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(job: Path, device: str) -> None:
    with pytest.raises(ConfigError, match=f"device '{device}' is .*use auto"):
        make_plan(load_config(TrainConfig, job, [f"model.device={device}"]))


def test_a_model_without_weights_is_refused(job: Path, tmp_path: Path) -> None:
    model = make_job(tmp_path).parent / "model"
    (model / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has no weights \(\*\.safetensors\); copy them into it"):
        make_plan(load_config(TrainConfig, job, [f"model.path={model}"]))


def test_faults_of_the_data_are_told_before_torch_is_imported(job: Path) -> None:
    script = (
        "import sys\nfrom headrace.cli.main import main\n"
        f"code = main(['check', {str(job)!r}, 'data.train=nowhere.jsonl'])\n"
        "assert code == 2\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        0,
        "headrace: no dataset at nowhere.jsonl; correct the path, which is relative to the working directory\n",
    )
