"""Runs with Ray: all workers are actors, one of which dies, or the whole."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from ray_run import actor, begun, below, command, gone, lives, require_whole
from served_run import until_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # It is not imported here: that comes after what it reads from the environment.
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 200.0


def test_a_run_whose_workers_are_all_actors(tmp_path: Path) -> None:
    """PPO: policy, critic, a reference of two ranks, functions, two engines and two that play. TMPDIR is too long for
    Ray's sockets."""
    temporary = tmp_path / ("t" * 60)
    temporary.mkdir()
    line, run = command(tmp_path, batches=8, algorithm__recipe="ppo", engine__replicas=2, reference__layout="t2")
    environment = {**os.environ, "TMPDIR": str(temporary)}
    made = subprocess.run(line, capture_output=True, text=True, timeout=_WAIT_S, env=environment)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    require_whole(run, 8)
    named = {path.name for path in (run / "logs").iterdir()}
    workers = ("trainer", "critic", "reference", "functions", "engine", "rollout")
    assert {
        *(f"{name}-0.log" for name in workers),
        "engine-1.log",
        "reference-1.log",
        "rollout-1.log",
        "ray.log",
    } <= named


@pytest.mark.soak
@pytest.mark.parametrize(
    ("victim", "told"), [("engine-0", ("engine_died", "engine_back")), ("rollout-0", ("worker_lost",))]
)
def test_an_actor_that_dies_costs_the_run_nothing(tmp_path: Path, victim: str, told: tuple[str, ...]) -> None:
    process, run = begun(tmp_path, batches=120, engine__replicas=2)
    try:
        until_batch(run, 3, process)
        os.kill(actor(process, run, victim).pid, signal.SIGKILL)
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    kinds = require_whole(run, 120)
    assert [kinds[each] for each in told] == [1] * len(told), kinds


def require_closed(processes: list[psutil.Process]) -> None:
    """Of a run's own Ray: nobody beyond this machine reaches any of it, nobody without its token; it spills nothing."""
    (head,) = [each for each in processes if each.name() == "gcs_server"]
    assert head.environ()["RAY_AUTH_MODE"] == "token"
    (settings,) = [word for word in head.cmdline() if word.startswith("--config_list=")]
    told = json.loads(base64.b64decode(settings.partition("=")[2]))
    assert told["automatic_object_spilling_enabled"] is False
    listening = set()
    for each in filter(lives, processes):
        with suppress(psutil.NoSuchProcess):
            found = [one.laddr.ip for one in each.net_connections("inet") if one.status == psutil.CONN_LISTEN]
            listening |= {(each.name(), ip.removeprefix("::ffff:")) for ip in found}
    assert {("gcs_server", "127.0.0.1"), ("raylet", "127.0.0.1")} <= listening
    assert {ip for _, ip in listening} == {"127.0.0.1"}, listening


def test_a_run_that_is_killed_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    left = {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # by somebody, in a shell
    process, run = begun(tmp_path, batches=24, checkpoint__every=4, environment={**os.environ, **left})
    try:
        until_batch(run, 6, process)
        before = below(process)
        require_closed(before)
    finally:
        process.kill()
    process.wait()
    assert not gone(before, 10.0)
    made = subprocess.run([*process.args, "--resume"], capture_output=True, text=True, timeout=_WAIT_S)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    require_whole(run, 24)
    longer = [*process.args, "--resume", "trainer.batches=26", "runtime.kind=inline"]
    made = subprocess.run(longer, capture_output=True, text=True, timeout=_WAIT_S)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    require_whole(run, 26)


def test_a_run_whose_ray_ends_stops_in_order(tmp_path: Path) -> None:
    process, run = begun(tmp_path, batches=5000)
    try:
        until_batch(run, 1, process)
        before = below(process)
        (victim,) = [each for each in before if each.name() == "gcs_server"]
        victim.kill()
        out, _ = process.communicate(timeout=40)
    finally:
        process.kill()
    assert process.returncode == 1
    told = "headrace: the run's Ray has ended: gcs_server (ended by signal 9); --resume the run once"
    assert told in out, out[-3000:]
    assert json.loads((run / "summary.json").read_text())["status"] == "failed"
    assert not (run / "control.sock").exists()
    assert not gone(before, 10.0)


def test_a_cluster_that_is_not_there_is_told(tmp_path: Path) -> None:
    line, _ = command(tmp_path, "runtime.address=127.0.0.1:1")
    environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 32}
    made = subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)
    assert made.returncode == 1
    assert "headrace: no Ray cluster answers at 127.0.0.1:1: " in made.stderr
    assert "; correct runtime.address, or look whether the cluster is up" in made.stderr
    assert "RAY_AUTH_TOKEN" not in made.stderr
