"""Configs: files, overrides, digests, and the page that documents them."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import (
    ConfigError,
    DPOConfig,
    RMConfig,
    SFTConfig,
    TrainConfig,
    config_sha256,
    dump_config,
    load_config,
)
from headrace.config.reading.resume import SAFE
from headrace.config.reading.unused_keys import ineffective
from headrace.experience.schedule import reachable_staleness

ROOT = Path(__file__).parents[2]


def write(folder: Path, **sections: object) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": {"train": "t.jsonl"}, **sections}))
    return path


def test_overrides_reach_nested_keys_and_keep_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, trainer={"max_grad_norm": 0.5})
    config = load_config(TrainConfig, path, ["trainer.optimizer.lr=1e-5", "async.max_staleness=4"])
    assert config.trainer.optimizer.lr == 1e-5
    assert config.trainer.max_grad_norm == 0.5
    assert config.async_.staleness_bound == 4


@pytest.mark.parametrize(("mode", "bound", "streams"), [
    ("sync", 0, False),
    ("one_step_off", 1, False),
    ("async", 2, True),
])  # fmt: skip
def test_modes_set_what_is_not_given(tmp_path: Path, mode: str, bound: int, streams: bool) -> None:
    config = load_config(TrainConfig, write(tmp_path), [f"async.mode={mode}"])
    assert (config.async_.staleness_bound, config.deadline_rule, config.async_.streaming) == (bound, "wait", streams)


@pytest.mark.parametrize(("oversample", "surplus"), [(1, 0), (1.1, 1), (1.3, 3), (1.5, 5), (2, 10)])
def test_oversampling_starts_more_and_drops_what_is_late(tmp_path: Path, oversample: float, surplus: int) -> None:
    overrides = ["rollout.prompts_per_batch=10", f"rollout.oversample={oversample}"]
    config = load_config(TrainConfig, write(tmp_path), overrides)
    assert config.rollout.surplus == surplus
    assert config.ahead(slots=64) == 20 + surplus
    assert config.deadline_rule == ("drop" if surplus else "wait")
    assert config.rollout.most_drops == 640


def test_oversampling_without_dropping_is_refused(tmp_path: Path) -> None:
    says = r"oversample is 1\.5 but async\.on_deadline is wait: .*use on_deadline: drop"
    with pytest.raises(ConfigError, match=says):
        load_config(TrainConfig, write(tmp_path), ["rollout.oversample=1.5", "async.on_deadline=wait"])


def test_a_dumped_config_is_read_back_to_an_equal_one(tmp_path: Path) -> None:
    config = load_config(TrainConfig, write(tmp_path), ["rollout.sampling.top_k=5", "rollout.filters=[]"])
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(config))
    assert load_config(TrainConfig, again) == config
    assert config_sha256(load_config(TrainConfig, again)) == config_sha256(config)


def test_lists_of_sections_are_read_back_and_their_faults_are_named(tmp_path: Path) -> None:
    terms = [{"function": "math"}, {"function": "regex", "answer": "^<think>", "weight": 0.1, "rows": ["a"]}]
    filters = ["zero_spread", {"type": "length", "max_tokens": 9}]
    path = write(tmp_path, reward={"terms": terms, "choose_by": "task"}, rollout={"filters": filters})
    config = load_config(TrainConfig, path)
    again = tmp_path / "again.yaml"
    again.write_text(dump_config(config))
    assert load_config(TrainConfig, again) == config
    with pytest.raises(ConfigError, match=r"unknown key reward\.terms\.0\.weigth; did you mean reward\.terms\.weight"):
        load_config(TrainConfig, write(tmp_path, reward={"terms": [{"function": "exact", "weigth": 1}]}))
    with pytest.raises(ConfigError, match=r"rollout\.filters\.0 is .*: a filter is a name, or a mapping with type"):
        load_config(TrainConfig, write(tmp_path, rollout={"filters": [{"type": "lenght"}]}))


def test_the_digest_tells_configs_apart(tmp_path: Path) -> None:
    path = write(tmp_path)
    digest = config_sha256(load_config(TrainConfig, path))
    assert config_sha256(load_config(TrainConfig, path, ["seed=1"])) != digest
    assert config_sha256(load_config(TrainConfig, path, ["rollout.min_samples=1"])) != digest
    assert config_sha256(load_config(TrainConfig, path, ["rollout.max_drops_per_batch=9"])) == digest
    assert config_sha256(load_config(TrainConfig, path, ["async.ahead=99"])) != digest
    assert config_sha256(load_config(TrainConfig, path, ["async.table_gib=9"])) == digest


def test_a_judges_time_and_sizes_are_no_part_of_the_digest(tmp_path: Path) -> None:
    judge = {"prompt": "{response}", "timeout_s": 5, "engine": {"kv_cache_gib": 1}}

    def digest(**changes: object) -> str:
        term = {"function": "judge", "judge": {**judge, **changes}}
        path = write(tmp_path, reward={"terms": [term, {"function": "exact"}]})
        return config_sha256(load_config(TrainConfig, path))

    assert digest() == digest(timeout_s=9) == digest(engine={"max_concurrent_sequences": 2})
    assert len({digest(), digest(temperature=1), digest(engine={"dtype": "bfloat16"})}) == 3


def test_ahead_must_hold_a_batch_and_its_surplus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"async\.ahead is 3, less than rollout\.prompts_per_batch \(16\)"):
        load_config(TrainConfig, write(tmp_path), ["async.ahead=3"])
    with pytest.raises(ConfigError, match=r"async\.ahead is 20, but with rollout\.oversample 24 groups start"):
        load_config(TrainConfig, write(tmp_path), ["async.ahead=20", "rollout.oversample=1.5"])
    assert load_config(TrainConfig, write(tmp_path), ["async.ahead=24", "rollout.oversample=1.5"]).ahead(64) == 24


@pytest.mark.parametrize(("bound", "slots", "ahead"), [
    (0, 64, 16),  # never more than the bound has use for
    (1, 64, 32),
    (2, 64, 32),  # 16 + 64 / 8 = 24, but two batches at least
    (2, 256, 48),  # 16 + 256 / 8 = 48 = 3 x 16
    (2, 1024, 48),  # 144, but the bound has use for 48
    (8, 64, 32),
    (8, 256, 48),
    (8, 257, 49),  # a group more for the odd slot
    (8, 1024, 144),  # 16 + 128 = 9 x 16
])  # fmt: skip
def test_ahead_is_a_batch_that_waits_and_full_engines(tmp_path: Path, bound: int, slots: int, ahead: int) -> None:
    """Batches of 16 prompts x 8 samples."""
    mode = "async.mode=sync" if bound == 0 else f"async.max_staleness={bound}"
    assert load_config(TrainConfig, write(tmp_path), [mode]).ahead(slots) == ahead
    assert load_config(TrainConfig, write(tmp_path), [mode, "async.ahead=20"]).ahead(slots) == 20


@pytest.mark.parametrize("example", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.stem)
def test_examples_name_no_staleness_that_they_do_not_reach(example: Path) -> None:
    raw = yaml.safe_load(example.read_text())
    if raw.get("async", {}).get("max_staleness") is None:
        return
    config = TrainConfig.model_validate(raw)
    batch, bound = config.rollout.prompts_per_batch, config.async_.staleness_bound
    assert reachable_staleness(batch, bound, config.ahead(config.engine.max_concurrent_sequences)) == bound


def test_min_samples_must_fit_the_group(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"min_samples is 9, more than samples_per_prompt \(8\)"):
        load_config(TrainConfig, write(tmp_path), ["rollout.min_samples=9"])


@pytest.mark.parametrize(("betas", "words"), [
    ("[0.9,1]", r"trainer\.optimizer\.betas\.1 is 1: input should be less than 1"),
    ("[-0.1,0.9]", r"trainer\.optimizer\.betas\.0 is -0\.1: input should be greater than or equal to 0"),
])  # fmt: skip
def test_betas_must_be_from_0_to_below_1(tmp_path: Path, betas: str, words: str) -> None:
    for kind in (TrainConfig, SFTConfig):
        with pytest.raises(ConfigError, match=words):
            load_config(kind, write(tmp_path), [f"trainer.optimizer.betas={betas}"])


def test_an_episode_may_not_outlast_the_wait_for_it(tmp_path: Path) -> None:
    path = write(tmp_path)
    words = r"episode_timeout_s is 1800, more than runtime\.stall_timeout_s \(900\).* to 1800 or more, or lower"
    with pytest.raises(ConfigError, match=words):
        load_config(TrainConfig, path, ["rollout.episode_timeout_s=1800"])
    load_config(TrainConfig, path, ["rollout.episode_timeout_s=1800", "runtime.stall_timeout_s=1800"])


@pytest.mark.parametrize(("overrides", "words"), [
    (["reward.timeout_s=901"], r"reward\.timeout_s lets a reward take 901 s, more than runtime\.stall_timeout_s"),
    (["reward.function=judge", "reward.judge.prompt='{response}'", "reward.judge.timeout_s=1000"],
     r"reward\.judge\.timeout_s lets a reward take 1000 s"),
    (["reward.function=remote", "reward.remote.url='http://x'", "reward.remote.timeout_s=300"],
     r"reward\.remote\.timeout_s \(with its retries\) lets a reward take 1203\.5 s"),
])  # fmt: skip
def test_a_reward_may_not_outlast_the_wait_for_it(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_config(TrainConfig, write(tmp_path), overrides)
    load_config(TrainConfig, write(tmp_path), [*overrides, "runtime.stall_timeout_s=1300"])


@pytest.mark.parametrize(("overrides", "words"), [
    (["algorithm.shaping.clip=[1,-1]"], r"clip is \[1.0, -1.0\], whose first is above its second"),
    (["algorithm.shaping.overlong_buffer=64", "rollout.sampling.max_new_tokens=8"],
     r"overlong_buffer is 64, and rollout\.sampling\.max_new_tokens 8: every sample would be too long"),
    (["algorithm.advantage=m.py:a", "algorithm.advantage_reads=[metadata]"], r"metadata is no column of numbers"),
    (["algorithm.loss=m.py:a", "algorithm.loss_reads=[group]"], r"group is no column of numbers"),
    (["algorithm.updates_per_batch=129"], r"algorithm\.updates_per_batch is 129, and a batch has 128 samples"),
    (["critic.updates_per_batch=129"], r"critic\.updates_per_batch is 129, and a batch has 128 samples"),
    (["algorithm.epochs_per_batch=2", "algorithm.proximal=current"],
     r"proximal is current, which moves with every step, but epochs_per_batch is 2.*use recompute"),
    (
        ["algorithm.stop_kl=1", "algorithm.epochs_per_batch=2", "algorithm.updates_per_batch=2",
         "algorithm.proximal=behavior"],
        r"algorithm.*stop_kl needs the log-probs that a batch begins with, but proximal is behavior",
    ),
    (
        ["algorithm.epochs_per_batch=2", "algorithm.updates_per_batch=2", "algorithm.proximal=loglinear"],
        r"epochs_per_batch above 1 needs the log-probs that a batch begins with, but proximal is loglinear",
    ),
    (["algorithm.stop_kl=0"], r"algorithm\.stop_kl.*greater than 0"),
    (["algorithm.stages=[{name: s, function: m.py:s, reads: [reward], writes: [proximal]}]"],
     r"stage s writes proximal, a column of Headrace's own; choose another name"),
    (["algorithm.kl.coefficient=1", "algorithm.kl.target=1", "algorithm.kl.controller=m.py:c"],
     r"target and controller are both set"),
])  # fmt: skip
def test_what_could_not_run_is_refused(tmp_path: Path, overrides: list[str], words: str) -> None:
    sizes = ["rollout.prompts_per_batch=16", "rollout.samples_per_prompt=8"]
    with pytest.raises(ConfigError, match=words):
        load_config(TrainConfig, write(tmp_path), [*sizes, *overrides])


@pytest.mark.parametrize(("kind", "overrides", "told"), [
    (DPOConfig, [], []),
    (DPOConfig, ["loss=m.py:f", "beta=0.3", "per_length=true"],
     ["beta has no effect: loss is m.py:f", "per_length has no effect: loss is m.py:f"]),
    (RMConfig, ["loss=m.py:f", "margin=1"], ["margin has no effect: loss is m.py:f"]),
    (SFTConfig, ["trainer.lr_schedule.min_ratio=0.5"],
     ["trainer.lr_schedule.min_ratio has no effect: trainer.lr_schedule.kind is constant"]),
    (SFTConfig, ["loss_turns=last"], ["loss_turns has no effect: data.messages_column is not set"]),
    (SFTConfig, ["loss_turns=last", "data.messages_column=messages"], []),
])  # fmt: skip
def test_settings_of_offline_trainers_without_effect_are_named(
    tmp_path: Path, kind: Any, overrides: list[str], told: list[str]
) -> None:
    path = tmp_path / "offline.yaml"
    path.write_text("model: {path: m}\ndata: {train: d.jsonl}\n")
    assert ineffective(load_config(kind, path, overrides)) == told


def test_ipo_has_no_smoothing(tmp_path: Path) -> None:
    path = tmp_path / "dpo.yaml"
    path.write_text("model: {path: m}\ndata: {train: d.jsonl}\nloss: ipo\nlabel_smoothing: 0.1\n")
    with pytest.raises(ConfigError, match=r"label_smoothing is 0\.1 but loss is ipo, which has none; use 0"):
        load_config(DPOConfig, path)


@pytest.mark.parametrize(("overrides", "told"), [
    ([], []),
    (["algorithm.proximal=behavior", "algorithm.behavior.high=3"],
     ["algorithm.behavior.high has no effect: algorithm.proximal is behavior"]),
    (["algorithm.objective=naive", "algorithm.updates_per_batch=2", "algorithm.proximal=current"],
     ["algorithm.proximal has no effect: algorithm.objective is naive, whose ratio is against the behaviour policy"]),
    (["algorithm.stop_kl=0.02"], ["algorithm.stop_kl has no effect: algorithm.epochs_per_batch is 1"]),
    (["algorithm.stop_kl=0.02", "algorithm.epochs_per_batch=2", "algorithm.proximal=loglinear"], []),
    (["algorithm.proximal=loglinear"],
     ["algorithm.proximal has no effect: with one optimiser step per batch the current policy is the proximal one"]),
    (["evaluation.every=5"], ["evaluation.every has no effect: data.eval is not set"]),
    (["evaluation.every=5", "data.eval=e.jsonl"], []),
    (["rollout.max_turns=3"], ["rollout.max_turns has no effect: rollout.workflow is single_turn"]),
    (["trainer.epochs=3"], []),
    (["trainer.epochs=3", "trainer.batches=9"],
     ["trainer.epochs has no effect: trainer.batches says how long training takes"]),
    (["algorithm.objective=naive", "algorithm.behavior.high=2"],
     ["algorithm.behavior.high has no effect: algorithm.objective is naive"]),
    (["trainer.lr_schedule.min_ratio=0.1"],
     ["trainer.lr_schedule.min_ratio has no effect: trainer.lr_schedule.kind is constant"]),
    (["reward.model.weight=2"], ["reward.model.weight has no effect: reward.model.path is not set"]),
    (["reward.tolerance=0.1"], ["reward.tolerance has no effect: reward.function is exact"]),
    (["algorithm.recipe=cispo"], []),
    (["algorithm.loss=geometric_mean"], []),
    (["algorithm.clip_high=0.3"],
     ["algorithm.clip_high has no effect: with one optimiser step per batch the ratio is 1"]),
    (["algorithm.clip_high=0.3", "algorithm.updates_per_batch=2"], []),
    (["algorithm.clip_high=0.3", "algorithm.objective=naive"], []),
    (["algorithm.dual_clip=3", "algorithm.updates_per_batch=2", "algorithm.proximal=current"],
     ["algorithm.dual_clip has no effect: algorithm.proximal is current"]),
    (["algorithm.lam=0.9"], ["algorithm.lam has no effect: algorithm.advantage is group_normalized"]),
    (["algorithm.recipe=ppo", "algorithm.lam=0.9", "algorithm.gamma=0.9"], []),
    (["algorithm.recipe=rloo", "algorithm.clip_high=0.3"],
     ["algorithm.clip_high has no effect: algorithm.loss is reinforce"]),
    (["algorithm.recipe=cispo", "algorithm.dual_clip=3"],
     ["algorithm.dual_clip has no effect: algorithm.loss is cispo"]),
    (["algorithm.tau_positive=2", "algorithm.second_moment=1"],
     ["algorithm.tau_positive has no effect: algorithm.loss is clipped_surrogate",
      "algorithm.second_moment has no effect: algorithm.loss is clipped_surrogate"]),
    (["algorithm.kl.estimator=k1"], ["algorithm.kl.estimator has no effect: algorithm.kl.coefficient is 0"]),
    (["algorithm.kl.place=reward"], ["algorithm.kl.place has no effect: algorithm.kl.coefficient is 0"]),
    (["algorithm.kl.coefficient=0.1", "algorithm.kl.horizon=9000"],
     ["algorithm.kl.horizon has no effect: algorithm.kl.target is not set"]),
    (["algorithm.behavior.mode=mine.py:weights", "algorithm.behavior.veto=0.1"],
     ["algorithm.behavior.veto has no effect: algorithm.behavior.mode is mine.py:weights"]),
    (["algorithm.shaping.overlong_factor=2"],
     ["algorithm.shaping.overlong_factor has no effect: algorithm.shaping.overlong_buffer is not set"]),
    (["algorithm.recipe=ppo", "critic.loss=mine.py:values", "critic.clip=0.5"],
     ["critic.clip has no effect: critic.loss is mine.py:values"]),
])  # fmt: skip
def test_settings_without_effect_are_named(tmp_path: Path, overrides: list[str], told: list[str]) -> None:
    config = load_config(TrainConfig, write(tmp_path), overrides)
    assert ineffective(config) == told
    (tmp_path / "resolved.yaml").write_text(dump_config(config))
    assert ineffective(load_config(TrainConfig, tmp_path / "resolved.yaml")) == told, "defaults spelled out are no news"


@pytest.mark.parametrize("key", ["trace", "stall_timeout_s"])
def test_sft_refuses_settings_that_it_would_not_heed(tmp_path: Path, key: str) -> None:
    path = write(tmp_path)
    assert load_config(SFTConfig, path, ["runtime.threads=1"]).runtime.threads == 1
    with pytest.raises(ConfigError, match=rf"unknown key runtime\.{key}"):
        load_config(SFTConfig, path, [f"runtime.{key}=1"])


def test_a_config_that_is_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("- a\n- b\n")
    with pytest.raises(ConfigError, match="mapping"):
        load_config(TrainConfig, path)


def test_the_configuration_page_is_up_to_date() -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import make_reference; print(make_reference.page(), end='')"],
        cwd=ROOT / "docs",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (ROOT / "docs" / "configuration.md").read_text() == made, "run: python docs/make_reference.py"


def test_the_table_of_what_resume_may_change_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    page = (ROOT / "docs" / "run.md").read_text()
    assert maker.resume_table() in page, "run: python docs/make_reference.py"
    assert all(f"`{key}`" in maker.resume_table() for key in SAFE)


@pytest.mark.parametrize(("overrides", "says"), [
    (["algorithm.kl={target: 6, place: reward}"], "target is set but coefficient is 0"),
    (["algorithm.kl={target: 6, place: reward, coefficient: 0.1, horizon: 10}"], "use a horizon above 25"),
    (["algorithm.recipe=dr_grpo", "rollout.samples_per_prompt=1"], "every advantage would be 0"),
    (["algorithm.recipe=opd", "teacher.model=t", "algorithm.kl={coefficient: 1, place: reward}"], "looks at no reward"),
])  # fmt: skip
def test_algorithms_that_could_not_run_are_refused(tmp_path: Path, overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(TrainConfig, write(tmp_path), overrides)


@pytest.mark.parametrize(("recipe", "filters"), [("grpo", ("zero_spread",)), ("ppo", ()), ("reinforce_plus_plus", ())])
def test_groups_without_spread_are_dropped_where_groups_are_compared(
    tmp_path: Path, recipe: str, filters: tuple[str, ...]
) -> None:
    path = write(tmp_path)
    assert load_config(TrainConfig, path, [f"algorithm.recipe={recipe}"]).filters == filters
    assert load_config(TrainConfig, path, [f"algorithm.recipe={recipe}", "rollout.filters=[]"]).filters == ()


@pytest.mark.parametrize(
    ("changes", "filters"),
    [
        (["algorithm.shaping.length_weight=0.5"], ()),
        (["algorithm.shaping.function=s.py:f"], ()),
        (["algorithm.kl={place: reward, coefficient: 0.01}"], ()),
        (["algorithm.kl={place: loss, coefficient: 0.01}"], ("zero_spread",)),
        (["algorithm.kl={place: reward, coefficient: 0}"], ("zero_spread",)),
        (["algorithm.shaping.clip=[0, 1]"], ("zero_spread",)),
        (["algorithm.shaping.overlong_buffer=4"], ("zero_spread",)),
        (["algorithm.shaping.length_weight=0.5", "rollout.filters=[zero_spread]"], ("zero_spread",)),
    ],
)
def test_equal_rewards_are_no_reason_to_drop_a_group_where_something_else_tells_its_samples_apart(
    tmp_path: Path, changes: list[str], filters: tuple[str, ...]
) -> None:
    assert load_config(TrainConfig, write(tmp_path), changes).filters == filters


def test_the_configuration_page_shows_the_values_that_count() -> None:
    """clip_high and the aggregation are those of the default recipe, the critic's learning rate is the critic's."""
    page = (ROOT / "docs" / "configuration.md").read_text()
    sections = {part.split("\n", 1)[0]: part for part in page.split("\n## ")[1].split("\n### ")}
    algorithm, config = (
        sections["`algorithm`"],
        TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t"}}),
    )
    assert f"| `clip_high` | number (≥ 0) | `{config.algorithm.clip_high}` |" in algorithm
    assert f'| `aggregation` | text | `"{config.algorithm.aggregation}"` |' in algorithm
    assert (config.algorithm.clip_high, config.algorithm.aggregation) == (0.2, "sample_mean")
    assert "| `lr` | number (> 0) | `1e-05` |" in sections["`critic.optimizer`"]
    assert "| `lr` | number (> 0) | `1e-06` |" in sections["`trainer.optimizer`"]
    # Yu et al. 2025, arXiv 2503.14476; Liu et al. 2025, arXiv 2503.20783.
    assert '| `dapo` | `clip_high: 0.28`, `aggregation: "token_mean"` |' in algorithm
    assert '| `dr_grpo` | `advantage: "mean_only"`, `aggregation: "constant_length"` |' in algorithm
    assert '| `rloo` | `advantage: "leave_one_out"`, `loss: "reinforce"`, `kl.coefficient: 0.03`' in algorithm, (
        "unclipped"
    )
