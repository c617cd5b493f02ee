"""A command as a job of a cluster: handed to the job server of its head, followed, stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import AuthenticationError, RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from headrace.errors import HeadraceError
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.ray.admission import token_error

_LOOK_S, _STATUS_S = 0.5, 60.0
_SUBMIT_S = 300.0
"""In which the files of a job are taken."""
_QUIET_S = 60.0
"""After which a log that says nothing is not waited for alone: whoever sends it may be gone without a word."""
_COMMIT_S = 600
"""That Ray leaves a job which was told to stop until it kills it: a run commits first."""
_STOP_S = _COMMIT_S + 60.0
_TRIES = 5
_WORDS = 300
_STOPPED = 130


class JobError(HeadraceError, ConnectionError):
    """The job server does not answer, lets nobody in, or has lost the job."""


class Jobs:
    def __init__(self, address: str, client: JobSubmissionClient) -> None:
        """See `at`."""
        self._address = address
        self._client = client

    @classmethod
    async def at(cls, address: str) -> Jobs:
        """`address`: of the job server, as http://127.0.0.1:8265; the environment has its token. Raises JobError."""
        return cls(address, await _asked(address, lambda: JobSubmissionClient(address), _STATUS_S))

    async def submit(self, entrypoint: str, folder: Path) -> str:
        """The job's id. `entrypoint`: a line for a shell, run in a copy of `folder`. Raises JobError."""
        # Read by the job's supervisor, which kills what does not stop in that time: in 3 s unless told.
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(_COMMIT_S)}
        environment = {"working_dir": str(folder), "env_vars": variables}
        job: str = await self._ask(
            lambda: self._client.submit_job(entrypoint=entrypoint, runtime_env=environment), _SUBMIT_S
        )
        return job

    async def follow(self, job: str, write: Callable[[str], None]) -> int:
        """Its exit code, once it has ended; `write` is given what it prints. Raises JobError."""
        status = await self._ended(job, write)
        if status == JobStatus.STOPPED:
            return _STOPPED
        if status == JobStatus.SUCCEEDED:
            return 0
        details = await self._ask(lambda: self._client.get_job_info(job))
        if details.driver_exit_code is not None:
            return int(details.driver_exit_code)
        if details.driver_node_id is None:  # known as soon as it runs
            raise JobError(f"the job {job} failed before it began: {_one_line(details.message)}")
        raise JobError(
            f"the job {job} was lost while it ran: {_one_line(details.message)}; submit it again with --resume"
        )

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
        """Its status. What it prints is followed anew where the way to it breaks: until that was tried in vain so often
        in a row."""
        written, failed, was_over = 0, 0, False
        while True:
            seen, fault = 0, None
            try:
                async with aclosing(self._parts(job)) as parts:
                    async for lines in parts:
                        failed = 0
                        seen += len(lines)
                        if seen > written:
                            write(lines[len(lines) - (seen - written) :])
                            written = seen
            except (OSError, RuntimeError, aiohttp.ClientError) as error:
                fault = error
            status = await self._ask(lambda: self._client.get_job_status(job))
            if status.is_terminal() and (fault is None or was_over):  # else the rest is asked for once
                return status
            was_over = status.is_terminal()
            if fault is not None:
                failed += 1
                if failed >= _TRIES and not was_over:
                    raise _unreached(self._address, fault) from fault
            await asyncio.sleep(_LOOK_S)

    async def _parts(self, job: str) -> AsyncGenerator[str, None]:
        """Of what it prints, from its beginning. Raises OSError (TimeoutError: nothing came though it has ended),
        RuntimeError, ClientError, and JobError where the server is silent too."""
        async with aclosing(self._client.tail_job_logs(job)) as parts:
            was_over = False

            async def next_part() -> str | None:
                found: str | None = await anext(parts, None)
                return found

            while True:
                part = asyncio.ensure_future(next_part())
                try:
                    while not (await asyncio.wait([part], timeout=_QUIET_S))[0]:
                        if was_over:
                            raise TimeoutError(f"the log of {job} has no end, though the job ended")
                        was_over = (await self._ask(lambda: self._client.get_job_status(job))).is_terminal()
                    lines = await part
                finally:
                    part.cancel()
                    await asyncio.gather(part, return_exceptions=True)
                if lines is None:
                    return
                yield lines

    async def _ask(self, call: Callable[[], Any], seconds: float | None = None) -> Any:
        return await _asked(self._address, call, _STATUS_S if seconds is None else seconds)


async def _asked(address: str, call: Callable[[], Any], seconds: float) -> Any:
    """Its answer, of a call that blocks. Raises JobError."""
    try:
        async with asyncio.timeout(seconds):
            return await on_own_thread(call)
    except TimeoutError as error:
        silent = TimeoutError(f"it has not answered for {seconds:g} s" if not str(error) else str(error))
        raise _unreached(address, silent) from error
    except AuthenticationError as error:
        raise JobError(str(token_error(f"the job server at {address}"))) from error
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise _unreached(address, error) from error


def _unreached(address: str, error: Exception) -> JobError:
    return JobError(
        f"the job server at {address} does not do it: {_one_line(error)}; correct --address, and have the head of "
        "the cluster started with a dashboard (pip install 'headrace[jobs]' there)"
    )


def _one_line(words: object) -> str:
    return " ".join(str(words).split())[:_WORDS]
