"""Runs whose episodes agents outside take: processes that know nothing but an address. Each is tried with the run's own
process as the one that plays, and with rollout workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from controller_jobs import make_job, run, start
from forked import Forked

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

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self.run = folder / "run"
        self.notes = folder / "notes.jsonl"
        self.agents: list[subprocess.Popen[bytes]] = []

    def job(self, **changes: object) -> Path:
        job = make_job(self.folder / "job", **{"record__journal": "all", "data__eval": None, **changes})
        (job.parent / "chat.jinja").write_text(TEMPLATE)
        return job

    def arguments(self, job: Path) -> tuple[str, ...]:
        template = f"data.template.file={job.parent}/chat.jinja"
        workers = f"rollout.workers={self.workers}"
        return "train", str(job), "rollout.agent={outside: true}", workers, template, "--dir", str(self.run)

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


def _made(folder: Path, workers: int) -> Generator[Outside]:
    made = Outside(folder, workers)
    yield made
    for agent in made.agents:
        agent.kill()
        agent.wait()


@pytest.fixture(params=[0, 2], ids=["here", "workers"])
def outside(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Outside]:
    yield from _made(tmp_path, request.param)


@pytest.fixture(params=[pytest.param(0, marks=pytest.mark.soak), 2], ids=["here", "workers"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Generator[Outside]:
    """As `outside`, of what is the same in both but in `make soak`."""
    yield from _made(tmp_path, request.param)


@pytest.fixture
def workers(tmp_path: Path) -> Generator[Outside]:
    """With two rollout workers."""
    yield from _made(tmp_path, 2)


class Driver:
    """Asks as an agent does, where the test wants to see what it is told."""

    def __init__(self, made: Outside, process: Forked) -> None:
        self._where = made.run / "gateway.json"
        self._process = process

    def post(self, url: str, body: Any, key: str = "none") -> tuple[int, Any, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers

    def tasks(self) -> str:
        """Where they are, once the run says so."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            assert self._process.poll() is None, self._process.communicate()[0]
            try:
                return str(json.loads(self._where.read_text())["tasks"])
            except (OSError, ValueError):
                time.sleep(0.05)
        raise AssertionError("the run gives no task out")

    def take(self, wait_s: float = 30) -> Any:
        """The next one; None once the run is over."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            status, task, _ = self.post(self.tasks(), {"wait_s": wait_s})
            if status in (200, 410):
                return task if status == 200 else None
        raise AssertionError(task)

    def play(self, task: Any) -> None:
        body = {"model": task["model"], "messages": [{"role": "user", "content": task["row"]["prompt"]}]}
        status, told, _ = self.post(f"{task['base_url']}/chat/completions", {**body, "max_tokens": 4}, task["api_key"])
        assert status == 200, told
        assert self.end(task)[0] == 200

    def end(self, task: Any) -> tuple[int, Any, Any]:
        reward = float(task["episode"])
        return self.post(f"{self.tasks()}/{task['id']}/end", {"reward": reward}, task["api_key"])


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


def documented_worker(folder: Path) -> Path:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    worker = folder / "worker.py"
    worker.write_text(page.split("```python\n# worker.py\n")[1].split("```")[0])
    return worker


def test_the_worker_of_the_documentation_ends_an_episode_whose_request_is_refused(tmp_path: Path) -> None:
    told: list[tuple[str, Any]] = []

    class Run(BaseHTTPRequestHandler):
        """It has one task, whose requests it refuses."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            given = [path for path, _ in told].count("/tasks")
            told.append((self.path, body))
            url = f"http://127.0.0.1:{server.server_port}/v1"
            task = {"id": "t", "base_url": url, "api_key": "k", "model": "m", "row": {"prompt": "p", "answer": "a"}}
            answer: Any = {"/tasks": task, "/tasks/t/end": {}}.get(self.path, {"error": {"message": "no"}})
            status = 400 if "error" in answer else 410 if self.path == "/tasks" and given else 200
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Run) as server:
        threading.Thread(target=server.serve_forever).start()
        tasks = f"http://127.0.0.1:{server.server_port}/tasks"
        try:
            subprocess.run([sys.executable, "-I", str(documented_worker(tmp_path)), tasks], check=True, timeout=60)
        finally:
            server.shutdown()
    assert [path for path, _ in told] == ["/tasks", "/v1/chat/completions", "/tasks/t/end", "/tasks"]
    assert told[2][1] == {"error": "HTTP Error 400: Bad Request"}


@pytest.mark.slow
def test_the_worker_of_the_documentation_plays(either: Outside) -> None:
    worker = documented_worker(either.folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    either.agents.append(subprocess.Popen([sys.executable, "-I", str(worker), f"http://127.0.0.1:{port}/tasks"]))
    job = either.job(trainer__batches=2)
    code, out = run(*either.arguments(job), f"rollout.agent.port={port}", "rollout.filters=[]")
    assert code == 0, out
    assert either.agents[-1].wait(20) == 0
    assert not either.failures()
    assert {sample.reward for sample in either.samples()} <= {0.0, 1.0}


@pytest.mark.slow
def test_the_runs_reward_functions_judge_what_no_agent_scores(either: Outside) -> None:
    job = either.job(trainer__batches=2)
    (job.parent / "reward.py").write_text(REWARD)
    either.agent("unscored")
    code, out = run(*either.arguments(job))
    assert code == 0, out
    rewards = {(each["task"], each["episode"]): each["reward"] for each in either.noted()}
    samples = either.samples()
    assert samples
    last = {(sample.group, sample.episode): sample for sample in samples}
    for (group, episode), sample in last.items():
        # prompt, answer, "more", answer; of a first answer that was cut off, the second is a history of its own
        assert sample.reward == pytest.approx(4 + rewards[str(group), episode])


@pytest.mark.slow
def test_an_agent_that_dies_and_one_that_never_reports_cost_their_episodes(either: Outside) -> None:
    job = either.job(trainer__batches=4)
    dead = either.agent("dies")
    either.agent("silent")
    either.agent()
    code, out = run(*either.arguments(job), "rollout.episode_timeout_s=3", "rollout.min_samples=3")
    assert code == 0, out
    assert dead.wait(20) == 3
    lost = [each["task"] for each in either.noted() if "died" in each or "silent" in each]
    assert len(lost) == 2
    assert len(either.failures()) == 1, "an event for the kind of failure"
    assert either.failures()[0].startswith("timeout: ")
    trained = {str(sample.group) for sample in either.samples()}
    assert not trained & set(lost), "their groups went back to the dataset"
    again = {group.replace("#0", "#1") for group in lost}
    assert again & {each["task"] for each in either.noted() if "task" in each}, "and came again as a next attempt"


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_the_same_agents(either: Outside) -> None:
    job = either.job(trainer__batches=8)
    for _ in range(2):
        either.agent()
    process = start(*either.arguments(job))
    end = time.monotonic() + 90
    while time.monotonic() < end and len(either.noted()) < 15:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = len(either.noted())
    assert before >= 15
    code, out = run(*either.arguments(job), "--resume")
    assert code == 0, out
    assert [agent.wait(20) for agent in either.agents] == [0, 0]
    assert len(either.noted()) > before
    told: dict[tuple[str, int], set[float]] = {}
    for each in either.noted():
        if "reward" in each:
            told.setdefault((each["task"].partition(".")[0], each["episode"]), set()).add(each["reward"])
    with RunReader(either.run) as reader:
        reader.counts().check()
        numbers = [row.number for row in reader.metrics.read("batch")]
    assert numbers == list(range(1, 9)), "every version exactly once"
    for sample in either.samples():
        assert any(sample.reward == pytest.approx(each) for each in told[str(sample.group), sample.episode])


@pytest.mark.slow
def test_a_run_that_waits_for_a_slow_agent_is_not_taken_for_stalled(either: Outside) -> None:
    """Three episodes take it longer than `stall_timeout_s`: a batch of two groups more than twice as long."""
    job = either.job(reward__timeout_s=8, runtime__stall_timeout_s=8, rollout__episode_timeout_s=8, trainer__batches=1)
    either.agent("slow")
    code, out = run(*either.arguments(job))
    assert code == 0, out
    assert not either.failures()


@pytest.mark.slow
def test_a_run_that_no_agent_asks_says_so_and_ends(either: Outside) -> None:
    job = either.job(reward__timeout_s=3, runtime__stall_timeout_s=5, rollout__episode_timeout_s=3)
    code, out = run(*either.arguments(job))
    assert code == 1
    assert "waited 5.0 s for rows of batch 0" in out
    assert "15 tasks are not taken, and no agent asks for one: POST http://127.0.0.1:" in out
    assert not Counter(kind for kind, _ in either.events())["failed_sample"], "it has cost no attempt"


@pytest.mark.slow
def test_who_finds_no_task_is_told_when_the_next_version_comes(either: Outside) -> None:
    """Nothing starts before it; each batch takes its agent four seconds."""
    job = either.job(trainer__batches=3)
    process = start(*either.arguments(job), "async.mode=sync", "rollout.filters=[]")
    driver, told = Driver(either, process), []
    try:
        for batch in range(3):
            began = time.monotonic()
            tasks = [driver.take() for _ in range(6)]
            taken = time.monotonic()
            for after in (0.0, 2.0):
                time.sleep(max(taken + after - time.monotonic(), 0.0))
                asked = time.monotonic() - began
                status, error, headers = driver.post(driver.tasks(), {"wait_s": 0})
                assert (status, error["error"]["code"]) == (429, "no_task")
                assert "the run's gate waits for the next version of the weights" in error["error"]["message"]
                told.append((batch, asked, time.monotonic() - began, int(headers["Retry-After"])))
            time.sleep(max(taken + 4.0 - time.monotonic(), 0.0))
            for task in tasks:
                driver.play(task)
        assert driver.take() is None
        assert process.wait(60) == 0
    finally:
        process.kill()
        out, _ = process.communicate()
    for after, seconds in [(after, seconds) for batch, _, after, seconds in told if batch == 2]:
        # What two versions took: four seconds, and what is between them; the first one was begun by the run's start.
        assert 1 <= seconds <= 20, out
        assert seconds + after >= 4
    (_, *at, first), (_, *at_second, second) = told[-2:]
    least, most = at_second[0] - at[1], at_second[1] - at[0]
    assert least - 1 <= first - second <= most + 1, "two seconds later, told in whole ones"


@pytest.mark.slow
def test_tasks_of_a_worker_that_is_killed_are_over_and_played_again(workers: Outside) -> None:
    job = workers.job(trainer__batches=4)
    process = start(*workers.arguments(job), "rollout.filters=[]")
    driver = Driver(workers, process)
    try:
        tasks: list[Any] = []
        while len({urlsplit(task["base_url"]).port for task in tasks}) < 2:
            tasks.append(driver.take())
        port = urlsplit(tasks[0]["base_url"]).port
        assert port != urlsplit(driver.tasks()).port
        lost = [task for task in tasks if urlsplit(task["base_url"]).port == port]
        (listens,) = [each for each in psutil.Process(process.pid).children(recursive=True) if port in _ports(each)]
        listens.kill()
        listens.wait(10)
        for task in lost:
            status, told, _ = driver.end(task)
            assert (status, told["error"]["code"]) == (409, "task_ended")
            assert "the rollout worker that played it was lost" in told["error"]["message"]
            with pytest.raises(OSError, match=r"refused|reset|closed"):
                driver.post(f"{task['base_url']}/chat/completions", {}, task["api_key"])
        for task in tasks:
            if task not in lost:
                driver.play(task)
        for _ in range(2):
            workers.agent()
        assert process.wait(90) == 0
    finally:
        process.kill()
        out, _ = process.communicate()
    kinds = Counter(kind for kind, _ in workers.events())
    assert kinds["worker_lost"] == 1, out
    assert kinds["reissued"] >= 1
    assert not workers.failures(), "it has cost no attempt"
    again = {each["task"] for each in workers.noted() if "reward" in each}
    assert {task["group"] for task in lost} <= again, "the same attempt, issued again"


@pytest.mark.slow
def test_a_worker_that_comes_while_the_run_goes_on_plays_too(workers: Outside) -> None:
    job = workers.job(trainer__batches=1000)
    process = start(*workers.arguments(job), "rollout.filters=[]")
    driver = Driver(workers, process)
    try:
        driver.play(driver.take())
        code, told = run("scale", str(workers.run), "--rollout-workers", "3")
        assert (code, "rollout workers: 3" in told) == (0, True), told
        ports = set()
        while len(ports) < 3 and (task := driver.take()) is not None:
            ports.add(urlsplit(task["base_url"]).port)
            driver.play(task)
        workers.agent()
        code, told = run("scale", str(workers.run), "--rollout-workers", "2")
        assert (code, "rollout workers: 2" in told) == (0, True), told
        process.send_signal(signal.SIGINT)
        assert process.wait(90) == 0
    finally:
        process.kill()
        out, _ = process.communicate()
    assert len(ports) == 3
    assert not Counter(kind for kind, _ in workers.events())["worker_lost"], out
    assert not workers.failures(), out


def _ports(process: psutil.Process) -> set[int]:
    try:
        return {each.laddr.port for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN}
    except psutil.Error:
        return set()


@pytest.mark.slow
def test_the_official_clients_play_at_the_address_that_their_task_has(either: Outside) -> None:
    openai, anthropic = pytest.importorskip("openai"), pytest.importorskip("anthropic")
    job = either.job(trainer__batches=2)
    process = start(*either.arguments(job), "rollout.filters=[]")
    driver = Driver(either, process)
    try:
        count = 0
        while (task := driver.take()) is not None:
            messages = [{"role": "user", "content": task["row"]["prompt"]}]
            count += 1
            if count % 2:
                with openai.OpenAI(base_url=task["base_url"], api_key=task["api_key"]) as client:
                    chat = client.chat.completions.create(model=task["model"], messages=messages, max_tokens=4)
                    assert chat.usage.completion_tokens >= 1
            else:
                root = task["base_url"].removesuffix("/v1")
                with (
                    anthropic.Anthropic(base_url=root, api_key=task["api_key"]) as client,
                    client.messages.stream(model=task["model"], max_tokens=4, messages=messages) as stream,
                ):
                    assert stream.get_final_message().usage.output_tokens >= 1
            assert driver.end(task)[0] == 200
        assert process.wait(60) == 0
    finally:
        process.kill()
        out, _ = process.communicate()
    assert not either.failures(), out
    assert count >= 2 * 2 * 3


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")
def test_workers_that_are_actors_of_a_ray_play_too(workers: Outside) -> None:
    job = workers.job(trainer__batches=2)
    agents = [workers.agent() for _ in range(2)]
    code, out = run(*workers.arguments(job), "runtime.kind=ray", "rollout.filters=[]", timeout=200)
    assert code == 0, out
    assert [agent.wait(20) for agent in agents] == [0, 0]
    assert not workers.failures()
    assert len(workers.samples()) >= 2 * 2 * 3


def test_workers_on_other_nodes_are_refused(workers: Outside) -> None:
    job = workers.job()
    code, out = run(*workers.arguments(job), "runtime.kind=ray", "cluster.place={rollout: {cpus: 1}}")
    assert code == 2
    assert "cluster places rollout, and rollout.agent is outside" in out
