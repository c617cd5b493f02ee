"""Offline trainers with several ranks: the same as with one, through checkpoints, stops and losses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from controller_jobs import make_model
from hypothesis import given
from hypothesis import strategies as st
from offline_jobs import STEPS, TWO_CUT_UP, same, settings, train

from headrace.config import ConfigError, SFTConfig
from headrace.models.packing import PackRow
from headrace.observe.offline.listeners import OfflineListeners
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.offline.loop import RankLost
from headrace.offline.ranks.placement import rank_needs, rank_teams, with_whole_paths
from headrace.offline.ranks.started import check_world
from headrace.offline.units import Unit, parts_of
from headrace.runtime.placing import Claim
from headrace.runtime.process.joined import Joined
from headrace.store import RunReader


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


@pytest.mark.slow
@pytest.mark.cpu
def test_a_rank_that_dies_ends_all_and_the_run_goes_on_in_another_layout(tmp_path: Path, model: Path) -> None:
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    config, folder = settings(tmp_path, model, "sft", TWO_CUT_UP), tmp_path / "ranks"
    with pytest.raises(RankLost, match=r"^rank/1 is lost: its process ended with signal SIGKILL .* --resume: .*check"):
        train("sft", config, folder, listeners=OfflineListeners(checkpoint=kill_second))
    assert processes() == []
    assert sorted(path.name for path in (folder / "checkpoint").glob("trainer-*")) == [
        f"trainer-{rank}-of-2.safetensors" for rank in range(2)
    ]
    told = json.loads((folder / "checkpoint" / "manifest.json").read_text())
    assert told["boxes"].keys() == {f"trainer-{rank}-of-2.safetensors" for rank in range(2)} < told["files"].keys()
    config["trainer"]["layout"] = "t2"
    assert train("sft", config, folder, begin="resume").status == "finished"
    same(tmp_path / "one", folder)


def kill_second(step: int, path: Path) -> None:
    (rank,) = [process for process in processes() if "rank/1" in " ".join(process.cmdline())]
    rank.kill()


def processes() -> list[psutil.Process]:
    """Of ranks of this one."""
    return [each for each in psutil.Process().children() if "rank/" in " ".join(each.cmdline())]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("name", "layout", "until"), [("dpo", "p2", STEPS), pytest.param("rm", "t2", 1, marks=pytest.mark.soak)]
)
def test_the_two_of_a_pair_are_one_ranks(tmp_path: Path, model: Path, name: str, layout: object, until: int) -> None:
    """One is told to stop, and goes on in another layout."""
    train(name, settings(tmp_path, model, name), tmp_path / "one")
    result = train(name, settings(tmp_path, model, name, layout), tmp_path / "ranks", until=until)
    assert result.steps == until
    if until < STEPS:
        train(name, settings(tmp_path, model, name, TWO_CUT_UP), tmp_path / "ranks", begin="resume")
    same(tmp_path / "one", tmp_path / "ranks")


HANGS = """
import time

from headrace.algorithms.losses.likelihood import sft

calls = []


def loss(logprobs, mask, sample_index):
    calls.append(1)
    if len(calls) == 2:
        time.sleep(600)
    return sft(logprobs, mask)
"""
STUCK = (
    r"stuck: no microbatch has ended for . s, of which 1 are allowed \(runtime\.stuck\.microbatch_s\); "
    r"it is at mark \d+ of its work"
)


def hanging(folder: Path, model: Path, layout: object) -> dict[str, Any]:
    """With a loss that never comes back, and a short limit, by the key that a message names."""
    own = folder / "own.py"
    own.write_text(HANGS)
    config = settings(folder, model, "sft", layout) | {"loss": f"{own}:loss"}
    config["runtime"]["stuck"] = {"microbatch_s": 1}
    del config["data"]["eval"]
    return config


@pytest.mark.slow
@pytest.mark.cpu
def test_a_rank_that_hangs_is_ended_by_the_limit_that_is_set(tmp_path: Path, model: Path) -> None:
    with pytest.raises(RankLost, match=rf"^rank/\d is lost: .*{STUCK}"):
        train("sft", hanging(tmp_path, model, TWO_CUT_UP), tmp_path / "ranks")
    assert processes() == []


@pytest.mark.slow
@pytest.mark.cpu
def test_a_rank_that_waits_for_the_one_that_hangs_is_not_the_one_that_is_named(tmp_path: Path, model: Path) -> None:
    """It comes to a layer that is due sooner."""
    config = hanging(tmp_path, model, TWO_CUT_UP)
    own = tmp_path / "own.py"
    own.write_text(HANGS.replace("len(calls) == 2", "len(calls) == 2 and torch.distributed.get_rank() == 1"))
    own.write_text(own.read_text().replace("import time\n", "import time\n\nimport torch\n"))
    config["runtime"]["stuck"] = {"microbatch_s": 20, "layer_s": 1}
    first = (
        r"^rank/1 is lost: it hangs, and others wait for it: rank/0 is lost: .* rank is stuck: no layer has ended for "
    )
    with pytest.raises(RankLost, match=first):
        train("sft", config, tmp_path / "ranks")
    assert processes() == []


@pytest.mark.slow
@pytest.mark.cpu
def test_so_is_a_command_of_one_process(tmp_path: Path, model: Path) -> None:
    job, folder = tmp_path / "job.yaml", tmp_path / "one"
    job.write_text(yaml.safe_dump(hanging(tmp_path, model, "d1")))
    command = [sys.executable, "-m", "headrace", "sft", str(job), "--dir", str(folder), "--plain"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    *where, line = ended.stderr.splitlines()
    assert re.fullmatch(f"headrace: trainer is {STUCK}; no checkpoint was made yet, so begin again with --fresh", line)
    assert any("own.py" in each for each in where)
    with RunReader(folder) as reader:
        assert OfflineWatcher(reader).read().status == "failed"


ON_SLOTS = ["runtime.kind=ray", "cluster.device=slot", "cluster.local_devices=2", "cluster.place.trainer.devices=1"]
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("by", "more", "logs"),
    [
        (TORCHRUN, [], ["rank-0.log"]),
        pytest.param(
            *([], ["runtime.kind=ray"], ["rank-0.log", "rank-1.log", "ray.log"]),
            marks=[
                pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
                pytest.mark.soak,
            ],
        ),
        pytest.param(
            *([], ON_SLOTS, ["cluster", "rank-0.log", "rank-1.log", "ray.log"]),
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
        ),
    ],
    ids=["torchrun", "Ray", "Ray, on devices of this machine"],
)
def test_others_have_the_ranks(tmp_path: Path, model: Path, by: list[str], more: list[str], logs: list[str]) -> None:
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    job, folder = tmp_path / "job.yaml", tmp_path / "ranks"
    job.write_text(yaml.safe_dump(settings(tmp_path, model, "sft", TWO_CUT_UP)))
    command = [sys.executable, "-m", *by, "headrace", "sft", str(job), "--dir", str(folder), "--plain", *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("sft step 4: loss") == 1, "the first rank alone tells"
    assert not (folder / "ranks.json").exists()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == logs
    same(tmp_path / "one", folder)


@pytest.mark.parametrize(
    ("layout", "world", "words"),
    [
        (
            "d2",
            Joined(0, 3, 3, 1),
            r"trainer\.layout is d2, of 2 rank\(s\), and torchrun began 3; use --nproc-per-node 2",
        ),
        (
            "d1",
            Joined(0, 2, 2, 1),
            r"trainer\.layout is d1, of 1 rank\(s\), and torchrun began 2; .* trainer.layout=d2",
        ),
        (
            "d4",
            Joined(0, 4, 2, 1),
            r"torchrun began 4 ranks, 2 of them on this machine, and runtime\.host is 127\.0\.0\.1, where those of "
            r"others do not find the first; set it to an address of this machine that they reach",
        ),
        ("d2", Joined(1, 2, 2, 1), "this is rank 1 of 2, and another than the first has no run"),
    ],
)
def test_a_world_that_the_layout_does_not_match_is_refused(layout: str, world: Joined, words: str) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "trainer": {"layout": layout}})
    with pytest.raises(ConfigError, match=words):
        check_world(config, world)


def test_ray_and_torchrun_are_not_both_taken() -> None:
    config = {"model": {"path": "m"}, "data": {"train": "d"}, "runtime": {"kind": "ray"}}
    with pytest.raises(ConfigError, match=r"runtime\.kind is ray, and torchrun began this"):
        check_world(SFTConfig.model_validate(config), Joined(0, 1, 1, 1))
    with pytest.raises(ValueError, match="address is 'auto', and kind inline; set kind: ray"):
        SFTConfig.model_validate({**config, "runtime": {"address": "auto"}})


def test_a_world_that_it_matches_is_taken() -> None:
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}
    assert Joined.of(told) == Joined(1, 2, 2, os.getppid(), local=1)
    assert Joined.of({name: value for name, value in told.items() if name != "RANK"}) is None
    config = {"model": {"path": "m"}, "data": {"train": "d"}, "trainer": {"layout": "t2"}}
    check_world(SFTConfig.model_validate(config), Joined(0, 2, 2, 1))
    more = {"RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "1", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    spread = Joined.of({**told, **more})
    assert spread == Joined(3, 4, 2, os.getppid(), node=1, local=1, at=("127.0.0.1", 29500))
    assert spread.is_spread
    config |= {"trainer": {"layout": "d4"}, "runtime": {"host": "10.0.0.7"}}
    check_world(SFTConfig.model_validate(config), Joined(0, 4, 2, 1))


def test_ranks_are_placed_in_a_cluster_as_they_are_numbered(tmp_path: Path) -> None:
    """With what their nodes are to have: the model, a function's file, the folder."""
    loss = tmp_path / "own.py"
    loss.write_text("def loss(batch): ...\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "marker").write_text("here")
    place = {"devices_together": 2, "cpus": 4, "strategy": "spread"}
    given: dict[str, Any] = {
        "model": {"path": str(tmp_path / "m")},
        "data": {"train": "d"},
        "loss": f"{loss}:loss",
        "trainer": {"layout": "d2t2"},
        "cluster": {"place": {"trainer": place}, "device": "slot"},
    }
    with pytest.raises(ValueError, match=r"cluster has a place of the ranks, and runtime\.kind is inline; set runtime"):
        SFTConfig.model_validate(given)
    config = SFTConfig.model_validate({**given, "runtime": {"kind": "ray"}})
    (team,) = rank_teams(config).teams
    assert team.spread
    assert [each.claims for each in team.bundles] == [(Claim(f"rank/{rank}", 0.5, 4.0),) for rank in range(4)]
    needed = [each.path for each in rank_needs(config, tmp_path / "marker").files if each.digest]
    assert needed == [str(loss), str(tmp_path / "m" / "config.json"), str(tmp_path / "marker")]
    place["devices_together"] = 3
    config = SFTConfig.model_validate({**given, "runtime": {"kind": "ray"}})
    with pytest.raises(ConfigError, match=r"cluster\.place\.trainer has 3 devices for 4 workers, which share them"):
        rank_teams(config)
    assert rank_teams(SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}})).teams == ()


def test_paths_of_the_commands_folder_are_told_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "own.py").touch()
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "loss": "own.py:loss"})
    told = with_whole_paths(config)
    assert (told.model.path, told.loss) == (str(tmp_path / "m"), f"{tmp_path / 'own.py'}:loss")
    hub = SFTConfig.model_validate({"model": {"path": "Qwen/Qwen3-8B"}, "data": {"train": "d"}})
    assert with_whole_paths(hub) == hub


def test_an_address_that_is_every_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"host is '0\.0\.0\.0', where nobody finds this machine"):
        SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "runtime": {"host": "0.0.0.0"}})


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("sft", "t3", "trainer.layout has tp 3, and the model has 4 attention heads; use a tp of 1, 2"),
        ("dpo", "p3", "trainer.layout has pp 3, and the model has 2 layers; use a pp of 2 at most"),
        ("rm", "t4", "trainer.layout has tp 4, and the model has 2 key and value heads; use a tp of 1, 2"),
    ],
)
def test_a_layout_that_the_model_does_not_divide_into_is_refused_before_anything_begins(
    tmp_path: Path, model: Path, name: str, layout: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train(name, settings(tmp_path, model, name, layout), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=2), min_size=1, max_size=12),
    parts=st.integers(1, 4),
    most=st.integers(1, 60),
    joint=st.booleans(),
)
def test_each_unit_is_whole_and_one_parts(sizes: list[list[int]], parts: int, most: int, joint: bool) -> None:
    units: list[Unit] = [[PackRow(np.zeros(n, np.int32), np.ones(n, np.bool_)) for n in unit] for unit in sizes]
    found = parts_of(units, parts, most, joint=joint)
    assert len(found) == parts
    assert sorted(place for part in found for micro in part for place in micro) == [*range(len(units))]
    for micro in (micro for part in found for micro in part):
        assert len(micro) <= 1 or sum(sum(sizes[place]) for place in micro) <= most
    if joint:
        assert len({len(part) for part in found}) == 1, "all make as many passes"
    else:
        assert all(micro for part in found for micro in part)
