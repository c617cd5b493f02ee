"""The JSON Schema of the configs: what it accepts is what the commands do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from headrace.cli.main import main
from headrace.config import ConfigError, dump_config, load_config
from headrace.config.kinds import KINDS
from headrace.config.reading.json_schema import json_schema

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))
LEAST: dict[str, dict[str, Any]] = {
    "train": {"model": {"path": "m"}, "data": {"train": "t.jsonl"}},
    "sft": {"model": {"path": "m"}, "data": {"train": "t.jsonl"}},
    "rm": {"model": {"path": "m"}, "data": {"train": "t.jsonl"}},
    "dpo": {"model": {"path": "m"}, "data": {"train": "t.jsonl"}},
}


def faults(command: str, config: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(json_schema(command))
    return [".".join(map(str, fault.absolute_path)) for fault in validator.iter_errors(config)]


@pytest.mark.parametrize("command", KINDS)
def test_it_is_a_schema_and_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(command))
    assert main(["schema", command]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema(command)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_example_is_valid(path: Path) -> None:
    command = path.stem if path.stem in ("sft", "rm", "dpo") else "train"
    assert faults(command, yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize("command", KINDS)
def test_a_resolved_config_is_valid(command: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(LEAST[command]))
    resolved = yaml.safe_load(dump_config(load_config(KINDS[command], tmp_path / "c.yaml")))
    assert faults(command, resolved) == []


@pytest.mark.parametrize(("given", "where"), [
    ({"trainer": {"optimizer": {"lr": -1}}}, "trainer.optimizer.lr"),
    ({"trainer": {"optimiser": {}}}, "trainer"),
    ({"async": {"mode": "sometimes"}}, "async.mode"),
    ({"algorithm": {"loss": "hinge"}}, "algorithm.loss"),
    ({"algorithm": {"recipe": "grpoo"}}, "algorithm.recipe"),
    ({"rollout": {"prompts_per_batch": "many"}}, "rollout.prompts_per_batch"),
    ({"model": {}}, "model"),
])  # fmt: skip
def test_what_a_command_refuses_for_its_form_is_marked(given: dict[str, Any], where: str, tmp_path: Path) -> None:
    config = {**LEAST["train"], **given}
    assert where in faults("train", config)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError):
        load_config(KINDS["train"], tmp_path / "c.yaml")


def test_functions_of_ones_own_and_names_of_ours_are_valid() -> None:
    for loss in ("gspo", "mine.py:loss"):
        assert faults("train", {**LEAST["train"], "algorithm": {"loss": loss}}) == []


@pytest.mark.parametrize(
    ("engine", "is_valid"),
    [
        ({"kind": "vllm"}, True),
        ([{"kind": "vllm", "spread": "group"}, {"replicas": 2}], True),
        ([{}, {"spread": "group"}], False),
        ([], False),
    ],
)
def test_an_engine_is_a_section_or_a_list_of_them(engine: object, is_valid: bool) -> None:
    assert (faults("train", LEAST["train"] | {"engine": engine}) == []) is is_valid
