"""Runs whose episodes an agent plays, over HTTP."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agent_code import PROGRAM, SOURCE
from agent_runs import samples_of, turns_of
from controller_jobs import make_job

import headrace
from headrace.cli.main import main
from headrace.experience.sample import Sample
from headrace.store import RunReader

TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def train(folder: Path, agent: str, *arguments: str, **changes: object) -> list[Sample]:
    job = make_job(folder / "job", record__journal="all", data__eval=None, **changes)
    (job.parent / "agent.py").write_text(SOURCE)
    (job.parent / "program.py").write_text(PROGRAM)
    (job.parent / "chat.jinja").write_text(TEMPLATE)
    named = agent.replace("JOB", str(job.parent)) if ":" in agent else f"{job.parent}/agent.py:{agent}"
    given = (f"rollout.agent={named}", f"data.template.file={job.parent}/chat.jinja")
    assert main(["train", str(job), *given, *arguments, "--dir", str(folder / "run")]) == 0
    return samples_of(folder / "run")


def events(folder: Path) -> Counter[str]:
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return Counter(event.kind for event in reader.events.read())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_plain_function_plays_and_gives_the_reward(tmp_path: Path, workers: int) -> None:
    samples = train(tmp_path, "two_turns", f"rollout.workers={workers}")
    assert not events(tmp_path)["failed_sample"]
    assert len(samples) >= 6 * 2 * 3
    episodes: dict[tuple[object, int], list[Sample]] = {}
    for sample in samples:
        assert sample.reward is not None
        assert (sample.versions[sample.loss_mask] >= 0).all()
        episodes.setdefault((sample.group, sample.episode), []).append(sample)
    for histories in episodes.values():
        assert histories[-1].metadata["requests"] == 2
        # A first answer that six tokens were too few for is a history of its own.
        assert histories[-1].metadata.get("histories", 1) == len(histories)
        assert sum(map(turns_of, histories)) == 2
        assert len({sample.reward for sample in histories}) == 1


@pytest.mark.slow
def test_an_async_function_plays_and_reward_functions_judge(tmp_path: Path) -> None:
    samples = train(tmp_path, "one_turn", "trainer.batches=3")
    assert not events(tmp_path)["failed_sample"]
    assert {sample.reward is not None for sample in samples} == {True}


@pytest.mark.slow
def test_an_episode_of_two_histories_is_two_samples_of_one_reward(tmp_path: Path) -> None:
    samples = train(tmp_path, "rewrites", "trainer.batches=3")
    assert not events(tmp_path)["failed_sample"]
    rewards: dict[tuple[object, int], list[float | None]] = {}
    for sample in samples:
        assert turns_of(sample) == 1
        rewards.setdefault((sample.group, sample.episode), []).append(sample.reward)
    assert {(len(each), len(set(each))) for each in rewards.values()} == {(2, 1)}


@pytest.mark.slow
def test_an_agent_that_fails_costs_its_episode(tmp_path: Path) -> None:
    train(tmp_path, "bad_sometimes", "trainer.batches=3")
    with RunReader(tmp_path / "run") as reader:
        failed = [event.data for event in reader.events.read() if event.kind == "failed_sample"]
    assert failed
    assert all("HTTP Error 401" in str(each) for each in failed)


@pytest.mark.slow
def test_what_an_agent_does_wrong_is_in_the_record_in_words_and_the_run_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    samples = train(tmp_path, "errs", "trainer.batches=3", "gateway.max_body_mib=1", "async.mode=sync")
    assert events(tmp_path)["failed_sample"]
    failures = [sample.failure for sample in samples if sample.failure is not None]
    assert len(failures) == 6
    for words in (
        "the body is too large (gateway.max_body_mib)",
        "no model 'gpt-4' here; ask for 'policy'",
        "a part of type 'image_url'",
        "which is not JSON",
        "the key is none of this run",
        "the key is another episode's",
    ):
        assert sum(words in failure for failure in failures) == 1


@pytest.mark.slow
def test_an_agent_that_never_ends_is_left_at_the_deadline(tmp_path: Path) -> None:
    train(tmp_path, "hangs_sometimes", "trainer.batches=4", "rollout.episode_timeout_s=4")
    assert events(tmp_path)["failed_sample"]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_the_agent_of_the_documentation_plays_also_where_a_proxy_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "a.example")
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    (tmp_path / "documented.py").write_text(page.split("```python\n")[1].split("```")[0])
    train(tmp_path, f"{tmp_path}/documented.py:solve", "trainer.batches=2", f"rollout.workers={workers}")
    assert not events(tmp_path)["failed_sample"]


@pytest.mark.slow
def test_an_agent_that_is_given_in_python_plays(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", data__eval=None, trainer__batches=2)
    (job.parent / "chat.jinja").write_text(TEMPLATE)
    asked = []

    async def closure(episode: Any) -> float:
        asked.append(episode.name)
        headers = {"Authorization": f"Bearer {episode.api_key}"}
        body = {"model": episode.model, "messages": [{"role": "user", "content": episode.row["prompt"]}]}
        async with (
            aiohttp.ClientSession(headers=headers) as client,
            client.post(f"{episode.base_url}/chat/completions", json=body) as response,
        ):
            return len((await response.json())["choices"][0]["message"]["content"]) / 8

    given = {"rollout__agent": closure, "data__template__file": str(job.parent / "chat.jinja")}
    run = headrace.train(str(job), dir=tmp_path / "run", **given)
    assert run.status == "finished"
    assert len(asked) >= 2 * 2 * 3


@pytest.mark.slow
def test_a_program_plays(tmp_path: Path) -> None:
    agent = f"{{command: [{sys.executable}, JOB/program.py], reward: stdout, read: [JOB]}}"
    samples = train(tmp_path, agent, "trainer.batches=3")
    assert not events(tmp_path)["failed_sample"]
    assert len({sample.reward for sample in samples}) > 1


def test_check_says_that_there_are_no_chats_without_a_template(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path / "job", data__eval=None, rollout__agent=f"{tmp_path}/agent.py:two_turns")
    (tmp_path / "agent.py").write_text(SOURCE)
    assert main(["check", str(job)]) == 0
    said = capsys.readouterr()
    assert "the tokenizer has no chat template, so that rollout.agent can only ask for completions" in said.err
    assert "\nchats     none: without a chat template rollout.agent can only ask for completions\n" in said.out
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    assert main(["check", str(job), f"data.template.file={tmp_path}/chat.jinja"]) == 0
    assert "\nchats     by the chat template; a turn that goes on adds" in capsys.readouterr().out
