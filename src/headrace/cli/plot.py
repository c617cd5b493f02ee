"""`headrace plot`."""

from __future__ import annotations

import argparse

from headrace.api.picture import picture_of
from headrace.config.values.paths import path_of


def run(args: argparse.Namespace) -> int:
    folders = [path_of(name) for name in args.run_dirs]
    picture = picture_of(folders, path_of(args.output), by=args.by, smooth=args.smooth, each=args.each)
    print(picture.path)
    return 0
