"""`headrace submit`."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli.load import load_noted, tell_note
from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import resource_overrides
from headrace.config.values.paths import path_of
from headrace.observe.untrusted import visible

if TYPE_CHECKING:
    from headrace.runtime.ray.jobs import Jobs

_IN_THE_CLUSTER = ("runtime.kind=ray", "runtime.address=auto")
"""As whoever is in a job finds its cluster."""


def run(args: argparse.Namespace) -> int:
    args.overrides = [*resource_overrides(args.resource), *args.overrides, *_IN_THE_CLUSTER]
    config = load_noted(TrainConfig, args)
    run_folder = (Path("runs") / Path(args.config).stem if args.dir is None else path_of(args.dir)).absolute()
    from headrace.controller.shipping import CONFIG, ship
    from headrace.runtime.ray.environment import prepare

    prepare(args.address)
    try:
        from headrace.runtime.ray.jobs import Jobs
    except ImportError as error:
        raise ConfigError(f"headrace submit: pip install 'headrace[cluster]' ({error})") from error
    begin = ["--resume"] if args.resume else ["--fresh"] if args.fresh else []
    line = ["python", "-m", "headrace", "train", CONFIG, "--dir", str(run_folder), "--plain", *begin]
    where = f"at {args.address}, in {run_folder}"

    async def submitted() -> int:
        jobs = await Jobs.at(args.address)
        with tempfile.TemporaryDirectory(prefix="headrace-job-") as folder:
            ship(config, Path(folder))
            job = await jobs.submit(shlex.join(line), Path(folder))
        tell_note(f"job {job} {where}")
        return await _followed(jobs, job)

    return asyncio.run(submitted())


async def _followed(jobs: Jobs, job: str) -> int:
    """Its exit code. A signal stops it, and a second one leaves it."""
    from headrace.controller.stopping import StopRequest

    def write(lines: str) -> None:
        sys.stdout.write(visible(lines))  # what a model wrote may be in them
        sys.stdout.flush()

    with StopRequest("the job is stopped; a second signal leaves it to its end") as told:
        stopping = asyncio.ensure_future(told.wait())
        following = asyncio.ensure_future(jobs.follow(job, write))
        try:
            await asyncio.wait([stopping, following], return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                await jobs.stop(job)
            return await following
        finally:
            stopping.cancel()
