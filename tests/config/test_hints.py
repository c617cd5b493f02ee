"""What a config says of keys and values that it does not take: the key that is meant, and the mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.kinds import KINDS
from headrace.config.reading.explain import known_keys
from headrace.config.reading.synonyms import SYNONYMS

SECTIONS = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}}
Says = Callable[..., str]


@pytest.fixture
def says(tmp_path: Path) -> Says:
    """The error of a config (a mapping, or the text of its file) with overrides."""

    def load(*overrides: str, command: str = "train", config: object = SECTIONS) -> str:
        path = tmp_path / "c.yaml"
        path.write_text(config if isinstance(config, str) else yaml.safe_dump(config))
        with pytest.raises(ConfigError) as caught:
            load_config(KINDS[command], path, overrides)
        return str(caught.value).replace(str(path), "c.yaml")

    return load


@pytest.mark.parametrize(("name", "keys"), SYNONYMS.items())
def test_every_word_of_other_trainers_leads_to_keys_that_exist(name: str, keys: tuple[str, ...]) -> None:
    """In the config of one command at least."""
    known = {command: set(known_keys(kind)) for command, kind in KINDS.items()}
    assert all(any(key in keys_of for keys_of in known.values()) for key in keys)
    assert len(set(keys)) == len(keys)
    assert name == name.lower()


@pytest.mark.parametrize(("command", "key", "meant"), [
    # TRL
    ("train", "max_steps", "trainer.batches"),
    ("train", "trainer.max_steps", "trainer.batches"),
    ("train", "beta", "algorithm.kl.coefficient"),
    ("train", "algorithm.beta", "algorithm.kl.coefficient"),
    ("train", "num_generations", "rollout.samples_per_prompt"),
    ("train", "learning_rate", "trainer.optimizer.lr"),
    ("train", "trainer.learning_rate", "trainer.optimizer.lr"),
    ("train", "max_completion_length", "rollout.sampling.max_new_tokens"),
    ("train", "max_prompt_length", "data.max_prompt_tokens"),
    ("train", "data.filter_overlong_prompts", "data.too_long"),
    ("train", "data.apply_chat_template_kwargs", "data.template.kwargs"),
    ("train", "data.custom_chat_template", "data.template.file"),
    ("train", "system_prompt", "data.template.system"),
    ("train", "stop_words", "rollout.sampling.stop"),
    ("sft", "assistant_only_loss", "loss_roles"),
    ("sft", "max_length", "data.max_tokens"),
    ("train", "epsilon_high", "algorithm.clip_high"),
    ("train", "scale_rewards", "algorithm.advantage"),
    ("train", "per_device_train_batch_size", "rollout.prompts_per_batch or trainer.max_tokens_per_microbatch"),
    ("train", "trainer.num_train_epochs", "trainer.epochs"),
    ("train", "model_name_or_path", "model.path"),
    ("train", "reward_funcs", "reward.function or reward.terms"),
    ("train", "save_steps", "checkpoint.every"),
    ("train", "mask_truncated_completions", "algorithm.truncated"),
    ("sft", "max_steps", "trainer.steps"),
    ("sft", "learning_rate", "trainer.optimizer.lr"),
    ("sft", "batch_size", "trainer.samples_per_batch"),
    ("rm", "batch_size", "trainer.pairs_per_batch"),
    ("dpo", "loss_type", "loss"),
    ("dpo", "trainer.beta", "beta"),
    # verl
    ("train", "rollout.n", "rollout.samples_per_prompt"),
    ("train", "data.train_files", "data.train"),
    ("train", "data.train_batch_size", "rollout.prompts_per_batch"),
    ("train", "data.max_response_length", "rollout.sampling.max_new_tokens"),
    ("train", "trainer.total_training_steps", "trainer.batches"),
    ("train", "trainer.test_freq", "evaluation.every"),
    ("train", "algorithm.adv_estimator", "algorithm.advantage"),
    ("train", "trainer.critic_warmup", "critic.warmup_batches"),
    ("train", "reward_model.model.path", "reward.model.path"),
    ("train", "custom_reward_function.path", "reward.function"),
    ("train", "actor_rollout_ref.rollout.n", "rollout.samples_per_prompt"),
    ("train", "actor_rollout_ref.actor.clip_ratio_high", "algorithm.clip_high"),
    ("train", "actor_rollout_ref.actor.optim.lr", "trainer.optimizer.lr or critic.optimizer.lr"),
    ("train", "critic.optim.lr", "critic.optimizer.lr or trainer.optimizer.lr"),
    # OpenRLHF
    ("train", "n_samples_per_prompt", "rollout.samples_per_prompt"),
    ("train", "rollout_batch_size", "rollout.prompts_per_batch"),
    ("train", "init_kl_coef", "algorithm.kl.coefficient"),
    ("train", "generate_max_len", "rollout.sampling.max_new_tokens"),
    ("train", "critic_learning_rate", "critic.optimizer.lr"),
    ("train", "eps_clip_low_high", "algorithm.clip_low or algorithm.clip_high"),
    ("train", "input_key", "data.prompt_column"),
    # and what is usual besides
    ("train", "group_size", "rollout.samples_per_prompt"),
    ("train", "batch_size", "rollout.prompts_per_batch"),
    ("train", "rollout.sampling.stop_strings", "rollout.sampling.stop"),
    ("train", "n", "rollout.samples_per_prompt"),
    ("train", "steps", "trainer.batches"),
    ("train", "N-Samples", "rollout.samples_per_prompt"),
    ("train", "max_head_offpolicyness", "async.max_staleness"),
    # the same name elsewhere goes before another one, and the nearest section before a far one
    ("train", "temperature", "rollout.sampling.temperature or evaluation.temperature"),
    ("train", "evaluation.max_tokens", "evaluation.max_new_tokens"),
    ("train", "reward.judge.max_tokens", "reward.judge.max_new_tokens"),
    ("train", "reward.judge.engine.max_model_len", "reward.judge.engine.max_context"),
    ("train", "critic.learning_rate", "critic.optimizer.lr"),
    ("train", "critic.grad_clip", "critic.max_grad_norm"),
    ("train", "critic.ppo_mini_batch_size", "critic.updates_per_batch"),
    ("train", "critic.ppo_micro_batch_size_per_gpu", "critic.max_tokens_per_microbatch"),
    ("train", "critic.optim.lr_warmup_steps_ratio", "critic.lr_schedule.warmup_steps"),
    ("train", "critic.optimizer.epsilon", "critic.optimizer.eps"),
    ("train", "trainer.optimizer.epsilon", "trainer.optimizer.eps"),
    ("train", "clip_ratio", "algorithm.clip_low or algorithm.clip_high"),
    ("train", "rollout.temperature", "rollout.sampling.temperature or evaluation.temperature"),
    ("train", "async.max_stalenes", "async.max_staleness"),
])  # fmt: skip
def test_a_key_of_another_trainer_gets_the_one_that_is_meant(says: Says, command: str, key: str, meant: str) -> None:
    assert f"unknown key {key}; did you mean {meant}" in says(f"{key}=1", command=command)


@pytest.mark.parametrize("key", ["max_model_len", "max_prompt_length", "trainer.max_completion_length", "kl_coef"])
def test_a_setting_of_other_trainers_that_a_command_does_not_have_is_told_so(says: Says, key: str) -> None:
    assert f"unknown key {key}; this command has no such setting" in says(f"{key}=1", command="dpo")


def test_an_unknown_section_is_told_key_by_key(says: Says) -> None:
    actor = {"kl_loss_coef": 0.1, "optim": {"lr": 1e-6}, "use_torch_compile": True}
    said = says(config={**SECTIONS, "actor_rollout_ref": {"actor": actor, "rollout": {"n": 8}}})
    assert said.splitlines() == [
        "c.yaml: 3 faults",
        "  - unknown key actor_rollout_ref.actor.kl_loss_coef; did you mean algorithm.kl.coefficient?",
        "  - unknown key actor_rollout_ref.actor.optim.lr; did you mean trainer.optimizer.lr or critic.optimizer.lr?",
        "  - unknown key actor_rollout_ref.rollout.n; did you mean rollout.samples_per_prompt?",
    ]
    assert "unknown key foo; known keys here are model, data" in says(config={**SECTIONS, "foo": {"bar": {"baz": 1}}})


def test_a_dotted_key_in_a_file_is_told_where_it_goes(says: Says) -> None:
    said = says(config={**SECTIONS, "trainer": {"optimizer.lr": 1e-5}, "async.max_staleness": 3})
    assert (
        "unknown key trainer.optimizer.lr; in a file write it in its section: trainer: {optimizer: {lr: ...}}" in said
    )
    assert "unknown key async.max_staleness; in a file write it in its section: async: {max_staleness: ...}" in said


@pytest.mark.parametrize(("override", "words"), [
    ("rollout.prompts_per_batch=true", "rollout.prompts_per_batch is true: a number is wanted, not true or false"),
    ("trainer.optimizer.lr=false", "trainer.optimizer.lr is false: a number is wanted, not true or false"),
    ("async.max_staleness=true", "async.max_staleness is true: a number is wanted, not true or false"),
    ("trainer.optimizer.betas=[true,0.9]", "trainer.optimizer.betas is [True, 0.9]: a number is wanted, not true"),
    ("rollout.sampling.stop_token_ids=[true]", "stop_token_ids is [True]: a number is wanted, not true or false"),
    ("rollout.sampling.top_k=100000000000000000000", "top_k is 100000000000000000000: a smaller number is wanted"),
    ("rollout.samples_per_prompt=1000000", "input should be less than or equal to 65536"),
    ("rollout.prompts_per_batch=2.5", "rollout.prompts_per_batch is 2.5: a whole number is wanted"),
    ("rollout.prompts_per_batch=1e30", "rollout.prompts_per_batch is 1e+30: a smaller number is wanted"),
    ("rollout.prompts_per_batch=null", "rollout.prompts_per_batch is null: a whole number is wanted"),
    ("trainer.optimizer.lr=fast", "trainer.optimizer.lr is 'fast': a number is wanted"),
    ("trainer.optimizer.lr=nan", "trainer.optimizer.lr is 'nan': a finite number is wanted"),
    ("data.shuffle=maybe", "data.shuffle is 'maybe': true or false is wanted"),
    ("data.train=5", "data.train is 5: a path (text; put it in quotes), a mapping with path, or a list of these is"),
    ("rollout.sampling=5", "rollout.sampling is 5: a mapping of keys is wanted"),
    ("rollout.filters=zero_spread", "rollout.filters is 'zero_spread': a list is wanted"),
    ("algorithm.shaping.clip=[1,2,3]", "algorithm.shaping.clip is [1, 2, 3]: too many values; it takes at most 2"),
    ("model.path=???", "model.path is ???, which stands for a value yet to be given"),
    ("seed=${nope}", "Interpolation key 'nope' not found (at seed)"),
    ("seed=[", "override 'seed=[' is not valid YAML"),
    ("=3", "override '=3' names no key; write key=value"),
    ("rollout..x=3", "override 'rollout..x=3' names no key; write key=value"),
    ("data=[]", "override 'data=[]' gives a list for a mapping, or the other way round, at data"),
    ("rollout.filters[0]=x", "the file has no list at rollout.filters; give all of it, as rollout.filters=[...]"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_told_in_the_words_of_yaml(says: Says, override: str, words: str) -> None:
    assert words in says(override)


@pytest.mark.parametrize(("text", "words"), [
    ("3\n", "c.yaml holds no mapping; a config is a mapping of sections"),
    ("a: " + "[" * 3000 + "]" * 3000, "c.yaml is nested too deeply for a config"),
    ("1: 2\nmodel: {path: m}\ndata: {train: t}\n", "a key is 1, which is no text; correct it, or put it in quotes"),
    ("seed: 1\nseed: 2\n", "found duplicate key seed"),
    ("seed: !!python/name:os.system\n", "could not determine a constructor for the tag"),
])  # fmt: skip
def test_a_file_that_is_no_config_is_told_why(says: Says, text: str, words: str) -> None:
    assert words in says(config=text)


def test_a_file_that_is_not_text_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_bytes("seed: 1\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="is not UTF-8 text; give a YAML file"):
        load_config(TrainConfig, tmp_path / "c.yaml")


def test_an_override_reaches_one_place_of_a_list(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    filters = ["zero_spread", {"type": "length", "max_tokens": 5}]
    path.write_text(yaml.safe_dump({**SECTIONS, "rollout": {"filters": filters}}))
    changed = load_config(
        TrainConfig, path, ["rollout.filters[0]=f.py:keep", "rollout.filters[1].max_tokens=7"]
    ).filters
    assert changed[0] == "f.py:keep"
    assert changed[1].max_tokens == 7  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"override 'rollout.filters\[2\]=x': list index out of range"):
        load_config(TrainConfig, path, ["rollout.filters[2]=x"])


def test_a_config_of_another_command_is_told_as_such(says: Says) -> None:
    pairs = {**SECTIONS, "trainer": {"pairs_per_batch": 4}}
    assert says(config=pairs).splitlines()[-1] == "It is a config of headrace rm or headrace dpo."
    assert "It is a config" not in says(config={**SECTIONS, "nobody": 1})
