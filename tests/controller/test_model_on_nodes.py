"""A model's folder on a node is to be the one that the command has: of a node that has another, nothing is made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.config import TrainConfig
from headrace.controller.planning.node_needs import asked_of_nodes, needs_by_kind
from headrace.runtime.node_check import Asked, Needs, NodeReport, NodeUnfit, look, require
from headrace.store.origin import Origin, find_origin, take_origin, taken_origin

_ALL = {"trainer", "engine", "lent", "proximal", "critic", "reference", "teacher"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return model(tmp_path / "base")


def model(folder: Path, value: float = 1.0) -> Path:
    """Of two files of weights, all of them `value`; all else is alike."""
    folder.mkdir()
    parts = {f"model-0000{number}-of-00002.safetensors": f"layer.{number}.weight" for number in (1, 2)}
    small: dict[str, Any] = {
        "config.json": {"model_type": "llama"},
        "generation_config.json": {"eos_token_id": 2},
        "model.safetensors.index.json": {"weight_map": {name: file for file, name in parts.items()}},
        "tokenizer.json": {"model": {"vocab": {"a": 0}}},
        "tokenizer_config.json": {"eos_token": "a"},
    }
    for name, told in small.items():
        (folder / name).write_text(json.dumps(told))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for file, name in parts.items():
        save_file({name: np.full(2_500_000, value, np.float32)}, folder / file)
    return folder


def needed(path: Path, origin: Origin | None = None, **more: Any) -> Mapping[str, Needs]:
    given: dict[str, Any] = {
        "model": {"path": str(path)},
        "data": {"train": "d"},
        "runtime": {"kind": "ray"},
        **more,
    }
    return needs_by_kind(TrainConfig.model_validate(given), None, None, origin)


def weights_of(needs: Needs) -> list[Path]:
    return [Path(file.path) for file in needs.files if file.sampled and file.digest]


def report(needs: Needs) -> NodeReport:
    """Of what is there now, as a node gives it."""
    whole = [file.path for file in needs.files if not file.sampled]
    sampled = [file.path for file in needs.files if file.sampled]
    return replace(NodeReport.parse(look(Asked.parse(Asked(whole, sampled).text())).text()), host="far")


def refused(needs: Needs) -> str:
    with pytest.raises(NodeUnfit) as unfit:
        require("10.0.0.7 (ab)", report(needs), needs, ["trainer/0"])
    return str(unfit.value)


def test_an_equal_copy_is_fit(base: Path, tmp_path: Path) -> None:
    needs = needed(base)["trainer"]
    shutil.copytree(base, tmp_path / "copy")
    shutil.rmtree(base)
    (tmp_path / "copy").rename(base)
    (base / "README.md").write_text("What nobody loads may be another.")
    require("n", report(needs), needs, ["trainer/0"])


def test_a_model_of_the_same_config_with_other_weights_is_refused(base: Path, tmp_path: Path) -> None:
    needs = needed(base)["trainer"]
    shutil.rmtree(base)
    model(tmp_path / "instruct", value=1.5).rename(base)
    assert refused(needs) == (
        f"the node 10.0.0.7 (ab) on far has another {base}/model-00001-of-00002.safetensors (model.path), which "
        "trainer/0 there need; put the model on a file system that all nodes share, or copy all files of its folder to "
        "the same path there"
    )


def test_a_file_of_weights_that_is_cut_off_or_not_there_is_told(base: Path) -> None:
    needs = needed(base)["engine"]
    second = base / "model-00002-of-00002.safetensors"
    second.write_bytes(second.read_bytes()[:-4096])
    assert f"far has another {second} (model.path)" in refused(needs)
    second.unlink()
    assert f"far has no {second} (model.path)" in refused(needs)


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
)
def test_a_small_file_that_is_another_is_told(name: str, base: Path) -> None:
    needs = needed(base)["reference"]
    (base / name).write_text("{}")
    assert f"far has another {base / name} (model.path), which trainer/0 there need; put the model" in refused(needs)


@pytest.mark.parametrize("name", ["model.safetensors", "added_tokens.json", "adapter_config.json"])
def test_a_file_that_would_be_read_there_alone_is_told(name: str, base: Path) -> None:
    needs = needed(base)["trainer"]
    (base / name).write_bytes(b"{}")
    assert refused(needs) == (
        f"the node 10.0.0.7 (ab) on far has {base / name} (model.path), which is not where the command is, and "
        "trainer/0 there would read it; remove it there, or put the model on a file system that all nodes share"
    )


def test_templates_and_vocabularies_of_other_names_are_compared(base: Path) -> None:
    more = base / "additional_chat_templates" / "tools.jinja"
    more.parent.mkdir()
    more.write_text("one")
    (base / "sentencepiece.bpe.model").write_bytes(b"one")
    needs = needed(base)["rollout"]
    require("n", report(needs), needs, ["rollout/0"])
    more.write_text("two")
    assert f"has another {more}" in refused(needs)


def test_each_kind_of_worker_needs_the_models_that_it_loads(base: Path, tmp_path: Path) -> None:
    other, scores, judges = (model(tmp_path / name, value) for name, value in (("o", 2.0), ("s", 3.0), ("j", 4.0)))
    judge = {"function": "judge", "judge": {"model": str(judges), "prompt": "{response}"}}
    made = needed(
        base,
        teacher={"model": str(other)},
        critic={"model": str(other)},
        reward={"model": {"path": str(scores)}, "terms": [judge, {"function": "exact_match"}]},
    )
    kept = {role: {path.parent.name for path in weights_of(needs)} for role, needs in made.items()}
    assert {role for role, found in kept.items() if found == {"base"}} == _ALL - {"teacher", "critic"}
    assert kept["teacher"] == kept["critic"] == {"o"}
    assert (kept["reward"], kept["judge"], kept["rollout"], kept["functions"]) == ({"s"}, {"j"}, set(), set())
    keys = {role: {file.what for file in needs.files} for role, needs in made.items()}
    assert keys["rollout"] == {"model.path", "judge.model"}
    assert keys["critic"] == {"critic.model"}
    assert keys["functions"] == set()


def test_weights_that_nobody_loads_are_not_compared(base: Path) -> None:
    """Of the model, where another run's are taken."""
    needs = needed(base, **{"from": {"run": "runs/other"}})["trainer"]
    names = {Path(file.path).name for file in needs.files if file.digest}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert not weights_of(needs)


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    """What the run in `run` has taken of another, which had a critic."""
    other = tmp_path / "other"
    other.mkdir()
    model(other / "model", 2.0)
    (other / "critic").mkdir()
    model(other / "critic" / "model", 3.0)
    (tmp_path / "run").mkdir()
    return take_origin(find_origin(str(other)), tmp_path / "run")


FROM: Mapping[str, Any] = {"from": {"run": "other"}}


def test_weights_of_the_run_that_another_begins_from_are_compared_where_it_has_them(
    base: Path, tmp_path: Path, origin: Origin
) -> None:
    made = needed(base, origin, **FROM)
    of_run = tmp_path / "run" / "origin"
    for role in _ALL - {"critic"}:
        assert {path.parent for path in weights_of(made[role])} == {of_run / "model"}, role
        assert str(base / "tokenizer.json") in [file.path for file in made[role].files if file.digest]
    assert {path.parent for path in weights_of(made["critic"])} == {of_run / "critic" / "model"}
    assert not {path for role in ("rollout", "judge", "functions") for path in weights_of(made[role])}
    require("n", report(made["engine"]), made["engine"], ["engine/0"])
    first = of_run / "model" / "model-00001-of-00002.safetensors"
    first.unlink()
    save_file({"layer.1.weight": np.full(2_500_000, 2.5, np.float32)}, first)
    assert refused(made["engine"]) == (
        f"the node 10.0.0.7 (ab) on far has another {first} (from.run), which trainer/0 there need; give --dir on a "
        "file system that all nodes share: the run's copy of what it begins from is in there"
    )
    shutil.rmtree(of_run)
    assert f"far has no {of_run}/model/" in refused(made["reference"])
    assert f"far has no {of_run}/critic/model/" in refused(made["critic"])


def test_a_model_that_is_named_and_one_that_a_server_has_are_no_others(
    base: Path, tmp_path: Path, origin: Origin
) -> None:
    named = needed(base, origin, reference={"model": str(model(tmp_path / "named", 4.0))}, **FROM)["reference"]
    assert {path.parent.name for path in weights_of(named)} == {"named"}
    served = needed(base, origin, engine={"kind": "vllm", "url": "http://127.0.0.1:8000"}, **FROM)
    assert not weights_of(served["engine"])
    assert len(weights_of(served["trainer"])) == 2


def test_what_a_run_begins_from_is_looked_for_once_it_has_taken_it(base: Path, tmp_path: Path) -> None:
    given = {"model": {"path": str(base)}, "data": {"train": "d"}, "runtime": {"kind": "ray"}, **FROM}
    folder = tmp_path / "run"
    config = TrainConfig.model_validate(given)
    asked = asked_of_nodes(config, 1, None, lambda: None, lambda: taken_origin(folder, "other"))
    assert not weights_of(asked.needs(None)["trainer"])
    (folder / "origin").mkdir(parents=True)
    model(folder / "origin" / "model", 2.0)
    needs = asked.needs(None)
    assert {path.parent for path in weights_of(needs["trainer"])} == {folder / "origin" / "model"}
    assert weights_of(needs["critic"]) == weights_of(needs["trainer"])


def test_weights_are_not_needed_beside_a_server_that_has_them(base: Path) -> None:
    needs = needed(base, engine={"kind": "vllm", "url": "http://127.0.0.1:8000"})
    assert not weights_of(needs["engine"])
    assert len(weights_of(needs["trainer"])) == 2


def test_of_a_name_on_the_hub_nothing_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert not any(needs.files for needs in needed(Path("org/name")).values())


def test_a_file_that_the_command_may_not_read_is_named(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.controller.planning.node_needs.digests", lambda whole, sampled: {})
    with pytest.raises(OSError, match=rf"{base}/config\.json \(model\.path\) cannot be read"):
        needed(base)
