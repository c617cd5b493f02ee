"""`track`: names, or sections with settings; nothing secret; no part of what decides a result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.config import ConfigError, TrainConfig, config_sha256, dump_config, load_config
from headrace.config.track import SECTIONS, CsvTracker, WandbTracker


def load(tmp_path: Path, track: Any) -> TrainConfig:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": {"train": "t.jsonl"}, "track": track}))
    return load_config(TrainConfig, path)


def test_a_name_stands_for_its_section(tmp_path: Path) -> None:
    config = load(tmp_path, ["csv", {"type": "wandb", "project": "p", "tags": ["a"]}])
    assert config.trackers == (CsvTracker(), WandbTracker(project="p", tags=("a",)))
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(TrainConfig, tmp_path / "again.yaml") == config
    assert [tracker.type for tracker in load(tmp_path, list(SECTIONS)).trackers] == list(SECTIONS)


def test_it_decides_nothing_of_a_result(tmp_path: Path) -> None:
    assert config_sha256(load(tmp_path, ["csv"])) == config_sha256(load(tmp_path, []))


@pytest.mark.parametrize(("track", "words"), [
    (["wnb"], "track.0.name: 'wnb' is no tracker; use tensorboard, wandb, mlflow, trackio, csv"),
    ([{"type": "neptune"}], "a tracker is a name, or a mapping with type: tensorboard, wandb, mlflow, trackio, csv"),
    ([{"project": "p"}], "a tracker is a name, or a mapping with type"),
    (["csv", {"type": "csv"}], "track: csv is named more than once; a run has one of each"),
    ([{"type": "wandb", "api_key": "s3cret"}], "unknown key track.0.wandb.api_key"),
    ([{"type": "mlflow", "uri": "postgresql://me:s3cret@host/db"}], "a password is in it"),
    ("csv", "track is 'csv': a list is wanted"),
])  # fmt: skip
def test_what_is_refused(track: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, track)
    assert words in str(error.value)
    assert "s3cret" not in str(error.value)
