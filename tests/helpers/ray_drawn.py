"""Where a run's workers would be in a cluster, or why nowhere: a line of JSON for each list of overrides.

python ray_drawn.py CONFIG ROLLOUT_WORKERS '["key=value"]' '["key=other"]'

A number after the overrides: bytes of a batch's samples.
"""

from __future__ import annotations

import json
import sys

from headrace.config import TrainConfig, load_config
from headrace.controller.planning.placement_view import drawn
from headrace.errors import HeadraceError
from headrace.runtime.node_check import SharedNeeds


def main(config: str, rollouts: str, *overrides: str) -> None:
    for each in overrides:
        try:
            given = json.loads(each)
            shared = SharedNeeds(0, columns=given.pop()) if isinstance(given[-1], int) else None
            told = drawn(load_config(TrainConfig, config, given), int(rollouts), shared)
        except HeadraceError as error:
            told = [str(error)]
        sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
