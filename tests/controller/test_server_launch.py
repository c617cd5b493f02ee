"""How the servers of a run are launched, and what is refused before anything starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.planning.server_launch import server_launch
from headrace.engines.embedded.cache_plan import CachePlan
from headrace.engines.servers import vllm_command
from headrace.engines.servers.launch import ServerLaunch

CACHE = CachePlan(slots=8, max_context=96, bytes_wanted=(3 << 30) + 1)


def launch(tmp_path: Path, weights: str, **engine: Any) -> ServerLaunch:
    job = make_job(tmp_path, engine__kind="vllm", **{f"engine__{name}": value for name, value in engine.items()})
    config = load_config(TrainConfig, job)
    return server_launch(config, config.engine, weights, CACHE, rank=1)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_a_folder_is_named_whole_and_a_model_of_the_hub_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("weights")
    assert launch(tmp_path / "job", "weights").weights == str(tmp_path / "weights")
    assert launch(tmp_path / "job", "Qwen/Qwen3-0.6B").weights == "Qwen/Qwen3-0.6B"


def test_the_command_has_loopback_the_plugin_and_the_users_own_options(tmp_path: Path) -> None:
    made = launch(tmp_path, "Qwen/Qwen3-0.6B", args={"enable_prefix_caching": False, "block-size": 16, "x": {"y": 1}})
    command = vllm_command.command(made, port=7)
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "7")
    assert (option(command, "--max-num-seqs"), option(command, "--max-model-len")) == ("8", "96")
    assert option(command, "--weight-transfer-config") == '{"backend": "headrace"}'
    assert option(command, "--seed") == "1"
    assert "--no-enable-prefix-caching" in command
    assert (option(command, "--block-size"), option(command, "--x")) == ("16", '{"y": 1}')
    environment = vllm_command.environment(made, {"PATH": "/bin", "PYTHONPATH": "/mine"})
    assert (environment["PATH"], environment.get("PYTHONPATH")) == ("/bin", None)
    if made.on_cpu:
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == "4", "whole GiB, and no less than is wanted"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"args": {"max-model-len": 7}}, "engine.args.max_model_len is set by engine.max_context; leave it out"),
        ({"args": {"host": "0.0.0.0"}}, "engine.args.host is set by nothing: a launched server listens on loopback"),
        ({"python": "/no/such/python"}, "engine.python is '/no/such/python', and there is no interpreter at"),
    ],
)
def test_what_is_not_the_users_to_give_is_refused(tmp_path: Path, engine: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch(tmp_path, "Qwen/Qwen3-0.6B", **engine)
