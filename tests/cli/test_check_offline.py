"""`headrace check` of a config of `headrace sft`, `rm` or `dpo`: what it says, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_model
from offline_jobs import settings

from headrace.cli.main import main

ON_SLOTS = ("runtime.kind=ray", "cluster.device=slot", "cluster.local_devices=2", "cluster.place.trainer.devices=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a config of each command."""
    folder = tmp_path_factory.mktemp("offline")
    model = make_model(folder / "model")
    for name in ("sft", "rm", "dpo"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings(folder, model, name)))
    return folder


@pytest.fixture
def says(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `headrace check` of the config of a command; fails if a model was loaded."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for trained in ("of_demonstrations", "of_pairs"):
        monkeypatch.setattr(f"headrace.offline.trained.{trained}.loaded", forbidden)

    def run(name: str, *more: str, code: int = 0) -> str:
        assert main(["check", str(folder / f"{name}.yaml"), *more]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return run


def test_demonstrations_are_described(says: Any) -> None:
    out = says("sft")
    assert "command   headrace sft: trains a model on demonstrations\n" in out
    assert re.search(r"^model     .*/model: 0\.02 M parameters, trainer float32, context 96 tokens$", out, re.M)
    # For a, b < 4: prompts of 4 + 3ab tokens, 16 x 4 + 3 x 6 x 6; responses of 1 + b and an end, 4 x (2 + 3 + 4 + 5).
    assert "sft.jsonl: 16 samples of 6 to 36 tokens, 228 in all, 56 of them in the loss; held out: 16\n" in out
    assert "steps     4 of 5 samples, 1 pass over the data; a checkpoint every 2\n" in out
    assert "roles     runtime inline\n  trainer          this process: 2 CPU thread(s)\n" in out
    assert re.search(r"^memory    0\.32 MiB and activations; .* free on this host$", out, re.M)
    assert re.search(r"^  trainer: AdamW moments \(float32\) +0\.16 MiB$", out, re.M)


def test_pairs_are_described(says: Any) -> None:
    out = says("dpo", "beta=0.2", "trainer.steps=9")
    assert "command   headrace dpo: trains a policy on pairs\n" in out
    assert "loss      dpo, against the log-probs under the weights at the start\n" in out
    assert "steps     9 of 5 pairs, 2.812 passes over the data" in out
    out = says("rm", "margin=0.5", "trainer.layout=d2p2")
    assert "command   headrace rm: trains a reward model on pairs\n" in out
    ranks = "4 rank(s) (d2p2 by 1f1b, ZeRO-2, in stages of 1, 1 layers), each in a process of its own"
    assert f"  trainer          {ranks}: 1 CPU thread(s)\n" in out


def test_ranks_in_a_ray_of_the_runs_own_are_drawn(says: Any) -> None:
    out = says("sft", *ON_SLOTS, "trainer.layout=d2")
    assert (
        "ray       a cluster of this run's own, on loopback alone; all ranks are actors\n"
        "  node this machine, with the controller: 2 CPU, 2 slot free\n"
        "    slot 0         rank/0 (all of it)\n"
        "    slot 1         rank/1 (all of it)\n"
    ) in out
    out = says("sft", "runtime.kind=ray", "cluster.device=slot", "trainer.layout=d2")
    assert "    not counted    rank/0, rank/1\n" in out
    out = says("sft", *ON_SLOTS[:3], "--resource", '{"actor": [1, 2]}', "trainer.layout=d2")
    assert "    slot 1         rank/1 (all of it)\n" in out


def test_a_ray_that_would_have_no_place_for_its_sockets_is_refused(says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "/" + "t" * 59
    monkeypatch.setattr("tempfile.tempdir", long)
    says("sft", *ON_SLOTS)
    monkeypatch.setattr("headrace.runtime.socket_parent._SHORT", Path("/none"))
    assert f"TMPDIR is {long}, a path of 60 bytes" in says("sft", *ON_SLOTS, code=2)


def test_what_has_no_room_is_refused_by_keys_that_the_config_has(says: Any) -> None:
    error = says("sft", *ON_SLOTS, "trainer.layout=d3", code=2)
    assert "no node has room for rank/2, which ask for 1 slot and 1 CPU" in error
    assert "Lower devices or cpus in cluster.place.trainer, have fewer ranks (trainer.layout), or add nodes" in error
    assert not re.search("engine|rollout|colocate", error)
    words = "cluster.place.trainer has 2 devices for each worker, and one computes on one device"
    assert words in says("sft", *ON_SLOTS[:3], "cluster.place.trainer.devices=2", code=2)


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("sft", ["model.path=nowhere"], "nowhere"),
        ("sft", ["data.train=nowhere.jsonl"], "no dataset at nowhere.jsonl"),
        ("sft", ["data.response_column=answer"], "has no value in column 'answer'"),
        ("sft", ["trainer.layout=t3"], "trainer.layout has tp 3, and the model has 4 attention heads"),
        ("sft", ["data.max_tokens=20"], "tokens with its response, and data.max_tokens allows 20"),
        ("sft", ["loss=nowhere.py:loss"], "nowhere.py"),
        ("sft", ["runtime.kind=ray", "cluster.local_devices=2"], "set cluster.device to a name of its own"),
        ("sft", ["runtime.threads=100000"], "runtime.threads is 100000"),
        ("rm", ["margin=-1"], "margin is -1: input should be greater than or equal to 0"),
        ("rm", [], "is a config of headrace rm and of headrace dpo alike; say whose it is by --kind rm or --kind dpo"),
        ("rm", ["--kind", "sft"], "unknown key trainer.pairs_per_batch"),
        ("sft", ["--kind", "train"], "It is a config of headrace sft."),
        ("sft", ["nobody=1"], "unknown key"),
    ],
)
def test_what_the_command_refuses_is_refused(says: Any, name: str, more: list[str], words: str) -> None:
    assert words in says(name, *more, code=2)


def test_the_kind_may_be_said(says: Any) -> None:
    assert "command   headrace rm: " in says("dpo", "--kind", "rm")
    assert "command   headrace dpo: " in says("dpo", "--kind", "dpo")


def test_turns_of_a_conversation_are_counted(says: Any, tmp_path: Path) -> None:
    data, template = tmp_path / "chats.jsonl", tmp_path / "t.jinja"
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "ab"}] * 2
    data.write_text(json.dumps({"messages": turns}) + "\n")
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    own = ["data.eval=null", "data.messages_column=messages", f"data.template.file={template}", "loss_turns=split"]
    out = says("sft", f"data.train={data}", *own)
    assert "chats.jsonl: 2 samples of " in out
    assert "held out: 0\n" in out
