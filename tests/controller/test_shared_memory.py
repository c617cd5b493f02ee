"""What a machine has too little of, told before the start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from controller_jobs import make_job
from ray_nodes import can_unshare

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.planning.plan import make_plan
from headrace.controller.planning.shared_memory import check_shared_memory
from headrace.runtime.process.site import site_parent

_HOLD_ALL = """
import asyncio
import socket
from pathlib import Path
from aiohttp import web
from headrace.errors import HeadraceError
from headrace.gateway.app import GUARDED
from headrace.gateway.server import serve
from headrace.runtime.ports import NoPort, free_port
from headrace.training.replicas import Meeting
Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("40000 40003")
held = []
while True:
    try:
        port = free_port()
    except NoPort as none:
        print(len(held), none)
        break
    held.append(socket.create_server(("127.0.0.1", port)))
app = web.Application()
app[GUARDED] = False
for needs in (lambda: Meeting(5.0), lambda: asyncio.run(serve(app, "127.0.0.1", 0))):
    try:
        needs()
    except HeadraceError as none:
        print(none)
"""


def test_too_little_shared_memory_is_told_with_how_much_is_needed(tmp_path: Path) -> None:
    plan = make_plan(load_config(TrainConfig, str(make_job(tmp_path, engine__process=True)), []))
    assert plan.transport == "shm"
    held = 2 * 4 * plan.memory.parameters
    assert plan.memory.published == held
    free = shutil.disk_usage(site_parent()).free
    large = replace(plan.memory, uses={name: size * (free // held + 2) for name, size in plan.memory.uses.items()})
    with pytest.raises(ConfigError, match=r"GiB are free there; have \d+ GiB \(mount -o remount,size=\d+G"):
        check_shared_memory("shm", large)
    check_shared_memory("disk", large)


def test_each_relay_of_a_receiver_has_two_versions_more(tmp_path: Path) -> None:
    """Two engines and a proximal policy."""
    job = make_job(
        tmp_path,
        engine__process=True,
        engine__replicas=2,
        algorithm__epochs_per_batch=2,
        proximal__placement="process",
        weights__transport="collective",
    )
    plan = make_plan(load_config(TrainConfig, str(job), []))
    version = 4 * plan.memory.parameters
    assert (plan.memory.published, plan.memory.at_relays) == (2 * version, 3 * 2 * version)
    assert plan.memory.uses["weight plane: two versions at each relay"] == 3 * 2 * version
    free = shutil.disk_usage(site_parent()).free
    relays = {"weight plane: two versions at each relay": free}
    large = replace(plan.memory, uses={**plan.memory.uses, **relays})
    with pytest.raises(ConfigError, match=r"transport is collective.*, and two for each relay: .* GiB are free there"):
        check_shared_memory("shm", large)


def test_of_a_joined_cluster_the_nodes_of_those_who_share_new_weights_are_looked_at(tmp_path: Path) -> None:
    job = make_job(tmp_path, engine__process=True, engine__replicas=2, runtime__kind="ray")
    places = ["cluster.device=slot", "cluster.place.engine={devices: 1}"]
    own = make_plan(load_config(TrainConfig, str(job), places))
    assert own.shared is None
    plan = make_plan(load_config(TrainConfig, str(job), [*places, "runtime.address=10.0.0.7:6379"]))
    assert plan.shared is not None
    assert plan.shared.bytes == 2 * 4 * plan.memory.parameters
    assert "trainer/0" in plan.shared.unplaced
    assert "engine/0" not in plan.shared.unplaced


@pytest.mark.skipif(not can_unshare("-rn"), reason="no namespaces here")
def test_that_no_port_is_free_is_told() -> None:
    line = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable, "-c", _HOLD_ALL]
    told = subprocess.run(line, capture_output=True, text=True, timeout=60)
    none = (
        r"no TCP port is free on 127\.0\.0\.1 \(.*[Aa]ddress already in use\); end programs that hold many, or widen "
        r"the system's range \(sysctl net\.ipv4\.ip_local_port_range\)"
    )
    for line, begin in zip(told.stdout.splitlines(), ("4 ", "ranks of one model cannot meet: ", ""), strict=True):
        assert re.fullmatch(begin + none, line), told
