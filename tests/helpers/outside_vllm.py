"""A vLLM server that somebody else has started, for runs that attach to it: its weights are nobody's."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
import torch
from controller_jobs import CONFIGS, make_model
from transformers import AutoModelForCausalLM
from vllm_server import PYTHON

from headrace.engines.servers import vllm_command
from headrace.engines.servers.launch import ServerLaunch
from headrace.runtime.ports import free_port

ARCHITECTURE = "qwen3_wide"
_START_S, _END_S = 240.0, 30.0
_TRACKER = "resource_tracker"
"""Frees what the others shared, once they have ended."""


class OutsideVllm:
    """Of the architecture's shape, with weights that no job has."""

    def __init__(self, folder: Path) -> None:
        model = make_model(folder / "model", ARCHITECTURE)
        torch.manual_seed(1)
        AutoModelForCausalLM.from_config(CONFIGS[ARCHITECTURE]()).save_pretrained(model)
        self._launch = ServerLaunch(
            python=PYTHON,
            weights=str(model),
            dtype="float32",
            slots=8,
            max_context=96,
            seed=0,
            on_cpu=True,
            threads=1,
            args={"skip_tokenizer_init": True},
        )
        self._log = folder / "vllm.log"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._folder = ""
        """Of what it puts aside; short, since sockets lie there."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """At its port, as before."""
        command = vllm_command.command(self._launch, self._port)
        self._folder = tempfile.mkdtemp(prefix="headrace-")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=vllm_command.environment(self._launch, os.environ, self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def until_up(self) -> None:
        end = time.monotonic() + _START_S
        while time.monotonic() < end and self._process is not None and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                    return
            except OSError:
                time.sleep(0.25)
        pytest.fail(f"the server did not come up: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for each in below:
            if each.is_running() and _TRACKER not in " ".join(each.cmdline()):
                each.kill()
        process.wait()
        _, left = psutil.wait_procs(below, timeout=_END_S)
        for each in left:
            each.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
