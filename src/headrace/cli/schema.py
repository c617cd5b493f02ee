"""`headrace schema`."""

from __future__ import annotations

import argparse
import json

from headrace.config.reading.json_schema import json_schema


def run(args: argparse.Namespace) -> int:
    print(json.dumps(json_schema(args.kind), indent=2))
    return 0
