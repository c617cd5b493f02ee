"""Runs that join a cluster: with its token alone; and what one says that is told to stop there."""

from __future__ import annotations

import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from ray_nodes import Nodes, can_unshare, nodes
from ray_run import begun, command, gone, of_run
from served_run import until_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
]
_WAIT_S = 100.0
_ADMITTED = """
import sys
from headrace.runtime.ray.environment import prepare
prepare(sys.argv[1])
from headrace.runtime.ray.admission import TokenError, require_admission
try:
    require_admission(sys.argv[1])
except TokenError as error:
    print(error)
"""
_NO_NODE = """
import json, sys
from headrace.runtime.ray.environment import prepare
prepare(sys.argv[1])
from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._raylet import GcsClient
from headrace.runtime.ray.admission import ClusterError, require_admission, require_node
client = GcsClient(address=sys.argv[1])
kept = client.internal_kv_get(CLUSTER_METADATA_KEY, namespace=b"cluster")
other = json.dumps({**json.loads(kept), "ray_version": "2.9.3", "python_version": "3.8.0"}).encode()
try:
    for metadata in (kept, other):
        client.internal_kv_put(CLUSTER_METADATA_KEY, metadata, True, b"cluster")
        try:
            require_admission(sys.argv[1])
            require_node(sys.argv[1])
        except ClusterError as error:
            print(error)
finally:
    client.internal_kv_put(CLUSTER_METADATA_KEY, kept, True, b"cluster")
"""
_MEND = (
    "set RAY_AUTH_TOKEN to the token that the cluster was started with, or RAY_AUTH_TOKEN_PATH to a file that has it "
    "(`ray get-auth-token` prints it there)"
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("ray")) as there:
        yield there


def test_a_token_that_the_cluster_does_not_take_is_told_with_where_it_is_from(cluster: Nodes, tmp_path: Path) -> None:
    wrong, empty, home = tmp_path / "wrong", tmp_path / "empty", tmp_path / "home"
    wrong.write_text("0" * 64)
    empty.touch()
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("1" * 64)
    at = f"the Ray cluster at {cluster.address}"
    refused = f"{at} does not take the token that is sent to it, from"
    cases: list[tuple[dict[str, str], str]] = [
        ({"RAY_AUTH_TOKEN_PATH": str(wrong)}, f"{refused} {wrong} (RAY_AUTH_TOKEN_PATH); {_MEND}"),
        ({"HOME": str(home)}, f"{refused} {home}/.ray/auth_token; {_MEND}"),
        (
            {"RAY_AUTH_TOKEN_PATH": str(empty)},
            f"{at} wants a token, and the file that RAY_AUTH_TOKEN_PATH names, {empty}, has none, or cannot be read; "
            f"{_MEND}",
        ),
        (
            {"HOME": str(tmp_path)},
            f"{at} wants a token, and there is none: RAY_AUTH_TOKEN and RAY_AUTH_TOKEN_PATH are not set; {_MEND}",
        ),
        (
            {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"},
            f"{at} wants a token, and RAY_AUTH_MODE is disabled, so that none is sent; set it to token",
        ),
        ({"RAY_AUTH_TOKEN": cluster.environment["RAY_AUTH_TOKEN"]}, ""),
    ]
    bare = {name: value for name, value in cluster.environment.items() if not name.startswith("RAY_AUTH_")}
    asking = [sys.executable, "-c", _ADMITTED, cluster.address]
    line, _ = command(tmp_path, f"runtime.address={cluster.address}")
    wrong_name = {**cluster.environment, "RAY_AUTH_TOKEN": "0" * 64}
    run = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=wrong_name)
    asked = [subprocess.Popen(asking, stdout=subprocess.PIPE, text=True, env={**bare, **given}) for given, _ in cases]
    said = [each.communicate(timeout=_WAIT_S)[0].strip() for each in asked]
    assert said == [told for _, told in cases]
    _, errors = run.communicate(timeout=_WAIT_S)
    assert run.returncode == 1
    assert f"headrace: {refused} RAY_AUTH_TOKEN; {_MEND}\n" in errors


@pytest.mark.skipif(not can_unshare("-rpf"), reason="no namespaces here")
def test_who_cannot_join_is_told_why(cluster: Nodes) -> None:
    """From a namespace of processes in which none of the cluster's is, as on another machine."""
    asking = [*("unshare", "-rpf", "--mount-proc"), sys.executable, "-c", _NO_NODE, cluster.address]
    told = subprocess.run(asking, capture_output=True, text=True, env=cluster.environment, timeout=_WAIT_S)
    own = f"Ray {version('ray')} and Python {platform.python_version()}"
    assert told.stdout.splitlines() == [
        f"this machine is no node of the Ray cluster at {cluster.address}, and a run can only be begun on one: run the "
        f"command on a node, make this machine one (`ray start --address={cluster.address}`), or hand the run to the "
        "cluster (`headrace submit`)",
        f"the Ray cluster at {cluster.address} has Ray 2.9.3 and Python 3.8.0, and the command {own}; install the "
        "cluster's here, or have it run the command (headrace submit)",
    ], told.stderr


def test_a_run_that_is_told_to_stop_says_so_in_lines_of_its_own(cluster: Nodes, tmp_path: Path) -> None:
    process, run = begun(tmp_path, f"runtime.address={cluster.address}", batches=5000)
    try:
        until_batch(run, 1, process)
        left = of_run(process, run)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=_WAIT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert not gone(left, 10.0)
    assert "told to stop by SIGTERM: the batch at hand is given up" in out
    assert re.search(r"^stopped: v\d+ after ", out, re.MULTILINE)
    assert not re.search(r"\*\*\*|^PC:|logging\.cc|Traceback", out, re.MULTILINE), out
