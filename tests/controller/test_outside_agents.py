"""Runs whose episodes agents outside take: processes that know nothing but an address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, run, start

from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Sample
from headrace.store import RunReader
from headrace.store.journal import Journal

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)
REWARD = """
def score(response, row, messages):
    assert messages[-1] == {"role": "assistant", "content": response}
    return len(messages) + sum(map(ord, response)) % 7 / 7
"""
AGENT = Path(__file__).parents[1] / "helpers" / "outside_agent.py"


class Outside:
    """A job, and the agents that play it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.notes = folder / "notes.jsonl"
        self.agents: list[subprocess.Popen[bytes]] = []

    def job(self, **changes: object) -> Path:
        job = make_job(self.folder / "job", **{"record__journal": "all", "data__eval": None, **changes})
        (job.parent / "chat.jinja").write_text(TEMPLATE)
        return job

    def arguments(self, job: Path) -> tuple[str, ...]:
        template = f"data.template.file={job.parent}/chat.jinja"
        return "train", str(job), "rollout.agent={outside: true}", template, "--dir", str(self.run)

    def agent(self, how: str = "well") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", str(AGENT), str(self.run / "gateway.json"), how, str(self.notes)]
        self.agents.append(subprocess.Popen(command))
        return self.agents[-1]

    def noted(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []

    def samples(self) -> list[Sample]:
        journal = Journal(self.run / "journal")
        writers = sorted({segment.writer for segment in journal.segments()})
        groups = [decode_group(journal.read(each.place)) for writer in writers for each in journal.written(writer)]
        return [sample for group in groups for sample in group.samples]

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        with RunReader(self.run) as reader:
            reader.counts().check()
            return [(event.kind, event.data) for event in reader.events.read()]

    def failures(self) -> list[str]:
        return [str(data["message"]) for kind, data in self.events() if kind == "failed_sample"]


@pytest.fixture
def outside(tmp_path: Path) -> Generator[Outside]:
    made = Outside(tmp_path)
    yield made
    for agent in made.agents:
        agent.kill()
        agent.wait()


@pytest.mark.slow
def test_two_agents_play_a_run_and_its_evaluations(outside: Outside) -> None:
    job = outside.job(data__eval=None)
    evaluated = f"data.eval={job.parent}/eval.jsonl"
    agents = [outside.agent() for _ in range(2)]
    code, out = run(*outside.arguments(job), evaluated)
    assert code == 0, out
    assert [agent.wait(20) for agent in agents] == [0, 0], "they are told that the run is over"
    assert not (outside.run / "gateway.json").exists()
    assert not outside.failures()
    told = {(each["task"], each["episode"]): each["reward"] for each in outside.noted() if "reward" in each}
    assert any(each.get("evaluation") for each in outside.noted())
    samples = outside.samples()
    assert len(samples) >= 6 * 2 * 3
    for sample in samples:
        assert sample.reward == pytest.approx(told[str(sample.group), sample.episode])
        assert (sample.versions[sample.loss_mask] >= 0).all()
    gateway = [data for kind, data in outside.events() if kind == "gateway"]
    assert [list(data) for data in gateway] == [["tasks"]]


@pytest.mark.slow
def test_the_worker_of_the_documentation_plays(outside: Outside) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    worker = outside.folder / "worker.py"
    worker.write_text(page.split("```python\n# worker.py\n")[1].split("```")[0])
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    outside.agents.append(subprocess.Popen([sys.executable, "-I", str(worker), f"http://127.0.0.1:{port}/tasks"]))
    job = outside.job(trainer__batches=2)
    code, out = run(*outside.arguments(job), f"rollout.agent.port={port}", "rollout.filters=[]")
    assert code == 0, out
    assert outside.agents[-1].wait(20) == 0
    assert not outside.failures()
    assert {sample.reward for sample in outside.samples()} <= {0.0, 1.0}


@pytest.mark.slow
def test_the_runs_reward_functions_judge_what_no_agent_scores(outside: Outside) -> None:
    job = outside.job(trainer__batches=2)
    (job.parent / "reward.py").write_text(REWARD)
    outside.agent("unscored")
    code, out = run(*outside.arguments(job))
    assert code == 0, out
    rewards = {(each["task"], each["episode"]): each["reward"] for each in outside.noted()}
    samples = outside.samples()
    assert samples
    last = {(sample.group, sample.episode): sample for sample in samples}
    for (group, episode), sample in last.items():
        # prompt, answer, "more", answer; of a first answer that was cut off, the second is a history of its own
        assert sample.reward == pytest.approx(4 + rewards[str(group), episode])


@pytest.mark.slow
def test_an_agent_that_dies_and_one_that_never_reports_cost_their_episodes(outside: Outside) -> None:
    job = outside.job(trainer__batches=4)
    dead = outside.agent("dies")
    outside.agent("silent")
    outside.agent()
    code, out = run(*outside.arguments(job), "rollout.episode_timeout_s=3", "rollout.min_samples=3")
    assert code == 0, out
    assert dead.wait(20) == 3
    lost = [each["task"] for each in outside.noted() if "died" in each or "silent" in each]
    assert len(lost) == 2
    assert len(outside.failures()) == 1, "an event for the kind of failure"
    assert outside.failures()[0].startswith("timeout: ")
    trained = {str(sample.group) for sample in outside.samples()}
    assert not trained & set(lost), "their groups went back to the dataset"
    again = {group.replace("#0", "#1") for group in lost}
    assert again & {each["task"] for each in outside.noted() if "task" in each}, "and came again as a next attempt"


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_the_same_agents(outside: Outside) -> None:
    job = outside.job(trainer__batches=8)
    for _ in range(2):
        outside.agent()
    process = start(*outside.arguments(job))
    end = time.monotonic() + 90
    while time.monotonic() < end and len(outside.noted()) < 15:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = len(outside.noted())
    assert before >= 15
    code, out = run(*outside.arguments(job), "--resume")
    assert code == 0, out
    assert [agent.wait(20) for agent in outside.agents] == [0, 0]
    assert len(outside.noted()) > before
    told: dict[tuple[str, int], set[float]] = {}
    for each in outside.noted():
        if "reward" in each:
            told.setdefault((each["task"].partition(".")[0], each["episode"]), set()).add(each["reward"])
    with RunReader(outside.run) as reader:
        reader.counts().check()
        numbers = [row.number for row in reader.metrics.read("batch")]
    assert numbers == list(range(1, 9)), "every version exactly once"
    for sample in outside.samples():
        assert any(sample.reward == pytest.approx(each) for each in told[str(sample.group), sample.episode])


@pytest.mark.slow
def test_a_run_that_waits_for_a_slow_agent_is_not_taken_for_stalled(outside: Outside) -> None:
    """Three episodes take it longer than `stall_timeout_s`: a batch of two groups more than twice as long."""
    job = outside.job(reward__timeout_s=3, runtime__stall_timeout_s=4, rollout__episode_timeout_s=3, trainer__batches=1)
    outside.agent("slow")
    code, out = run(*outside.arguments(job))
    assert code == 0, out
    assert not outside.failures()


@pytest.mark.slow
def test_a_run_that_no_agent_asks_says_so_and_ends(outside: Outside) -> None:
    job = outside.job(reward__timeout_s=3, runtime__stall_timeout_s=5, rollout__episode_timeout_s=3)
    code, out = run(*outside.arguments(job))
    assert code == 1
    assert "waited 5.0 s for rows of batch 0" in out
    assert "15 tasks are not taken, and no agent asks for one: POST http://127.0.0.1:" in out
    assert not Counter(kind for kind, _ in outside.events())["failed_sample"], "it has cost no attempt"
