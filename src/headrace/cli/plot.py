"""`headrace plot`."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.api.picture import picture_of


def run(args: argparse.Namespace) -> int:
    folders = [Path(name) for name in args.run_dirs]
    picture = picture_of(folders, Path(args.output), by=args.by, smooth=args.smooth, each=args.each)
    print(picture.path)
    return 0
