"""Training on the record of a run: the same batches, rewards and log-probs, without an engine."""

import json
import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest
import torch
import yaml
from controller_jobs import make_job, make_model, start
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.config import TrainConfig
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.controller.planning.replay import find_record
from headrace.store import RunReader


def train(job: Path, folder: Path, *more: str) -> int:
    return main(["train", str(job), "--dir", str(folder), "--plain", *more])


def recorded(folder: Path, **changes: object) -> Path:
    settings = {"data__eval": None, "record": {"journal": "all"}, "trainer__batches": 4, "checkpoint__every": 1}
    return make_job(folder, **{**settings, **changes})


def batches(folder: Path) -> list[dict]:
    with RunReader(folder) as run:
        run.counts().check()
        return [row.record for row in run.metrics.read("batch")]


def weights(folder: Path, number: int) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"step_{number}" / "trainer.safetensors")


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], tensor) for name, tensor in other.items())


@pytest.mark.slow
@pytest.mark.copied
def test_the_record_of_an_on_policy_run_gives_its_weights_again_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The journal is needed, the dataset and the reward are not."""
    job = recorded(tmp_path / "job", async__mode="sync")
    run = tmp_path / "run"
    assert train(job, run) == 0
    (tmp_path / "job" / "train.jsonl").unlink()
    (tmp_path / "job" / "reward.py").unlink()
    capsys.readouterr()
    own = run / "config.yaml"
    assert train(own, tmp_path / "again", f"data.rollouts={run}") == 0
    trained = json.loads((run / "summary.json").read_text())["groups"]["trained"]
    told = f"data.rollouts: {run} holds {trained} of the {trained} groups that it was trained on, in 4 whole batches"
    assert told in capsys.readouterr().err
    assert are_equal(weights(run, 4), weights(tmp_path / "again", 4))
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["samples"] == {**summary["samples"], "generated": 0, "trained": 3 * trained}
    assert summary["time"]["engines_s"] == {}
    for before, now in zip(batches(run), batches(tmp_path / "again"), strict=True):
        same = ("groups", "samples", "reward_mean", "staleness", "loss", "grad_norm", "drift_mean_abs")
        assert [before[name] for name in same] == [now[name] for name in same]
        assert now["mismatch_tokens"] == 0, "no token is known to be of the trainer's own weights"
    with RunReader(tmp_path / "again") as reader:
        (event,) = [event.data for event in reader.events.read() if event.kind == "replays"]
    assert event == {**event, "run": str(run), "groups": trained, "batches": 4, "max_staleness": 0}


@pytest.mark.slow
@pytest.mark.copied
def test_a_record_is_trained_on_by_another_loss_in_several_passes(tmp_path: Path) -> None:
    job = recorded(tmp_path / "job", async__mode="sync")
    run, own = tmp_path / "run", tmp_path / "run" / "config.yaml"
    assert train(job, run) == 0
    other = ["algorithm.loss=cispo", "algorithm.epochs_per_batch=2", "trainer.batches=null", "trainer.epochs=2"]
    assert train(own, tmp_path / "other", f"data.rollouts={run}", *other) == 0
    passes = batches(tmp_path / "other")
    assert [batch["reward_mean"] for batch in passes] == 2 * [batch["reward_mean"] for batch in batches(run)]
    assert not are_equal(weights(run, 4), weights(tmp_path / "other", 8))
    assert train(own, tmp_path / "other", f"data.rollouts={run}", *other, "trainer.epochs=3", "--resume") == 0
    assert len(batches(tmp_path / "other")) == 12


@pytest.mark.slow
@pytest.mark.copied
def test_ages_are_those_of_the_record_also_where_its_first_batches_are_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that kept what it needed: whole batches only, each with the staleness that it had."""
    job = recorded(tmp_path / "job", trainer__batches=4)
    run = tmp_path / "run"
    assert train(job, run) == 0
    connection = sqlite3.connect(run / "run.db")  # as if the segments of what came before had gone
    connection.execute("UPDATE attempts SET segment = 99 WHERE batch = 0")
    connection.execute(
        "UPDATE attempts SET segment = 99 WHERE sequence = (SELECT min(sequence) FROM attempts WHERE batch = 1)"
    )
    connection.commit()
    connection.close()
    capsys.readouterr()
    assert train(run / "config.yaml", tmp_path / "again", f"data.rollouts={run}", "trainer.batches=null") == 0
    told = "holds 4 of the 8 groups that it was trained on, in 2 whole batches, 1 of incomplete batches left out"
    assert told in capsys.readouterr().err
    before, now = batches(run)[2:], batches(tmp_path / "again")
    assert [batch["staleness"] for batch in now] == [batch["staleness"] for batch in before]
    assert any(int(age) > 0 for batch in now for age in batch["staleness"])
    assert [batch["reward_mean"] for batch in now] == pytest.approx([batch["reward_mean"] for batch in before])


def test_what_does_not_hold_for_the_record_is_refused_by_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = recorded(tmp_path / "job", trainer__batches=1)
    run = tmp_path / "run"
    assert train(job, run) == 0

    def refused(*more: str) -> list[str]:
        capsys.readouterr()
        assert train(run / "config.yaml", tmp_path / "new", f"data.rollouts={run}", *more) == 2
        assert not (tmp_path / "new").exists()
        return capsys.readouterr().err.splitlines()

    changed = ["rollout.sampling.temperature=0.5", "rollout.prompts_per_batch=4", "reward.function=exact"]
    assert refused(*changed) == [
        f"headrace: data.rollouts: {run} was recorded with other settings",
        f'  - reward.function: was "{tmp_path}/job/reward.py:score", now "exact" (rewards are those of the record)',
        "  - rollout.prompts_per_batch: was 2, now 4 (batches are as they were recorded)",
        "  - rollout.sampling.temperature: was 1.0, now 0.5 (the recorded log-probs are under it)",
        f"give its own, as {run}/config.yaml has them, or generate anew without data.rollouts",
    ]
    plain = yaml.safe_load((run / "config.yaml").read_text())
    del plain["reward"]
    plain["data"]["rollouts"] = str(run)
    config, _ = find_record(TrainConfig.model_validate(plain))
    assert config.reward.function == f"{tmp_path}/job/reward.py:score", "left out, it is the record's"
    plan = make_plan(config)
    assert not plan.needs_engine
    assert not [use for use in plan.memory.uses if use.startswith("engine")]
    assert "1 whole batches" in describe_plan(plan)
    (line,) = refused("engine.max_context=11")
    assert "tokens, and the context holds 11; train a model with room for it, or raise engine.max_context" in line
    assert train(run / "config.yaml", run, f"data.rollouts={run}", "--fresh") == 2
    assert "which --fresh would erase" in capsys.readouterr().err
    for segment in (run / "journal").iterdir():
        segment.unlink()
    (line,) = refused()
    assert f"the journal of {run} holds no whole batch of the 1 that it committed; record one with" in line


@pytest.mark.slow
@pytest.mark.copied
def test_with_held_out_prompts_an_engine_answers_them(tmp_path: Path) -> None:
    job = recorded(tmp_path / "job", trainer__batches=2)
    run = tmp_path / "run"
    assert train(job, run) == 0
    held_out = f"data.eval={tmp_path / 'job' / 'eval.jsonl'}"
    assert train(run / "config.yaml", tmp_path / "again", f"data.rollouts={run}", held_out, "evaluation.every=1") == 0
    with RunReader(tmp_path / "again") as reader:
        numbers = [row.number for row in reader.metrics.read("eval")]
    assert numbers[0] == 0
    assert numbers[-1] == 2
    summary = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert summary["tokens"]["generated"] > 0
    assert summary["samples"]["generated"] == 0


@pytest.mark.slow
@pytest.mark.copied
def test_ppo_with_a_critic_learns_from_a_record(tmp_path: Path) -> None:
    job = recorded(tmp_path / "job", trainer__batches=2, rollout__sampling={"top_k": 5, "max_new_tokens": 8})
    run = tmp_path / "run"
    assert train(job, run) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["algorithm"] = {"recipe": "ppo", "updates_per_batch": 2}
    (tmp_path / "ppo.yaml").write_text(yaml.safe_dump(config))
    assert train(tmp_path / "ppo.yaml", tmp_path / "again", f"data.rollouts={run}") == 0
    found = batches(tmp_path / "again")
    assert [batch["critic_loss"] is not None for batch in found] == [True, True]
    assert 0 < found[0]["kept_mass"] < 1, "the kept sets came along"


@pytest.mark.slow
@pytest.mark.copied
def test_a_reward_models_part_is_worked_out_anew(tmp_path: Path) -> None:
    """The record has what the reward was before it; trained on, it comes to the same."""
    pairs = [{"prompt": f"{a}+{a}=", "chosen": "aaa", "rejected": "ZZZ"} for a in range(8)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    rm = {
        "model": {"path": str(make_model(tmp_path / "base"))},
        "data": {"train": str(tmp_path / "pairs.jsonl")},
        "trainer": {"pairs_per_batch": 4, "steps": 6, "optimizer": {"lr": 3e-3}},
    }
    (tmp_path / "rm.yaml").write_text(yaml.safe_dump(rm))
    assert main(["rm", str(tmp_path / "rm.yaml"), "--dir", str(tmp_path / "rm")]) == 0
    reward = {"function": f"{tmp_path}/job/reward.py:score", "model": {"path": str(tmp_path / "rm" / "model")}}
    job = recorded(tmp_path / "job", async__mode="sync", trainer__batches=2, reward=reward)
    run, only = tmp_path / "run", tmp_path / "only"
    assert train(job, run) == 0
    assert train(run / "config.yaml", tmp_path / "again", f"data.rollouts={run}") == 0
    assert are_equal(weights(run, 2), weights(tmp_path / "again", 2))
    assert "model" in batches(tmp_path / "again")[0]["reward_terms"]

    assert train(job, only, "--rollouts-only") == 0
    assert train(job, tmp_path / "later", f"data.rollouts={only}") == 0
    rewards = [[batch["reward_mean"] for batch in batches(folder)] for folder in (only, tmp_path / "later")]
    assert rewards[0] == pytest.approx(rewards[1])


@pytest.mark.slow
@pytest.mark.copied
def test_a_kill_in_the_midst_of_a_record_loses_nothing(tmp_path: Path) -> None:
    job = recorded(tmp_path / "job", async__mode="sync", trainer__batches=12)
    run, killed = tmp_path / "run", tmp_path / "killed"
    assert train(job, run) == 0
    more = [f"data.rollouts={run}", "trainer.batches=24", "checkpoint.every=5"]
    assert train(run / "config.yaml", tmp_path / "whole", *more) == 0
    process = start("train", run / "config.yaml", "--dir", killed, *more)
    while process.poll() is None:
        if (killed / "run.db").exists():
            with RunReader(killed) as reader:
                if (reader.version() or (0, 0))[1] >= 7:
                    break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert train(run / "config.yaml", killed, *more, "--resume") == 0
    assert are_equal(weights(tmp_path / "whole", 24), weights(killed, 24))
    shutil.rmtree(run / "journal")
    assert train(tmp_path / "whole" / "config.yaml", killed, "trainer.batches=25", "--resume") == 2
