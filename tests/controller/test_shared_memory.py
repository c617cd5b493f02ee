"""What a machine has too little of, told before the start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from controller_jobs import make_job
from ray_nodes import can_unshare

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.planning import shared_memory as planned
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.controller.planning.shared_memory import check_shared_memory
from headrace.controller.planning.table_size import table_bound, table_bytes
from headrace.runtime.process import site
from headrace.runtime.process.site import more_room, site_parent

CPU = {"model__device": "cpu"}
"""Where weights between processes go through shared memory."""
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
    plan = make_plan(load_config(TrainConfig, str(make_job(tmp_path, **CPU, engine__process=True)), []))
    assert plan.transport == "shm"
    held = 2 * 4 * plan.memory.parameters
    assert plan.memory.published == held
    free = shutil.disk_usage(site_parent()).free
    large = replace(plan.memory, uses={name: size * (free // held + 2) for name, size in plan.memory.uses.items()})
    with pytest.raises(ConfigError, match=r"GiB are free there; have \d+ GiB \S+ \(mount -o remount,size=\d+G"):
        check_shared_memory("shm", large)
    check_shared_memory("disk", large)


def test_each_relay_of_a_receiver_has_two_versions_more(tmp_path: Path) -> None:
    """Two engines and a proximal policy."""
    job = make_job(
        tmp_path,
        **CPU,
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


@pytest.mark.parametrize(
    ("layout", "changes", "share"),
    [
        ({"dp": 2, "zero": 2}, {"weights__host": "10.77.0.1"}, 1 / 2),
        ({"dp": 2, "tp": 2}, {"weights__host": "10.77.0.1"}, 3 / 4),
        ({"dp": 4, "replicas": 2, "zero": 3}, {"weights__host": "10.77.0.1"}, 1 / 2),  # the second only has copies
        ({"dp": 2, "zero": 2}, {}, 0),  # all on one machine
        ({"dp": 2, "zero": 2}, {"weights__host": "10.77.0.1", "weights__deltas": False}, 0),
        ({"dp": 2}, {"weights__host": "10.77.0.1"}, 0),  # each has the whole, and the first one publishes
    ],
)
def test_what_ranks_on_other_machines_sent_last_is_counted(
    tmp_path: Path, layout: dict[str, int], changes: dict[str, object], share: float
) -> None:
    ray = {"runtime__kind": "ray", "runtime__address": "10.77.0.1:6379", "rollout__prompts_per_batch": 8}
    job = make_job(tmp_path, **CPU, trainer__layout=layout, **ray, **changes)
    memory = make_plan(load_config(TrainConfig, str(job), [])).memory
    kept = memory.uses.get("weight plane: what ranks on other machines sent last, at most", 0)
    assert kept == share * 4 * memory.parameters


def _has(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """A place for shared memory with so many bytes free, and none used."""
    there = SimpleNamespace(total=free, used=0, free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: there)
    monkeypatch.setattr(site, "_LEAST_MEMORY", 0)


def _plays_apart(folder: Path, **changes: object) -> TrainConfig:
    """3 samples of 96 tokens a prompt, 21 bytes each with an advantage: 6,048 bytes; batches of 2."""
    job = make_job(folder, **CPU, rollout__workers=1, **changes)
    return load_config(TrainConfig, str(job), [])


def test_the_table_is_no_larger_than_what_is_free_where_samples_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where those who play have processes of their own, and samples are too large for a message."""
    config = _plays_apart(tmp_path, trainer__placement="process")
    small = make_plan(config)
    assert (small.column_room, table_bound(small)) == (None, table_bytes(config)), "each in a process's own memory"
    monkeypatch.setattr(planned, "SHARED", 96 * 21)
    weights = 2 * 4 * small.memory.parameters
    _has(monkeypatch, 16 << 20)
    plan = make_plan(config)
    assert plan.memory.published == weights
    assert plan.column_room == table_bound(plan) == (15 << 20) - weights
    said = describe_plan(plan)
    assert f"{plan.column_room / 2**20:,.2f} MiB of what is free in /dev/shm at most: " in said
    less = make_plan(_plays_apart(tmp_path / "less", trainer__placement="process", async__table_gib=1e-4))
    assert table_bound(less) == int(1e-4 * 2**30)
    monkeypatch.setattr(planned, "SHARED", 96 * 21 + 1)
    assert make_plan(config).column_room is None


def test_a_batch_for_which_shared_memory_has_no_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No weights go through it, and a sixteenth of what is free is left to messages."""
    monkeypatch.setattr(planned, "SHARED", 96 * 21)
    config = _plays_apart(tmp_path)
    _has(monkeypatch, 2 * 6048 * 16 // 15)
    assert make_plan(config).column_room == 2 * 6048
    _has(monkeypatch, 2 * 6048)
    with pytest.raises(ConfigError) as refused:
        make_plan(config)
    assert str(refused.value) == (
        "samples of a batch, which workers that play keep in /dev/shm, take up to 0.00 GiB, if all are as long as the "
        "context, and 0.00 GiB are free there; have 1 GiB there (mount -o remount,size=1G /dev/shm, or a container's "
        "--shm-size=1g), or lower rollout.prompts_per_batch, rollout.samples_per_prompt or engine.max_context, or set "
        "rollout.workers to 0"
    )


def test_how_to_have_more_shared_memory() -> None:
    """Where /dev/shm is too small to be taken, what lies among temporary files says nothing of it."""
    assert more_room("/dev/shm", 3 << 30, 2 << 30).startswith("have 6 GiB there (mount -o remount,size=6G /dev/shm, or")
    assert more_room("/tmp", 3 << 30, 2 << 30).startswith("have 4 GiB in /dev/shm (mount -o remount,size=4G /dev/shm,")


def test_of_a_joined_cluster_the_nodes_of_those_who_share_new_weights_are_looked_at(tmp_path: Path) -> None:
    job = make_job(tmp_path, engine__process=True, engine__replicas=2, runtime__kind="ray")
    places = ["cluster.device=slot", "cluster.place.engine={devices: 1}"]
    own = make_plan(load_config(TrainConfig, str(job), places))
    assert own.shared is None
    plan = make_plan(load_config(TrainConfig, str(job), [*places, "runtime.address=10.0.0.7:6379"]))
    assert plan.shared is not None
    assert plan.shared.versions == 2 * 4 * plan.memory.parameters
    assert plan.shared.columns == 0, "the command plays"
    play = ["rollout.workers=2", "runtime.address=10.0.0.7:6379", "cluster.place.rollout={devices: 1}"]
    far = make_plan(load_config(TrainConfig, str(job), [*places, *play])).shared
    assert far is not None
    assert (far.columns, far.in_files) == (2 * 6048, False)
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
