"""A command as a job of a cluster: handed to the job server of its head, followed, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from headrace.errors import HeadraceError
from headrace.runtime.event_loop import on_own_thread

_LOOK_S, _STATUS_S, _STOP_S = 0.5, 60.0, 60.0
_TRIES = 5
_WORDS = 300
_STOPPED = 130


class JobError(HeadraceError, ConnectionError):
    """The job server does not answer, lets nobody in, or has lost the job."""


class Jobs:
    def __init__(self, address: str) -> None:
        """`address`: of the job server, as http://127.0.0.1:8265; the environment has its token. Blocking. Raises
        JobError."""
        self._address = address
        self._client: JobSubmissionClient = self._asked(lambda: JobSubmissionClient(address))

    def submit(self, entrypoint: str, folder: Path) -> str:
        """The job's id. `entrypoint`: a line for a shell, run in a copy of `folder`. Blocking. Raises JobError."""
        environment = {"working_dir": str(folder)}
        return self._asked(lambda: self._client.submit_job(entrypoint=entrypoint, runtime_env=environment))

    async def follow(self, job: str, write: Callable[[str], None]) -> int:
        """Its exit code, once it has ended; `write` is given what it prints. Raises JobError."""
        status = await self._ended(job, write)
        details = await self._ask(lambda: self._client.get_job_info(job))
        if status == JobStatus.STOPPED:
            return _STOPPED
        if status == JobStatus.SUCCEEDED:
            return 0
        if details.driver_exit_code is None:
            raise JobError(f"the job {job} failed before it began: {_one_line(details.message)}")
        return int(details.driver_exit_code)

    async def stop(self, job: str) -> None:
        """End it, and wait until it has. Raises JobError."""
        await self._ask(lambda: self._client.stop_job(job))
        waited = 0.0
        while not (await self._ask(lambda: self._client.get_job_status(job))).is_terminal():
            if waited >= _STOP_S:
                raise JobError(f"the job {job} has not ended {_STOP_S:.0f} s after it was told to; look at it there")
            await asyncio.sleep(_LOOK_S)
            waited += _LOOK_S

    async def _ended(self, job: str, write: Callable[[str], None]) -> Any:
        """Its status. What it prints is followed anew where the way to it breaks."""
        written, failed = 0, 0
        while True:
            seen = 0
            try:
                async with aclosing(self._client.tail_job_logs(job)) as parts:
                    async for lines in parts:
                        seen += len(lines)
                        if seen > written:
                            write(lines[len(lines) - (seen - written) :])
                            written = seen
            except (OSError, RuntimeError) as error:
                failed += 1
                if failed >= _TRIES:
                    raise self._unreached(error) from error
            status = await self._ask(lambda: self._client.get_job_status(job))
            if status.is_terminal():
                return status
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, call: Callable[[], Any]) -> Any:
        async with asyncio.timeout(_STATUS_S):
            return await on_own_thread(lambda: self._asked(call))

    def _asked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RayError, OSError, RuntimeError, ValueError) as error:
            raise self._unreached(error) from error

    def _unreached(self, error: Exception) -> JobError:
        return JobError(
            f"the job server at {self._address} does not do it: {_one_line(error)}; correct --address, give its token "
            "by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, and have the head of the cluster started with a dashboard "
            "(pip install 'headrace[jobs]' there)"
        )


def _one_line(words: object) -> str:
    return " ".join(str(words).split())[:_WORDS]
