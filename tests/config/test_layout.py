"""Layouts of ranks, as a config writes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import CONFIGS, make_job
from hypothesis import given as of
from hypothesis import strategies as st
from transformers import ApertusConfig, CohereConfig, GPT2Config, LlamaConfig, Olmo2Config, Phi3Config, PreTrainedConfig

from headrace.config import ConfigError, TrainConfig
from headrace.config.layout import LayoutConfig, layers_of_stages
from headrace.config.reading.load import load_config
from headrace.controller.planning.layouts import check_layouts
from headrace.controller.planning.memory_estimate import estimate_memory
from headrace.models.loading import count_parameters

CPU = torch.device("cpu")


def on(device: torch.device) -> Callable[[str], torch.device]:
    """All workers."""
    return lambda kind: device


def read(given: object) -> LayoutConfig:
    return LayoutConfig.model_validate(given)


@pytest.mark.parametrize(
    ("short", "axes"),
    [
        ("d2t2p1", (2, 2, 1, 1, 3)),
        ("d2p1m1", (2, 1, 1, 1, 0)),
        ("d2p2m1", (2, 1, 1, 2, 2)),
        ("d2t2p2", (2, 2, 1, 2, 2)),
        ("d4", (4, 1, 1, 1, 0)),
        ("t2d3", (3, 2, 1, 1, 3)),
        ("d2c4", (2, 1, 4, 1, 3)),
        ("d4r2", (4, 1, 1, 1, 3)),
        ("d2r2p2", (2, 1, 1, 2, 2)),
    ],
)
def test_short_forms_are_read(short: str, axes: tuple[int, ...]) -> None:
    layout = read(short)
    assert (layout.dp, layout.tp, layout.cp, layout.pp, layout.stage) == axes
    assert layout.ranks == axes[0] * axes[1] * axes[2] * axes[3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("d2x2", "'d2x2' is no layout; write it as d2t2"),
        ("2", "'2' is no layout"),
        ("d2d2", "'d2d2' is no layout"),
        ("t2m2", "'t2m2' is no layout"),
        ("d0", "'d0' is no layout"),
        ({"tp": 2, "zero": 0}, "zero is 0, and tp x cp x pp x ep is 2; use zero: 2 or 3"),
        ({"schedule": "gpipe"}, "schedule is gpipe, and without pp there is none; give pp, or leave it out"),
        ({"pp": 2, "zero": 0}, "zero is 0, and tp x cp x pp x ep is 2; use zero: 2 or 3"),
        ({"dp": 2, "ep": 2, "zero": 0}, "zero is 0, and tp x cp x pp x ep is 2; use zero: 2 or 3"),
        ("d2c2e3", "ep is 3, and does not divide dp x cp, 4; use 1, 2, 4"),
        ("d4r2e4", "ep is 4, and does not divide dp / replicas x cp, 2; use 1, 2"),
        ("d4r3", "replicas is 3, and does not divide dp, 4; use 1, 2, 4"),
        ({"dp": 2, "replicas": 2, "zero": 0}, "replicas is 2, and with zero: 0 each rank has all; leave replicas out"),
    ],
)
def test_what_is_no_layout_is_refused(given: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(given)


def test_a_layout_is_named_as_it_is_written() -> None:
    assert read("d2t2").text == "d2t2, ZeRO-3"
    assert (read("d2c2e4").text, read("d2c2e4").ranks) == ("d2c2e4, ZeRO-3", 4)
    assert read({"dp": 3}).text == "d3"
    assert read("d2p2m1").text == "d2p2 by 1f1b, ZeRO-2"
    assert read({"zero": 2}).text == "d1, ZeRO-2"
    assert read("d4r2t2").text == "d4r2t2, ZeRO-3"


@pytest.mark.parametrize(("given", "copies"), [("d4", 4), ("d4r2", 2), ("d4t2", 1), ({"dp": 4, "zero": 2}, 1)])
def test_copies_are_ranks_or_groups_of_them_that_have_all(given: object, copies: int) -> None:
    assert read(given).model_replicas == copies


def test_the_last_stage_has_fewer_layers_since_it_has_the_output_layer() -> None:
    """Qwen3 8B: 36 layers of 192.9 million numbers, an output layer of 622.3 million, 3.2 layers: of four stages, the
    last has 6 (9.2), the others 10. Qwen3 0.6B, whose output layer is as large as 9.9 of its 28: 19 and 9 (18.9)."""
    assert layers_of_stages(36, 4, 3.2) == [10, 10, 10, 6]
    assert layers_of_stages(28, 2, 9.9) == [19, 9]
    assert layers_of_stages(8, 3, 0.0) == [3, 2, 3]
    assert layers_of_stages(8, 2, 0.0) == [4, 4]
    assert layers_of_stages(5, 4, 0.3) == [2, 1, 1, 1]
    assert layers_of_stages(3, 3, 9.0) == [1, 1, 1]
    assert layers_of_stages(7, 1, 9.0) == [7]


@of(stages=st.integers(1, 6), more=st.integers(0, 20), output=st.floats(0, 12))
def test_no_cut_has_less_in_the_stage_that_has_most(stages: int, more: int, output: float) -> None:
    layers = stages + more
    found = layers_of_stages(layers, stages, output)
    assert len(found) == stages
    assert sum(found) == layers
    assert min(found) >= 1
    assert sorted(found[:-1], reverse=True) == found[:-1]

    def most(counts: tuple[int, ...]) -> float:
        return max((*counts[:-1], counts[-1] + output))

    if stages <= 3:
        cuts = (each for each in product(range(1, layers + 1), repeat=stages) if sum(each) == layers)
        assert most(tuple(found)) == min(map(most, cuts))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"))


def given(job: Path, *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, job, ["trainer.placement=process", *overrides])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["trainer.layout=t2", "trainer.placement=own"], "trainer.layout is t2, ZeRO-3, and ranks have processes"),
        (
            ["algorithm.recipe=ppo", "critic.layout=d2"],
            "critic.layout is d2, and ranks have .*critic.placement: process",
        ),
    ],
)
def test_places_and_layouts_go_together(job: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        given(job, *overrides)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("t3", r"tp 3, and the model has 4 attention heads; use a tp of 1, 2"),
        ("t4", r"tp 4, and the model has 2 key and value heads; use a tp of 1, 2"),
        ("c3", r"cp 3, and each rank of tp 1 has 4 attention heads and 2 of keys and values; use a cp of 1, 2, 4"),
        ("t2c4", r"cp 4, and each rank of tp 2 has 2 attention heads and 1 of keys and values; use a cp of 1, 2"),
        ("p3", r"pp 3, and the model has 2 layers; use a pp of 2 at most"),
    ],
)
def test_what_heads_do_not_divide_into_is_refused_with_what_fits(job: Path, layout: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_layouts(given(job, f"trainer.layout={layout}"), CONFIGS["qwen3"](), on(CPU))


@pytest.mark.parametrize("who", ["trainer", "critic"])
@pytest.mark.parametrize(("vocabulary", "words"), [(17, "17 rows .* have none; use a tp of 1, 2, 4$"), (24, None)])
def test_each_tensor_rank_has_rows_of_the_vocabulary(
    job: Path, tmp_path: Path, who: str, vocabulary: int, words: str | None
) -> None:
    shape = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 8}
    model = LlamaConfig(vocab_size=vocabulary, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape)
    model.save_pretrained(tmp_path)
    own = ["algorithm.recipe=ppo", "critic.placement=process", f"critic.model={tmp_path}"] if who == "critic" else []
    config = given(job, *own, f"{who}.layout=t8")
    with nullcontext() if words is None else pytest.raises(ConfigError, match=rf"^{who}\.layout has tp 8, .*{words}"):
        check_layouts(config, model, on(CPU))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            Phi3Config,
            r"trainer\.layout has tp, and transformers' plan to split Phi3ForCausalLM has 'colwise_gather_output'",
        ),
        (Olmo2Config, "transformers' plan to split Olmo2ForCausalLM has 'colwise_gather_output'; use tp: 1"),
        (GPT2Config, "transformers has no plan to split GPT2LMHeadModel; use tp: 1"),
        (ApertusConfig, r"plan of ApertusForCausalLM leaves model\.layers\.0\.mlp\.act_fn\.alpha_p out; use tp: 1"),
        (LlamaConfig, None),
    ],
)
def test_an_architecture_that_tensor_ranks_cannot_split_is_refused_before_it_is_loaded(
    job: Path, kind: type[PreTrainedConfig], words: str | None
) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = kind(vocab_size=64, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape)
    config = given(job, "trainer.layout=t2")
    with nullcontext() if words is None else pytest.raises(ConfigError, match=words):
        check_layouts(config, model, on(CPU))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("c2", r"^trainer\.layout shares passes among ranks \(tp, cp\), and CohereForCausalLM computes attention or"),
        ("p2", r"^trainer\.layout has pp 2, and CohereForCausalLM is not made of an embedding, layers,"),
    ],
)
def test_an_architecture_of_its_own_kind_is_refused_before_it_is_loaded(job: Path, layout: str, words: str) -> None:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = CohereConfig(vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shape)
    check_layouts(given(job, "trainer.layout=d2"), model, on(CPU))
    with pytest.raises(ConfigError, match=words):
        check_layouts(given(job, f"trainer.layout={layout}"), model, on(CPU))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("p3", "the model has 2 layers"),
        ("c3", "use a cp of 1, 2, 4"),
        ("t3", "the model has 4 attention heads; use a tp of 1, 2"),
    ],
)
def test_a_critic_s_too(job: Path, tmp_path: Path, layout: str, words: str) -> None:
    own = ["algorithm.recipe=ppo", "critic.placement=process", f"critic.layout={layout}"]
    with pytest.raises(ConfigError, match=rf"^critic\.layout has .*{words}"):
        check_layouts(given(job, *own), CONFIGS["qwen3"](), on(CPU))
    deeper = CONFIGS["qwen3"]()
    deeper.num_hidden_layers, deeper.num_attention_heads, deeper.num_key_value_heads = 3, 6, 3
    deeper.layer_types, deeper.intermediate_size = None, 48
    deeper.save_pretrained(tmp_path)
    config = given(job, *own, f"critic.model={tmp_path}")
    check_layouts(config, CONFIGS["qwen3"](), on(CPU))
    assert estimate_memory(config, CONFIGS["qwen3"](), CPU).uses["critic: weights, gradients and moments (float32)"] > 0
    unused = given(job, f"critic.layout={layout}", "critic.placement=process")
    check_layouts(unused, CONFIGS["qwen3"](), on(CPU))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["reference.layout=d2"], "reference.layout is d2, and ranks have processes; set reference.placement: process"),
        (
            ["reference.placement=hybrid", "reference.layout=d2"],
            "or leave the layout out: a hybrid one is in the trainer's ranks",
        ),
        (
            ["teacher.layout={pp: 2, schedule: gpipe}", "teacher.placement=process"],
            "teacher.layout.schedule is gpipe, and a model that only scores makes no passes back; leave it out",
        ),
    ],
)
def test_what_a_scorer_cannot_have_is_refused(job: Path, changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        given(job, *changes)


@pytest.mark.parametrize("who", ["critic", "reward.model"])
@pytest.mark.parametrize(
    ("kind", "layout", "words"),
    [
        ("qwen3", "d2t2", None),
        ("qwen3_moe", "d2t2e2", None),
        ("qwen3", "d2e2", "has ep 2, and the model, of type qwen3, has no experts that ranks could share"),
        ("gpt2", "t2", "has tp, and transformers has no plan to split GPT2ForTokenClassification; use tp: 1"),
    ],
)
def test_a_model_that_gives_values_is_cut_up_as_a_policy_is(
    job: Path, tmp_path: Path, who: str, kind: str, layout: str, words: str | None
) -> None:
    CONFIGS[kind]().save_pretrained(tmp_path)
    path = "path" if who == "reward.model" else "model"
    changes = [f"{who}.{path}={tmp_path}", f"{who}.placement=process", f"{who}.layout={layout}"]
    if who == "critic":
        changes.append("algorithm.recipe=ppo")
    with nullcontext() if words is None else pytest.raises(ConfigError, match=rf"^{who}\.layout {words}"):
        check_layouts(given(job, *changes), CONFIGS["qwen3"](), on(CPU))


@pytest.mark.parametrize("who", ["reference", "teacher"])
def test_a_scorer_s_heads_have_to_divide_too(job: Path, tmp_path: Path, who: str) -> None:
    """Those of its own model."""
    narrow, wider = CONFIGS["qwen3"](), CONFIGS["qwen3"]()
    wider.num_attention_heads, wider.num_key_value_heads, wider.intermediate_size = 6, 3, 48
    narrow.save_pretrained(tmp_path / "narrow")
    wider.save_pretrained(tmp_path / "wider")
    used = ["algorithm.kl.coefficient=0.1"] if who == "reference" else ["algorithm.recipe=opd"]
    ranks = [*used, f"{who}.placement=process", f"{who}.layout=t3"]
    with pytest.raises(ConfigError, match=rf"^{who}\.layout has tp 3, and the model has 4 attention heads"):
        check_layouts(given(job, *ranks, f"{who}.model={tmp_path / 'narrow'}"), CONFIGS["qwen3"](), on(CPU))
    check_layouts(given(job, *ranks, f"{who}.model={tmp_path / 'wider'}"), CONFIGS["qwen3"](), on(CPU))
    check_layouts(given(job, *ranks[len(used) :]), CONFIGS["qwen3"](), on(CPU))  # unused


def test_on_cuda_ranks_of_a_scorer_may_have_all_of_it_each(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    ranks = ["algorithm.kl.coefficient=0.1", "reference.placement=process"]
    check_layouts(given(job, *ranks, "reference.layout=d2"), CONFIGS["qwen3"](), on(torch.device("cuda")))
    with pytest.raises(ConfigError, match=r"reference\.layout is d3, of 3 ranks, .* this machine has 2 from cuda on"):
        check_layouts(given(job, *ranks, "reference.layout=d3"), CONFIGS["qwen3"](), on(torch.device("cuda")))


def test_memory_of_ranks_that_score(job: Path) -> None:
    """Each has all with dp; with zero they have one together, and each gathers a layer and what is outside."""
    model: Any = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    ranks = ["algorithm.kl.coefficient=0.1", "reference.placement=process", "model.dtype=bfloat16"]
    each = estimate_memory(given(job, *ranks, "reference.layout=d3"), model, CPU).uses
    assert each["reference: weights"] == 3 * 2 * numbers
    assert "reference: weights gathered for a pass" not in each
    parted = estimate_memory(given(job, *ranks, "reference.layout={dp: 3, zero: 2}"), model, CPU).uses
    assert parted["reference: weights"] == 2 * numbers
    assert parted["reference: weights gathered for a pass"] == 3 * 2 * numbers


@pytest.mark.parametrize(
    ("layout", "devices", "said"),
    [
        ("{dp: 2, zero: 2}", 2, None),
        ("{zero: 3}", 1, None),
        ("d2t2", 3, r"trainer\.layout is d2t2, ZeRO-3, of 4 ranks, .* this machine has 3 from cuda on"),
        ("d2", 2, r"trainer\.layout is d2, and ranks on CUDA devices cut the model up; add zero: 2, or zero: 3"),
    ],
)
def test_on_cuda_each_rank_has_a_device(
    job: Path, monkeypatch: pytest.MonkeyPatch, layout: str, devices: int, said: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    config, model = given(job, f"trainer.layout={layout}"), CONFIGS["qwen3"]()
    check_layouts(config, model, on(CPU))
    with nullcontext() if said is None else pytest.raises(ConfigError, match=said):
        check_layouts(config, model, on(torch.device("cuda")))


def test_memory_that_ranks_cut_up_counts_once(job: Path) -> None:
    model: Any = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    outside = model.vocab_size * model.hidden_size
    for zero, gathered in ((2, numbers), (3, outside + (numbers - outside) // model.num_hidden_layers)):
        config = given(job, f"trainer.layout={{dp: 2, tp: 2, zero: {zero}}}", "model.dtype=bfloat16")
        uses = estimate_memory(config, model, CPU).uses
        assert uses["trainer: float32 weights"] == uses["trainer: gradients (float32)"] == 4 * numbers
        assert uses["trainer: AdamW moments (float32)"] == 8 * numbers
        assert uses["trainer: weights gathered for a pass"] == 2 * 2 * gathered


def test_each_replica_has_all_of_it(job: Path) -> None:
    """Of four ranks in two replicas each has half; what is gathered for a pass is whole in each of them."""
    numbers = count_parameters(CONFIGS["qwen3"]())
    uses = estimate_memory(given(job, "trainer.layout={dp: 4, replicas: 2, zero: 2}"), CONFIGS["qwen3"](), CPU).uses
    assert uses["trainer: float32 weights"] == 2 * 4 * numbers
    assert uses["trainer: AdamW moments (float32)"] == 2 * 8 * numbers
    assert uses["trainer: weights gathered for a pass"] == 4 * 4 * numbers


def test_replicas_have_what_a_batch_began_with_once_more_where_it_has_several_steps(job: Path) -> None:
    numbers, model = count_parameters(CONFIGS["qwen3"]()), CONFIGS["qwen3"]()
    begun = "trainer: what a batch began with, for a replica that is made anew"
    often = "algorithm.updates_per_batch=2"
    assert estimate_memory(given(job, "trainer.layout=d2", often), model, CPU).uses[begun] == 2 * 12 * numbers
    for layout, more in (("d2", "algorithm.updates_per_batch=1"), ("t2", often), ("d1", often)):
        assert begun not in estimate_memory(given(job, f"trainer.layout={layout}", more), model, CPU).uses


def test_stages_have_a_matrix_twice_that_is_embedding_and_output_layer(job: Path) -> None:
    """Qwen3's two layers, one a stage; in pairs of ranks, of which both gather their stage's weights."""
    model: Any = CONFIGS["qwen3"]()
    numbers, matrix = count_parameters(model), model.vocab_size * model.hidden_size
    assert model.tie_word_embeddings
    uses = estimate_memory(given(job, "trainer.layout=d2p2"), model, CPU).uses
    assert uses["trainer: float32 weights"] == 4 * (numbers + matrix)
    assert uses["trainer: weights gathered for a pass"] == 2 * 4 * (numbers + matrix)


def test_on_cuda_each_device_has_one_ranks_part(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    model: Any = CONFIGS["qwen3"]()
    numbers = count_parameters(model)
    config = given(job, "trainer.layout={dp: 3, zero: 2}")
    uses = estimate_memory(config, model, torch.device("cuda", 0)).uses
    assert uses["trainer: float32 weights"] == -(-4 * numbers // 3)
    assert uses["trainer: weights gathered for a pass"] == 4 * numbers
    of_two = given(job, "trainer.layout={dp: 6, replicas: 2, zero: 2}")
    assert estimate_memory(of_two, model, torch.device("cuda", 0)).uses == uses
    matrix = model.vocab_size * model.hidden_size
    stage = (numbers - matrix) // 2 + matrix
    for schedule in ("1f1b", "gpipe"):
        config = given(job, f"trainer.layout={{dp: 3, pp: 2, schedule: {schedule}}}")
        found = estimate_memory(config, model, torch.device("cuda", 0)).uses
        assert found["trainer: float32 weights"] == -(-4 * stage // 3)
        assert found["trainer: weights gathered for a pass"] == 4 * stage
        assert found["trainer: activations"] == (4 if schedule == "gpipe" else 1) * uses["trainer: activations"]


@pytest.mark.parametrize(
    ("layout", "transport", "leaving", "shared"),
    [
        ("d1", "shm", True, True),
        ("d2t2", "shm", False, True),
        ("{dp: 2, zero: 2}", "shm", False, True),
        ("p2", "disk", False, False),
        ("d1", "disk", True, False),
    ],
)
def test_on_cuda_ranks_that_cut_the_model_up_copy_no_weights_before_they_leave(
    job: Path, monkeypatch: pytest.MonkeyPatch, layout: str, transport: str, leaving: bool, shared: bool
) -> None:
    """They write them, converted, into the host's memory or to the disk; a rank that has all copies them first."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    model: Any = CONFIGS["qwen3"]()
    version = 2 * count_parameters(model)
    given_so = (f"trainer.layout={layout}", f"weights.transport={transport}", "model.dtype=bfloat16")
    found = estimate_memory(given(job, *given_so), model, torch.device("cuda", 0))
    on_device = {use: size for use, size in found.uses.items() if use.startswith("weight plane")}
    assert on_device == ({"weight plane: the copy that leaves": version} if leaving else {})
    assert found.published == (2 * version if shared else 0)
