"""Sources of data and curricula in the config: what they may be, and how faults are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import ConfigError, SFTConfig, TrainConfig, config_sha256, dump_config, load_config
from headrace.config.reading.unused_keys import ineffective


def load(folder: Path, data: Any, kind: Any = TrainConfig, **sections: Any) -> Any:
    file = folder / "c.yaml"
    file.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": data, **sections}))
    return load_config(kind, file)


def test_a_path_a_mapping_and_a_list_are_sources(tmp_path: Path) -> None:
    plain = load(tmp_path, {"train": "a.jsonl"})
    assert [source.path for source in plain.data.sources] == ["a.jsonl"]
    hub = {"path": "openai/gsm8k", "subset": "main", "split": "train", "revision": "v1"}
    (one,) = load(tmp_path, {"train": hub}).data.sources
    assert (one.called, one.subset, one.split, one.revision, one.weight) == ("gsm8k", "main", "train", "v1", None)
    mixed = load(tmp_path, {"train": [{"path": "x/a.jsonl.gz", "weight": 2}, {**hub, "weight": 1, "name": "school"}]})
    assert [source.called for source in mixed.data.sources] == ["a", "school"]
    for config in (plain, mixed):
        (tmp_path / "again.yaml").write_text(dump_config(config))
        assert load_config(TrainConfig, tmp_path / "again.yaml") == config
    assert config_sha256(plain) != config_sha256(mixed)


@pytest.mark.parametrize(("data", "said"), [
    ({"train": {"path": "x", "wieght": 1}}, "unknown key data.train.wieght; did you mean data.train.weight?"),
    ({"train": {"path": "x", "dataset_config": "a"}}, "did you mean data.train.subset?"),
    ({"train": [3]}, "data.train.0 is 3: a path (text; put it in quotes) or a mapping with path is wanted"),
    ({"train": []}, "data.train: the list is empty; name a source"),
    ({"train": {"weight": 1}}, "missing key data.train.path"),
    ({"train": {"path": "x", "weight": 0}}, "data.train.weight is 0"),
    ({"train": ["a/t.jsonl", "b/t.csv"]}, "two sources are called 't'; give each a name of its own"),
    ({"train": ["a.jsonl", {"path": "b", "weight": 1}]}, "'a' has no weight, and others have; give one to all"),
    ({"train": {"path": "b", "name": "a/b"}}, "the name 'a/b' has a slash"),
    ({"train": "a", "eval": ["b"]}, "data.eval is ['b']: a path (text; put it in quotes) or a mapping with path"),
    ({"train": "a", "curriculum": {"column": "x", "pass_rate": 0.5}}, "column and pass_rate are two orders"),
    ({"train": "a", "curriculum": {"descending": True}}, "descending goes with column; leave it out"),
    ({"train": "a", "curriculum": {"pass_rate": 2}}, "data.curriculum.pass_rate is 2"),
])  # fmt: skip
def test_faults_are_told_with_their_mend(tmp_path: Path, data: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, data)
    assert said in str(caught.value)


def test_weights_are_for_training_with_rewards(tmp_path: Path) -> None:
    assert len(load(tmp_path, {"train": ["a.jsonl", "b.csv"]}, SFTConfig).data.sources) == 2
    with pytest.raises(ConfigError, match="'a' has a weight, and here every row comes once in a pass; leave"):
        load(tmp_path, {"train": {"path": "a.jsonl", "weight": 1}}, SFTConfig)


def test_pass_rates_need_rewards_that_come_with_the_rollout(tmp_path: Path) -> None:
    data = {"train": "a.jsonl", "curriculum": {"pass_rate": 0.5}}
    with pytest.raises(ConfigError, match=r"reward.model.path scores later; order the rows by data.curriculum.column"):
        load(tmp_path, data, reward={"model": {"path": "rm"}})


def test_a_threshold_without_pass_rates_is_told_to_have_no_effect(tmp_path: Path) -> None:
    config = load(tmp_path, {"train": "a.jsonl", "curriculum": {"passes_above": 0.9}})
    assert any("data.curriculum.passes_above" in told for told in ineffective(config))
