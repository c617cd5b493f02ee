"""Where a run's workers would be in a cluster, or why nowhere: a line of JSON for each list of overrides.

python ray_drawn.py CONFIG ROLLOUT_WORKERS '["key=value"]' '["key=other"]'
"""

from __future__ import annotations

import json
import sys

from headrace.config import TrainConfig, load_config
from headrace.controller.planning.placement_view import drawn
from headrace.errors import HeadraceError


def main(config: str, rollouts: str, *overrides: str) -> None:
    for each in overrides:
        try:
            told = drawn(load_config(TrainConfig, config, json.loads(each)), int(rollouts))
        except HeadraceError as error:
            told = [str(error)]
        sys.stdout.write(f"{json.dumps(told)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
