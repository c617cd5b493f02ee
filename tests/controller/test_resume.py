"""A run that is killed or told to stop goes on from one commit: nothing lost, trained twice or drawn again."""

import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from controller_jobs import make_job, run, start
from controller_notes import note_stage, notes
from forked import Forked
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.config import TrainConfig, config_sha256, load_config
from headrace.store import RunReader, RunStore

BATCHES = 30


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """One epoch of 40 prompts in batches of 2, less what the filter drops."""
    return make_job(tmp_path / "job", trainer__batches=BATCHES, rollout__sampling__max_new_tokens=24)


def wait_for_version(process: Forked, folder: Path, number: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (folder / "run.db").exists():
            with RunReader(folder) as reader:
                if (reader.version() or (0, 0))[1] >= number:
                    return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError(f"the run did not reach version {number} within {seconds} s")


def attempts(folder: Path) -> list[tuple[int, int, int, str]]:
    connection = sqlite3.connect(folder / "run.db")
    try:
        return connection.execute("SELECT epoch, position, attempt, state FROM attempts").fetchall()
    finally:
        connection.close()


def check_record(folder: Path) -> dict:
    """The law, and no prompt trained twice in an epoch; returns the summary."""
    with RunReader(folder) as reader:
        reader.counts().check()
    trained = Counter((epoch, position) for epoch, position, _, state in attempts(folder) if state == "trained")
    assert not [prompt for prompt, count in trained.items() if count > 1]
    positions = sorted({(epoch, position) for epoch, position, _, _ in attempts(folder)})
    assert positions == [(place // 40, place % 40) for place in range(len(positions))], "a prompt was skipped"
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.slow
@pytest.mark.copied
def test_sigterm_checkpoints_and_resume_goes_on_from_there(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", job, "trainer.batches=100000", "--dir", folder)
    wait_for_version(process, folder, 3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "stopped" in out
    assert "--resume" in out
    stopped_at = check_record(folder)["version"]
    assert (folder / "checkpoints" / f"step_{stopped_at}" / "model" / "config.json").exists()

    last = stopped_at + 6
    resumed = ("train", job, f"trainer.batches={last}", "--dir", folder, "--resume")
    code, out = run(*resumed)
    assert code == 0, out
    summary = check_record(folder)
    assert summary["status"] == "finished"
    assert summary["version"] == last
    with RunReader(folder) as reader:
        numbers = [row.number for row in reader.metrics.read("batch")]
    assert numbers == list(range(1, last + 1)), "every version exactly once"

    code, out = run(*resumed)
    assert code == 0, out
    assert check_record(folder) == summary, "a finished run stays as it is"


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))])
def test_kill_at_any_moment_loses_nothing(job: Path, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "run"
    rng = random.Random(seed)
    process = start("train", job, "--dir", folder)
    wait_for_version(process, folder, rng.randrange(1, 5))
    for _ in range(2):
        time.sleep(rng.random() * 0.5)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        digest = config_sha256(load_config(TrainConfig, job))
        store = RunStore.open(folder, config_sha256=digest)
        finished = [row.key for row in store.ledger.attempts("ready") + store.ledger.attempts("trained")]
        journalled = {row.key: row.offset for row in store.ledger.attempts("ready")}
        store.close()
        with RunReader(folder) as reader:
            reached = (reader.version() or (0, 0))[1]
        process = start("train", job, "--dir", folder, "--resume")
        wait_for_version(process, folder, min(reached + 1, BATCHES - 1))
        with RunReader(folder) as reader:
            states = {row[:3]: row[3] for row in attempts(folder)}
        assert all(states[key] != "running" for key in finished), "a finished group was drawn again"
        assert journalled.keys() <= states.keys()
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    summary = check_record(folder)
    assert summary["status"] == "finished"
    assert summary["version"] == BATCHES


@pytest.mark.slow
@pytest.mark.copied
def test_a_kill_long_after_the_last_commit_can_be_resumed(tmp_path: Path) -> None:
    """More groups come back than a running table ever holds."""
    job = make_job(tmp_path / "job", trainer__batches=18, checkpoint__every=1000)
    folder = tmp_path / "run"
    process = start("train", job, "--dir", folder)
    wait_for_version(process, folder, 12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with RunReader(folder) as reader:
        before = reader.counts()
    assert before.trained >= 24
    code, out = run("train", job, "--dir", folder, "--resume")
    assert code == 0, out
    summary = check_record(folder)
    assert summary["version"] == 18
    generated = summary["samples"]["generated"]
    assert generated < 2 * 18 * 2 * 3, "what was journalled was not generated again"
    groups = summary["groups"]
    assert generated >= 3 * (groups["trained"] + groups["ready"]), "every finished group was counted, killed or not"


@pytest.mark.slow
@pytest.mark.copied
def test_a_resumed_run_may_change_where_it_runs_but_not_what_it_computes(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out = run("train", job, "trainer.batches=2", "--dir", folder)
    assert code == 0, out
    code, out = run(
        "train", job, "trainer.batches=2", "runtime.threads=1", "evaluation.timeout_s=5", "--dir", folder, "--resume"
    )
    assert code == 0, out
    changed = ["trainer.batches=2", "trainer.max_grad_norm=2", "rollout.filters=[zero_spread]", "runtime.threads=1"]
    code, out = run("train", job, *changed, "--dir", folder, "--resume")
    assert code == 2
    assert out.splitlines() == [
        f"headrace: {folder} was made with another config",
        '  - rollout.filters: was null, now ["zero_spread"] (the groups so far were drawn by it)',
        "  - trainer.max_grad_norm: was 1.0, now 2.0 (the batches so far were trained by it)",
        f"continue it with its own, {folder}/config.yaml, of which docs/run.md says what may change; or begin another "
        "from its weights with --dir OTHER --from RUN; or begin again with --fresh",
    ]


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once_and_the_run_can_be_resumed(
    number: signal.Signals, tmp_path: Path
) -> None:
    job = make_job(tmp_path / "job", trainer__batches=100_000)
    folder = tmp_path / "run"
    process = start("train", job, "--dir", folder)
    wait_for_version(process, folder, 2)
    process.send_signal(number)
    time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    store = RunStore.open(folder, config_sha256=config_sha256(load_config(TrainConfig, job)))
    restored = store.checkpoints.restore()
    store.ledger.counts().check()
    assert restored.number >= 0
    store.close()


@pytest.mark.slow
@pytest.mark.copied
def test_a_stop_right_after_a_resume_shows_the_version_that_was_restored(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", job, "trainer.batches=100000", "--dir", folder)
    wait_for_version(process, folder, 5)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    store = RunStore.open(
        folder, config_sha256=config_sha256(load_config(TrainConfig, job, ["trainer.batches=100000"]))
    )
    restored = store.checkpoints.restore()
    store.close()
    with RunReader(folder) as reader:
        assert reader.version() == (restored.branch, restored.number)


@pytest.mark.slow
@pytest.mark.copied
def test_a_damaged_checkpoint_is_refused_by_name(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", job, "trainer.batches=100000", "--dir", folder)
    wait_for_version(process, folder, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    with RunReader(folder) as reader:
        _, number = reader.version()
    weights = folder / "checkpoints" / f"step_{number}" / "trainer.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    code, out = run("train", job, "trainer.batches=100000", "--dir", folder, "--resume")
    assert code == 1
    assert str(weights) in out
    assert "Traceback" not in out


@pytest.mark.slow
@pytest.mark.copied
def test_a_flipped_byte_in_the_journal_costs_its_group_and_not_the_run(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", trainer__batches=100_000, checkpoint__every=100_000)
    folder = tmp_path / "run"
    process = start("train", job, "--dir", folder)
    wait_for_version(process, folder, 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with RunReader(folder) as reader:
        _, reached = reader.version()
    store = RunStore.open(folder, config_sha256=config_sha256(load_config(TrainConfig, job)))
    (row, *_) = store.ledger.attempts("trained")  # after the last commit, so it comes back
    assert row.offset is not None
    file, place = store.journal.path(row.offset.segment, row.offset.writer), row.offset.offset
    store.close()
    data = bytearray(file.read_bytes())
    data[place + 50] ^= 1
    file.write_bytes(data)
    last = f"trainer.batches={reached + 2}"
    assert main(["train", str(job), last, "--dir", str(folder), "--resume", "--plain"]) == 0
    assert check_record(folder)["status"] == "finished"
    with RunReader(folder) as reader:
        (told,) = [event.data for event in reader.events.read() if event.kind == "reissued"]
    epoch, position, attempt = row.key
    group = f"{epoch}/{position}#{attempt}"
    message = f"{file} is damaged at byte {place}: group {group} is generated again"
    assert told == {"prompt": row.prompt_id, "message": message}


@pytest.mark.slow
@pytest.mark.copied
def test_a_second_process_is_refused_while_the_first_runs(job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start("train", job, "trainer.batches=100000", "--dir", folder)
    try:
        wait_for_version(process, folder, 1)
        code, out = run("train", job, "trainer.batches=100000", "--dir", folder, "--resume")
        assert code == 2
        assert f"{process.pid}" in out
        code, out = run("inspect", folder, "--json")
        assert code == 0
        assert json.loads(out)["status"] == "running"
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


HELD = 4
"""Batches that a held run trains."""


def ppo_job(folder: Path, place: str, steps: int, *, held: int = HELD, **algorithm: object) -> Path:
    """On-policy PPO, one group a batch and one thread, so that nothing depends on what ends first; its reward waits
    while `folder/hold` is there and the batch is `held`. `place`: of the KL. `steps`: of both, on a batch."""
    kl = {"target": 100.0, "horizon": 40, "place": place}
    job = make_job(
        folder,
        data__eval=None,
        data__shuffle=False,
        async__mode="sync",
        rollout__prompts_per_batch=1,
        rollout__samples_per_prompt=4,
        rollout__filters=[],
        algorithm={
            "recipe": "ppo",
            "updates_per_batch": steps,
            **algorithm,
            "kl": {**kl, **algorithm.get("kl", {})},  # type: ignore[dict-item]
        },
        critic={"optimizer": {"lr": 1e-3}, "updates_per_batch": steps},
        trainer__batches=HELD + 2,
        reward__timeout_s=60,
        runtime__threads=1,
    )
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    (folder / "train.jsonl").write_text("".join(json.dumps({**row, "at": i}) + "\n" for i, row in enumerate(rows)))
    (folder / "reward.py").write_text(
        "import os, time\n"
        "def score(response, row):\n"
        f"    while row['at'] == {held} and os.path.exists({str(folder / 'hold')!r}):\n"
        "        time.sleep(0.01)\n"
        "    return sum(map(ord, response)) % 7 / 7\n"
    )
    return job


def wait_for_commit(process: Forked, folder: Path, number: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()[0]
        if (folder / "run.db").exists():
            connection = sqlite3.connect(folder / "run.db")
            try:
                if connection.execute("SELECT max(number) FROM checkpoints").fetchone()[0] == number:
                    return
            except sqlite3.OperationalError:
                pass  # the tables are being made
            finally:
                connection.close()
        time.sleep(0.02)
    raise AssertionError(f"version {number} was not committed within {seconds} s")


def committed(job: Path, folder: Path) -> tuple[int, dict[str, float], dict[str, torch.Tensor]]:
    """The last commit of a run that has ended: its number, its state, and the tensors of policy and critic."""
    store = RunStore.open(folder, config_sha256=config_sha256(load_config(TrainConfig, job)))
    restored = store.checkpoints.restore()
    store.close()
    assert restored.path is not None
    tensors = {
        f"{part}/{name}": tensor
        for part in (".", "critic")
        for name, tensor in load_file(restored.path / part / "trainer.safetensors").items()
    }
    return restored.number, restored.state, tensors


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(("place", "steps"), [pytest.param("reward", 1, marks=pytest.mark.soak), ("loss", 2)])
def test_ppo_goes_on_from_the_commit_as_if_nothing_had_been(tmp_path: Path, place: str, steps: int) -> None:
    """Weights and optimisers of policy and critic, and the KL coefficient, come back together; `inspect` has all of the
    curve."""
    job = ppo_job(tmp_path / "job", place, steps)
    code, out = run("train", job, "--dir", tmp_path / "whole")
    assert code == 0, out

    (tmp_path / "job" / "hold").touch()
    folder = tmp_path / "killed"
    process = start("train", job, "--dir", folder)
    wait_for_commit(process, folder, HELD)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "job" / "hold").unlink()
    code, out = run("train", job, "--dir", folder, "--resume")
    assert code == 0, out

    number, state, tensors = committed(job, tmp_path / "whole")
    other_number, other_state, others = committed(job, folder)
    assert number == other_number == HELD + 2
    assert other_state == state
    assert state["kl_coefficient"] == pytest.approx(0.02 * (1 - 0.2 * 4 / 40) ** number), "it fell with every batch"
    assert tensors.keys() == others.keys()
    for part in (".", "critic"):
        assert any(tensor.any() for name, tensor in tensors.items() if name.startswith(f"{part}/exp_avg_sq."))
    different = [name for name, tensor in tensors.items() if not torch.equal(tensor, others[name])]
    assert not different
    code, out = run("inspect", folder, "--batches")
    assert code == 0, out
    batches = [json.loads(line) for line in out.splitlines()]
    assert [batch["batch"] for batch in batches] == list(range(number))
    assert batches[-1]["kl_coefficient"] == pytest.approx(state["kl_coefficient"] / (1 - 0.2 * 4 / 40))


@pytest.mark.slow
@pytest.mark.copied
def test_columns_that_models_fill_are_filled_again_after_a_kill(tmp_path: Path) -> None:
    """A batch that was trained after the commit comes from the journal, which has no column of a critic or a proximal
    policy: the restored weights give the values, also those of where samples were cut off, that they gave before."""

    def job(name: str) -> Path:
        stage = note_stage(tmp_path / name, "values", "last_value", "proximal")
        return ppo_job(
            tmp_path / name, "reward", 2, held=HELD + 1, truncated="bootstrap", kl={"of": "proximal"}, stages=[stage]
        )

    whole = job("whole")
    code, out = run("train", whole, "--dir", tmp_path / "whole" / "run")
    assert code == 0, out

    killed = job("killed")
    (tmp_path / "killed" / "hold").touch()
    folder = tmp_path / "killed" / "run"
    process = start("train", killed, "--dir", folder)
    wait_for_version(process, folder, HELD + 1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    (tmp_path / "killed" / "hold").unlink()
    code, out = run("train", killed, "--dir", folder, "--resume")
    assert code == 0, out

    seen = [note for note in notes(tmp_path / "whole") if note.batch == HELD]
    again = [note for note in notes(tmp_path / "killed") if note.batch == HELD]
    assert len(seen) == 4
    assert again == [*seen, *seen], "once before the kill, and once after it"
    assert any(note.truncated and abs(note.others["last_value"]) > 1e-3 for note in seen)
    number, state, tensors = committed(whole, tmp_path / "whole" / "run")
    other_number, other_state, others = committed(killed, folder)
    assert (number, state) == (other_number, other_state)
    assert number == HELD + 2
    different = [name for name, tensor in tensors.items() if not torch.equal(tensor, others[name])]
    assert not different
