"""One more node of a Ray cluster on this machine, until this process ends: `ray start --address` gives none on loopback
alone.

    python ray_node.py ADDRESS '{"num_cpus": 2, "resources": {"slot": 2}}' [OWN_ADDRESS]
"""

from __future__ import annotations

import json
import signal
import sys

UP = "up"
STORE = 200 * 2**20
"""Bytes of its object store."""


def main(address: str, resources: str, own: str = "127.0.0.1") -> None:
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    told = json.loads(resources)
    parameters = RayParams(
        gcs_address=address,
        node_ip_address=own,
        include_dashboard=False,
        object_store_memory=STORE,
        num_gpus=0,
        **told,
    )
    node = Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)
    sys.stdout.write(f"{UP}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(*sys.argv[1:])
