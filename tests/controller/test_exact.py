"""`sync`, killed and resumed: given the same rollouts, weights are equal to the last bit, wherever the kill falls."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from controller_jobs import make_job, run, start
from forked import Forked
from safetensors.torch import load_file

from headrace.config import TrainConfig, config_sha256, load_config
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group
from headrace.store import RunReader, RunStore

pytestmark = [pytest.mark.slow, pytest.mark.copied, pytest.mark.timeout(900)]
LAST = 3
"""Number of the last batch."""
LOSS = """
import os, time
from headrace.algorithms.losses import clipped_surrogate

HERE = os.path.dirname(os.path.abspath(__file__))
calls = {}

def loss(logprobs, proximal, advantages, mask, sample_index, batch):
    number = int(batch[0])
    calls[number] = calls.get(number, 0) + 1
    while True:  # while `hold` says so: BATCH CALL
        try:
            with open(os.path.join(HERE, "hold")) as hold:
                held = [int(word) for word in hold.read().split()]
        except FileNotFoundError:
            break
        if held != [number, calls[number]]:
            break
        open(os.path.join(HERE, "held"), "w").close()
        time.sleep(0.01)
    return clipped_surrogate(logprobs, proximal, advantages, mask, clip_low=0.2, clip_high=0.2)
"""
REWARD = """
import time
def score(response, row):
    time.sleep((2 - row["at"] % 3) * 0.1)
    return sum(map(ord, response)) % 7 / 7
"""
"""The first prompts of a batch come last."""


def make_held_job(folder: Path, **changes: object) -> Path:
    """A job whose loss waits in the call that `folder/hold` names."""
    algorithm = {"loss": f"{folder}/loss.py:loss", "loss_reads": ["batch"], **changes.pop("algorithm", {})}  # type: ignore[dict-item]
    job = make_job(
        folder,
        **{
            "data__eval": None,
            "data__shuffle": False,
            "async__mode": "sync",
            "algorithm": algorithm,
            "rollout__prompts_per_batch": 3,
            "rollout__samples_per_prompt": 4,
            "rollout__filters": [],
            "rollout__sampling__max_new_tokens": 16,
            "reward__workers": 12,
            "reward__trusted": True,
            "trainer__batches": LAST + 1,
            "trainer__max_tokens_per_microbatch": 64,
            "checkpoint__every": 2,
            "runtime__threads": 1,
            **changes,
        },
    )
    (folder / "loss.py").write_text(LOSS)
    (folder / "reward.py").write_text(REWARD)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    (folder / "train.jsonl").write_text("".join(json.dumps({**row, "at": i}) + "\n" for i, row in enumerate(rows)))
    return job


def hold(job: Path, batch: int, call: int) -> None:
    (job.parent / "held").unlink(missing_ok=True)
    (job.parent / "hold").write_text(f"{batch} {call}")


def wait_until_held(process: Forked, job: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not (job.parent / "held").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "the loss was not called so often"
        time.sleep(0.01)


def killed_at(job: Path, folder: Path, batch: int, call: int) -> None:
    """Go on with the run in `folder`, and kill it in that call of the loss."""
    hold(job, batch, call)
    process = start("train", job, "--dir", folder, "--resume")
    try:
        wait_until_held(process, job)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    (job.parent / "hold").unlink()


def committed(job: Path, folder: Path) -> dict[str, object]:
    """All that the run's last commit holds: tensors by file and name, small files whole, and its state."""
    store = RunStore.open(folder, config_sha256=config_sha256(load_config(TrainConfig, job)))
    restored = store.checkpoints.restore()
    store.close()
    assert restored.path is not None
    assert restored.number == LAST + 1
    held: dict[str, object] = {"state": restored.state}
    for file in sorted(restored.path.rglob("*")):
        name = str(file.relative_to(restored.path))
        if file.suffix == ".safetensors":
            held |= {f"{name}: {key}": tensor for key, tensor in load_file(file).items()}
        elif file.name == "trainer.json":
            held[name] = json.loads(file.read_text())
    return held


def groups(job: Path, folder: Path) -> dict[tuple[int, int, int], Group]:
    store = RunStore.open(folder, config_sha256=config_sha256(load_config(TrainConfig, job)))
    rows = store.ledger.attempts("trained")
    found = {row.key: decode_group(store.journal.read(row.offset)) for row in rows if row.offset is not None}
    store.close()
    return found


def different(one: dict[str, object], other: dict[str, object]) -> list[str]:
    assert one.keys() == other.keys()

    def equal(a: object, b: object) -> bool:
        return torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a == b

    return [name for name in one if not equal(one[name], other[name])]


def check_kills(job: Path, tmp_path: Path, first: tuple[int, int], *kills: tuple[int, int]) -> dict[str, object]:
    """Run undisturbed, with a copy of its folder made in loss call `first`, as a kill would leave it; have the copy go
    on, killed at each of `kills`, to its end. Both must hold the same."""
    whole, copy = tmp_path / "whole", tmp_path / "killed"
    hold(job, *first)
    process = start("train", job, "--dir", whole)
    wait_until_held(process, job)
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("*.sock"))
    (job.parent / "hold").unlink()
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    for batch, call in kills:
        killed_at(job, copy, batch, call)
    code, out = run("train", job, "--dir", copy, "--resume", timeout=240)
    assert code == 0, out
    expected = committed(job, whole)
    assert different(expected, committed(job, copy)) == []
    return expected


def batches(folder: Path) -> list[dict]:
    with RunReader(folder) as reader:
        return [row.record for row in reader.metrics.read("batch")]


def test_one_step_a_batch(tmp_path: Path) -> None:
    """Killed between two micro-batches; on several threads."""
    job = make_held_job(tmp_path / "job", runtime__threads=2)
    check_kills(job, tmp_path, (LAST, 2), (LAST, 3), (LAST, 1))


def test_epochs_and_updates_of_actor_and_critic(tmp_path: Path) -> None:
    """Killed in the middle of the epochs over the last batch, and of one whose groups are all journalled, far from the
    last commit: with a moving KL coefficient, a reference that follows the policy, and whitening over the batch."""
    job = make_held_job(
        tmp_path / "job",
        algorithm={
            "recipe": "ppo",
            "epochs_per_batch": 3,
            "updates_per_batch": 2,
            "kl": {"target": 100.0, "horizon": 100, "place": "loss", "estimator": "k3"},
        },
        critic={"optimizer": {"lr": 1e-3}, "updates_per_batch": 2, "max_tokens_per_microbatch": 64},
        reference={"refresh_every": 2, "max_tokens_per_microbatch": 64},
        trainer__lr_schedule={"kind": "linear"},
        checkpoint__every=1000,
    )
    held = check_kills(job, tmp_path, (LAST, 7), (1, 5), (LAST, 11))
    for name in ("trainer.json", "critic/trainer.json"):
        assert held[name]["step_count"] == (LAST + 1) * 3 * 2  # type: ignore[index]
    assert len(batches(tmp_path / "killed")[-1]["epochs"]) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {
            "algorithm": {"epochs_per_batch": 2, "proximal": "loglinear", "kl": {"coefficient": 0.1}},
            "reference": {"placement": "hybrid", "refresh_every": 1},
        },
        pytest.param(
            {"algorithm": {"updates_per_batch": 2, "objective": "naive"}, "model": {"dtype": "bfloat16"}},
            marks=pytest.mark.soak,
        ),
        pytest.param(
            {"rollout__oversample": 1.7, "algorithm": {"advantage": "batch_normalized"}}, marks=pytest.mark.soak
        ),
    ],
    ids=["hybrid reference", "bfloat16", "over-sampling"],
)
def test_other_ways_to_train(tmp_path: Path, changes: dict[str, object]) -> None:
    model = changes.pop("model", {})
    job = make_held_job(tmp_path / "job", **changes, **{f"model__{key}": value for key, value in model.items()})  # type: ignore[attr-defined]
    check_kills(job, tmp_path, (LAST, 2), (LAST, 3))


def test_killed_again_and_again_at_moments_of_all_kinds(tmp_path: Path) -> None:
    """Wherever these kills fall: while the models are loaded, in a pass, between two steps, or as a version or a
    checkpoint is made."""
    job = make_held_job(tmp_path / "job", algorithm={"epochs_per_batch": 2, "updates_per_batch": 2})
    whole, copy = tmp_path / "whole", tmp_path / "killed"
    hold(job, LAST, 1)
    process = start("train", job, "checkpoint.every=1000", "--dir", whole)
    wait_until_held(process, job)
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("*.sock"))
    (job.parent / "hold").unlink()
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    delays = np.random.default_rng(0).random(5)
    for place, delay in enumerate(delays):
        process = start("train", job, f"checkpoint.every={1 if place else 1000}", "--dir", copy, "--resume")
        begun = len(started(copy))
        while process.poll() is None and len(started(copy)) == begun:
            time.sleep(0.005)
        time.sleep(delay)
        process.kill()
        process.communicate()
    code, out = run("train", job, "--dir", copy, "--resume", timeout=240)
    assert code == 0, out
    assert different(committed(job, whole), committed(job, copy)) == []


def started(folder: Path) -> list[object]:
    with RunReader(folder) as reader:
        return [event for event in reader.events.read() if event.kind == "started"]


@pytest.mark.parametrize(
    ("call", "version"),
    [pytest.param(2, LAST, marks=pytest.mark.soak), (7, LAST + 1)],
    ids=["first step", "later epoch"],
)
def test_told_to_stop_in_the_middle_of_a_batch(tmp_path: Path, call: int, version: int) -> None:
    """Before its first step the batch is given up, without a trace; after it, it is trained to its end."""
    job = make_held_job(
        tmp_path / "job",
        algorithm={"epochs_per_batch": 3},
        trainer__max_tokens_per_microbatch=100,
        checkpoint__every=1000,
    )
    whole, copy = tmp_path / "whole", tmp_path / "stopped"
    hold(job, LAST, call)
    process = start("train", job, "--dir", whole)
    wait_until_held(process, job)
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("*.sock"))
    (job.parent / "hold").unlink()
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    hold(job, LAST, call)
    process = start("train", job, "--dir", copy, "--resume")
    wait_until_held(process, job)
    process.send_signal(signal.SIGTERM)
    end = time.monotonic() + 60
    while "told to stop" not in (line := process.stdout.readline()):  # type: ignore[union-attr]
        assert time.monotonic() < end, line
    (job.parent / "hold").unlink()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    with RunReader(copy) as reader:
        assert (reader.version() or (0, 0))[1] == version
    code, out = run("train", job, "--dir", copy, "--resume", timeout=240)
    assert code == 0, out
    assert different(committed(job, whole), committed(job, copy)) == []


def test_groups_that_are_generated_again_are_the_same_within_rounding(tmp_path: Path) -> None:
    """A kill while some groups of the batch still run: what is in the journal stays as it is; the others get the same
    tokens and, within 1e-5, the same log-probs."""
    folder = tmp_path / "job"
    job = make_held_job(folder, reward__timeout_s=60)
    last = [3 * LAST, 3 * LAST + 1, 3 * LAST + 2]
    (folder / "reward.py").write_text(
        "import os, time\n"
        "def score(response, row):\n"
        f"    while row['at'] in {last[:2]} and os.path.exists({str(folder / 'hold')!r}):\n"
        "        time.sleep(0.01)\n"
        "    return sum(map(ord, response)) % 7 / 7\n"
    )
    whole, copy = tmp_path / "whole", tmp_path / "killed"
    (folder / "hold").write_text("-1 -1")
    process = start("train", job, "--dir", whole)
    end = time.monotonic() + 120
    while not journalled(job, whole, (0, last[2], 0)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)
    shutil.copytree(whole, copy, ignore=shutil.ignore_patterns("*.sock"))
    (folder / "hold").unlink()
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0, out
    code, out = run("train", job, "--dir", copy, "--resume", timeout=240)
    assert code == 0, out
    before, after = groups(job, whole), groups(job, copy)
    assert before.keys() == after.keys()
    again = 0
    for key, group in before.items():
        for sample, other in zip(group.samples, after[key].samples, strict=True):
            assert np.array_equal(sample.tokens, other.tokens)
            assert np.abs(sample.logprobs - other.logprobs).max() <= 1e-5
            again += bool((other.branches == 1).any())
            if key[1] not in last[:2]:
                assert np.array_equal(sample.logprobs, other.logprobs)
                assert np.array_equal(sample.branches, other.branches)
    assert again == 2 * 4, "the two groups that were not finished"
    one, other = committed(job, whole), committed(job, copy)
    for name, tensor in one.items():
        if "master" in name:
            torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=0)


def journalled(job: Path, folder: Path, key: tuple[int, int, int]) -> bool:
    if not (folder / "run.db").exists():
        return False
    import sqlite3

    connection = sqlite3.connect(folder / "run.db")
    try:
        rows = connection.execute(
            "SELECT state FROM attempts WHERE epoch = ? AND position = ? AND attempt = ?", key
        ).fetchall()
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return rows == [("ready",)]
