"""The documentation's agents by `openai-agents` and with an MCP server, in whole runs: on the example's model, warmed
up, which looks up in three answers of ten, so that the calls are the policy's own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent_runs import samples_of, turns_of

from headrace.store import RunReader

ROOT = Path(__file__).parents[2]
HEADRACE = [sys.executable, "-m", "headrace.cli.main"]
SERVER = '''
import sqlite3

from mcp.server.mcpserver import MCPServer

server = MCPServer("facts")


@server.tool()
def query(key: str = "") -> str:
    """The value of a key."""
    with sqlite3.connect("facts.db") as database:
        found = database.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
    return found[0] if found else "?"


server.run()
'''
pytestmark = [pytest.mark.slow, pytest.mark.cpu, pytest.mark.timeout(300)]


def call(folder: Path, *words: str) -> None:
    subprocess.run(words, cwd=folder, check=True, timeout=250, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example")
    for file in (ROOT / "examples" / "lookup_agent").iterdir():
        if file.suffix in (".py", ".yaml"):
            shutil.copy(file, folder)
    call(folder, sys.executable, "make_files.py")
    call(folder, *HEADRACE, "sft", "sft.yaml", "trainer.steps=100", "--dir", "sft")
    (folder / "server.py").write_text(SERVER)
    page = (ROOT / "docs" / "agents.md").read_text()
    for name in ("sdk_agent.py", "mcp_agent.py"):
        code = page.split(f"```python\n# {name}\n")[1].split("```")[0]
        (folder / name).write_text(code.replace('command="python"', f"command={sys.executable!r}"))
    return folder


@pytest.mark.parametrize("package", ["agents", "mcp"])
def test_its_loop_plays_and_each_episode_is_one_history(example: Path, package: str) -> None:
    pytest.importorskip(package)
    name = {"agents": "sdk_agent", "mcp": "mcp_agent"}[package]
    size = ("trainer.batches=2", "rollout.prompts_per_batch=2", "rollout.samples_per_prompt=8", "data.eval=null")
    given = (f"rollout.agent={name}.py:solve", "record.journal=all", *size)
    call(example, *HEADRACE, "train", "grpo.yaml", *given, "--dir", name)
    with RunReader(example / name) as reader:
        assert reader.status().name == "finished"
        assert "failed_sample" not in {event.kind for event in reader.events.read()}
    samples = samples_of(example / name)
    assert len(samples) >= 32
    for sample in samples:
        assert sample.metadata["turns"] == sample.metadata["requests"] == turns_of(sample)
        assert "histories" not in sample.metadata
        assert (sample.versions[sample.loss_mask] >= 0).all()
    called = [sample for sample in samples if sample.metadata["turns"] == 2]
    assert len(called) >= 3
    assert {sample.reward for sample in called} >= {1.0}
