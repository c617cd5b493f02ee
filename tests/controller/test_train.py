"""Whole runs in every mode, on several architectures, and with a user's own parts."""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from controller_jobs import make_job, make_model, run

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.experience.records.codec import decode_group
from headrace.observe.run_record import RunWatcher
from headrace.store import RunReader, RunStore
from headrace.viewer.terminal.snapshot import take_snapshot

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_job"


def train(job: Path, folder: Path, *overrides: str) -> dict:
    assert main(["train", str(job), *overrides, "--dir", str(folder), "--plain"]) == 0
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "gemma3", "gpt2"])
def test_a_users_own_job(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped example, as its first lines say to run it, with a model of each architecture."""
    config = (EXAMPLE / "grpo.yaml").read_text()
    assert len(config.splitlines()) <= 40
    for path in EXAMPLE.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    make_model(tmp_path / "model", architecture)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "grpo.yaml"]) == 0
    summary = train(Path("grpo.yaml"), Path("run"), "trainer.batches=3")
    assert summary["status"] == "finished"
    assert summary["version"] == 3
    assert summary["mismatch"]["max_abs"] < 0.5
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "checkpoints" / "step_3" / "model")


@pytest.mark.slow
@pytest.mark.copied
def test_the_example_runs_as_its_first_lines_say(tmp_path: Path) -> None:
    """The commands at the head of its config, in a copy of its folder, with nothing added."""
    folder = shutil.copytree(EXAMPLE, tmp_path / "own_job", ignore=shutil.ignore_patterns("model", "run"))
    programs = {"python": "", "headrace": "-m headrace.cli.main "}
    (tmp_path / "bin").mkdir()
    for name, module in programs.items():
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {module}"$@"\n')
        program.chmod(0o755)
    head = itertools.takewhile(lambda line: line.startswith("#"), (folder / "grpo.yaml").read_text().splitlines())
    commands = [line.removeprefix("#   ") for line in head if line.startswith("#   ")]
    assert [command.split()[0] for command in commands] == ["python", "headrace", "headrace"]
    for command in commands:
        done = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert json.loads((folder / "run" / "summary.json").read_text())["status"] == "finished"
    assert "held-out score" in done.stdout


@pytest.mark.parametrize(
    "overrides",
    [
        ["async.mode=sync"],
        ["async.mode=one_step_off"],
        ["async.mode=async", "async.max_staleness=3", "async.swap=keep"],
        ["async.swap=drain"],
        ["async.on_deadline=wait"],
        ["async.on_deadline=drop"],
        ["async.on_deadline=late"],
        ["weights.transport=disk"],
        ["algorithm.updates_per_batch=3"],
        ["algorithm.objective=naive", "algorithm.aggregation=sample_mean", "algorithm.advantage=leave_one_out"],
        ["model.dtype=bfloat16"],
        ["model.gradient_checkpointing=true", "trainer.lr_schedule.kind=cosine"],
        ["rollout.sampling.top_p=0.9", "rollout.sampling.top_k=20", "rollout.sampling.temperature=0.8"],
        ["evaluation.every=2"],
    ],
    ids=lambda overrides: ",".join(part.partition(".")[2] for part in overrides),
)
def test_every_mode_trains_to_the_end_within_its_bound(overrides: list[str], tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    summary = train(job, tmp_path / "run", *overrides)
    assert summary["status"] == "finished"
    assert summary["version"] == 6
    groups = summary["groups"]
    assert groups["issued"] == groups["running"] + groups["ready"] + groups["trained"] + sum(groups["dropped"].values())
    assert groups["trained"] == 12
    assert summary["tokens"]["nonpad_share"] >= 0.98
    bound = {"async.mode=sync": 0, "async.mode=one_step_off": 1, "async.mode=async": 3}.get(overrides[0], 2)
    if overrides != ["async.on_deadline=late"]:
        assert summary["staleness"]["max"] <= bound
    for side in ("trainer_s", "engines_s"):
        # Of a run of a second: its parts are read one after another.
        assert sum(summary["time"][side].values()) == pytest.approx(summary["wall_s"], rel=0.01, abs=0.05)
    assert summary["eval"]["before"] is not None
    assert summary["eval"]["after"] is not None


def test_the_run_goes_as_far_ahead_as_its_engine_has_slots_for(tmp_path: Path) -> None:
    """24 slots are asked for, and the cache has room for 9: a batch of 2, and 3 groups of 3 samples."""
    slot_gib = 96 * 2 * 2 * 2 * 8 * 4 / 2**30
    overrides = ["async.max_staleness=8", "engine.max_concurrent_sequences=24", f"engine.kv_cache_gib={9.5 * slot_gib}"]
    train(make_job(tmp_path / "job"), tmp_path / "run", *overrides, "trainer.batches=12")
    with RunReader(tmp_path / "run") as reader:
        run = RunWatcher(reader).read()
    assert run.ahead == 5
    assert take_snapshot(run).most_groups == 5 + 2
    assert max(batch.running_groups + batch.queue_groups for batch in run.batches) <= 5


def test_on_policy_log_probs_of_engine_and_trainer_agree(tmp_path: Path) -> None:
    summary = train(make_job(tmp_path / "job"), tmp_path / "run", "async.mode=sync")
    assert summary["mismatch"]["max_abs"] <= 1e-4


def test_every_trained_token_carries_log_prob_and_version(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(make_job(tmp_path / "job"), folder, "checkpoint.keep=100")
    with RunReader(folder) as reader:
        digest = reader.config_sha256
    store = RunStore.open(folder, config_sha256=digest, keep_checkpoints=100)
    trained = store.ledger.attempts("trained")
    assert len(trained) == 12
    for row in trained:
        assert row.offset is not None
        group = decode_group(store.journal.read(row.offset))
        for sample in group.samples:
            chosen = sample.loss_mask
            assert (sample.versions[chosen] >= group.start_version).all()
            assert (sample.branches[chosen] == 0).all()
            assert (sample.logprobs[chosen] <= 0).all()
            assert np.isfinite(sample.logprobs).all()
            assert (np.diff(sample.versions[chosen]) >= 0).all(), "a sample's versions only grow"
    store.close()


@pytest.mark.slow
@pytest.mark.copied
def test_the_same_seed_gives_the_same_run_where_nothing_is_concurrent(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    for name in ("a", "b"):
        train(job, tmp_path / name, "async.mode=sync", "runtime.threads=1")
    rewards = []
    for name in ("a", "b"):
        with RunReader(tmp_path / name) as reader:
            rewards.append([row.record["reward_mean"] for row in reader.metrics.read("batch")])
    assert rewards[0] == rewards[1]


FAULTY = """
import os, time
def score(response, row):
    kind = int(row["answer"]) % 5
    if kind == 0:
        raise ValueError("no such answer")
    if kind == 1:
        time.sleep(60)
    if kind == 2:
        return float("nan")
    if kind == 3:
        os._exit(3)
    return sum(map(ord, response)) % 7 / 7
"""


@pytest.mark.slow
@pytest.mark.copied
def test_a_misbehaving_reward_costs_its_samples_and_never_the_run(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", reward__timeout_s=0.3, rollout__max_attempts=1, reward__workers=2)
    (tmp_path / "job" / "reward.py").write_text(FAULTY)
    summary = train(job, tmp_path / "run", "trainer.batches=2")
    assert summary["status"] == "finished"
    failed = summary["samples"]["failed"]
    assert failed.keys() <= {"reward_raised", "reward_timeout", "reward_nan", "reward_died"}
    assert len(failed) >= 2
    assert any(reason.startswith("exhausted (failed: reward_") for reason in summary["groups"]["dropped"])


GUESS = """
class Guess:
    def reset(self, row):
        self.answer = row["answer"]
        return None
    def step(self, action):
        from headrace.rollout.environment import StepResult
        self.turns = getattr(self, "turns", 0) + 1
        done = self.turns == 2
        return StepResult(observation="no", reward=len(action) % 3 / 3 if done else None, done=done)
"""


@pytest.mark.slow
@pytest.mark.copied
def test_an_environment_of_several_turns(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    (tmp_path / "job" / "env.py").write_text(GUESS)
    environment = f"rollout.environment={tmp_path}/job/env.py:Guess"
    summary = train(job, tmp_path / "run", "rollout.workflow=multi_turn", environment, "trainer.batches=2")
    assert summary["status"] == "finished"
    assert summary["samples"]["failed"] == {}


@pytest.mark.slow
@pytest.mark.copied
def test_a_dataset_whose_last_prompts_are_dropped_ends_the_run(tmp_path: Path) -> None:
    """One epoch, and a filter that drops the groups of all prompts but a few."""
    job = make_job(tmp_path / "job", trainer__batches=None)
    (tmp_path / "job" / "filters.py").write_text("def some(group):\n    return int(group.prompt_id) % 5 == 0\n")
    code, out = run("train", job, f"rollout.filters=[{tmp_path}/job/filters.py:some]", "--dir", tmp_path / "run")
    assert code == 0, out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["groups"]["trained"] == 8
    assert summary["groups"]["dropped"] == {"some": 32}


def test_an_evaluation_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", evaluation__timeout_s=1e-6)
    summary = train(job, tmp_path / "run", "trainer.batches=2")
    assert summary["status"] == "finished"
    assert (summary["eval"]["before"], summary["eval"]["after"]) == (None, None)
    with RunReader(tmp_path / "run") as reader:
        kinds = [event.kind for event in reader.events.read()]
    assert kinds.count("evaluation_given_up") == 2


@pytest.mark.slow
@pytest.mark.copied
def test_a_disk_that_fills_ends_the_run_with_one_clear_error(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for the disk: writing past it fails as a full disk does, for this process only."""
    import resource
    import subprocess
    import sys

    job = make_job(tmp_path / "job")
    process = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "train", str(job), "--dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)),
    )
    assert process.returncode == 1, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    assert "headrace: " in process.stderr
    assert str(tmp_path / "run") in process.stderr


ALL_FAIL = {
    "raises": (
        "raise ValueError('no such answer')",
        20,
        "reward_raised: ValueError: no such answer (reward.py, line 2)",
    ),
    "hangs": ("__import__('time').sleep(86400)", 0.3, "reward_timeout: took longer than 0.3 s"),
}


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("does", ALL_FAIL)
@pytest.mark.parametrize("held_out", [True, False])
def test_samples_that_all_fail_end_the_run_after_a_batchs_worth(
    does: str, held_out: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the evaluation before count as well: there are 4, and 6 samples are a batch."""
    changes = {} if held_out else {"data__eval": None}
    body, timeout_s, words = ALL_FAIL[does]
    job = make_job(tmp_path / "job", reward__timeout_s=timeout_s, **changes)
    (tmp_path / "job" / "reward.py").write_text(f"def score(response, row):\n    {body}\n")
    folder = tmp_path / "run"
    assert main(["train", str(job), "--dir", str(folder), "--plain"]) == 1
    told = capsys.readouterr()
    assert f"samples failed, the last one with {words!r}; mend that, and --resume the run" in told.err
    assert "Traceback" not in told.err
    assert "failed_sample  prompt " in told.out
    assert words in told.out, "within a second of the first"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    in_flight = load_config(TrainConfig, job).ahead(slots=8) * 3
    assert summary["samples"]["generated"] <= 6 + in_flight, "a batch's worth, and the groups that ended meanwhile"
    kind, _, detail = words.partition(": ")
    assert summary["samples"]["failure_words"] == {kind: detail}
    assert f"samples failed, the last one with {words!r}" in summary["error"]
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert detail[:20] in shown
    assert f"failed: {summary['error'][:60]}" in shown


FILTER_FAULTS = {
    "raises": ("raise KeyError('x')", "KeyError: 'x' (filters.py, line 2)"),
    "says yes": (
        "return 'yes'",
        "the filter keep returned 'yes' (str); return True to keep the group, or False to drop it",
    ),
}


@pytest.mark.parametrize("does", FILTER_FAULTS)
def test_a_filter_that_always_fails_ends_the_run_with_its_words(
    does: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path / "job", rollout__filters=[f"{tmp_path}/job/filters.py:keep"], data__eval=None)
    body, words = FILTER_FAULTS[does]
    (tmp_path / "job" / "filters.py").write_text(f"def keep(group):\n    {body}\n")
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 1
    told = capsys.readouterr()
    assert f"groups were dropped (filter_error, the last one with {words!r}); mend that" in told.err
    assert "too easy" not in told.err
    assert f"filter_failed  {words}" in told.out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["groups"]["drop_words"] == {"filter_error": words}


TERMS = [
    {"function": "regex", "answer": "[a-m]", "weight": 1.0},
    {"function": "exact", "weight": 0.0},
    {"function": "regex", "answer": "[0-9]", "weight": 0.5},
]


def test_the_record_has_each_term_of_a_reward_and_the_times_of_its_calls(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = make_job(tmp_path / "job", reward={"terms": TERMS}, rollout__filters=[], data__eval=None)
    summary = train(job, folder, "trainer.batches=2")
    with RunReader(folder) as reader:
        records = [row.record for row in reader.metrics.read("batch")]
    for record in records:
        terms = record["reward_terms"]
        assert set(terms) == {"regex#1", "exact", "regex#3"}
        assert terms["regex#1"] + 0.5 * terms["regex#3"] == pytest.approx(record["reward_mean"])
        assert record["failed_samples"] == {}
    assert 0 < records[0]["reward_call_p50_s"] <= records[0]["reward_call_p99_s"]
    assert 0 < summary["reward"]["call_p50_s"] <= summary["reward"]["call_p99_s"]
    for name, ends in summary["reward"]["terms"].items():
        assert ends == {"first": records[0]["reward_terms"][name], "last": records[1]["reward_terms"][name]}
    assert sum(records[-1]["totals"]["reward_calls"].values()) >= 3 * 2 * 6


def test_a_batchs_record_has_what_failed_and_what_was_dropped_with_the_last_reason(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", rollout__prompts_per_batch=4, rollout__max_attempts=1, data__eval=None)
    body = "if int(row['answer']) % 2:\n        raise ValueError('odd')\n    return len(response)"
    (tmp_path / "job" / "reward.py").write_text(f"def score(response, row):\n    {body}\n")
    folder = tmp_path / "run"
    summary = train(job, folder, "trainer.batches=2", "rollout.filters=[]")
    with RunReader(folder) as reader:
        records = [row.record for row in reader.metrics.read("batch")]
    failed = sum(record["failed_samples"].get("reward_raised", 0) for record in records)
    assert 0 < failed <= summary["samples"]["failed"]["reward_raised"]
    reason = "exhausted (failed: reward_raised)"
    assert sum(record["dropped_groups"].get(reason, 0) for record in records) == failed // 3
    assert summary["groups"]["drop_words"][reason] == "reward_raised: ValueError: odd (reward.py, line 3)"


@pytest.mark.slow
@pytest.mark.copied
def test_nothing_to_learn_ends_with_a_reason_and_not_with_a_hang(tmp_path: Path) -> None:
    many = {"rollout__max_drops_per_batch": 1_000_000}
    job = make_job(
        tmp_path / "job", runtime__stall_timeout_s=3, rollout__episode_timeout_s=3, reward__timeout_s=3, **many
    )
    (tmp_path / "job" / "reward.py").write_text("def score(response, row):\n    return 1.0\n")
    code, out = run("train", job, "--dir", tmp_path / "run")
    assert code == 1
    assert "waited 3.0 s for rows of batch 0" in out
    assert "zero_spread" in out
    assert "Traceback" not in out
