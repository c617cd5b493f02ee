"""Weights sent to one server by gloo, from a process beside: see `headrace.weights.gloo_sender`.

Invariant: what fails here, or is given up, ends that process, and with it every wait for it, here and in the server.
The next version is sent by another, in a new group. Where nobody waits yet, it stays: a version that was overtaken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.engines.servers.http import ServerRefused
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.weights.by_expert import by_expert
from headrace.weights.plane import BUCKET_BYTES, TensorEntry, WeightError, WeightOffer
from headrace.weights.slot_format import HEADER, places

T = TypeVar("T")

_START_S, _END_S = 60.0, 10.0
GROUP_S = 60.0
"""In which a group has to come together."""
STILL_S = 300.0
"""That one broadcast may take, of 64 MiB or of one tensor that is larger."""
_LAST_WORDS_S = 5.0
"""In which a server that is left says what was wrong."""
_MODULE = "headrace.weights.gloo_sender"


class WeightSender:
    def __init__(self, host: str, clock: Clock, log: Path) -> None:
        """`host`: an address of this machine, which the server reaches. `log`: what the process prints is added
        there."""
        self.host = host
        self._clock = clock
        self._log = log
        self._process: Process | None = None
        self._life = -1
        """A pipe: the process ends when this end is closed."""
        self.port = 0
        """Of the store by which a group finds together; another one in each life of the process."""
        self.has_group = False

    async def open(self) -> None:
        """Have the process, and let it listen. Raises WeightError."""
        if self._is_there:
            return
        await self.close()
        life, self._life = os.pipe()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", _MODULE, str(os.getpid()), str(life)),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    pass_fds=[life],
                    start_new_session=True,  # Ctrl-C is for the run
                )
        except OSError as error:
            await self.close()
            raise WeightError(f"the process that sends weights cannot be started: {error}") from error
        finally:
            os.close(life)
        what = f"weights to be sent from {self.host}"
        self.port = await self._ask("listen", {"host": self.host, "seconds": GROUP_S}, _START_S, what)

    async def join(self, prefixes: Sequence[str], ranks: int) -> None:
        """Once `ranks` processes of the server are in the group too, behind this one; they have `prefixes` before their
        keys in the store, from the outermost. Raises WeightError."""
        what = f"{ranks} process(es) of the server to come to {self.host}:{self.port}"
        given = {"prefixes": [*prefixes], "size": 1 + ranks, "seconds": STILL_S}
        await self._ask("join", given, GROUP_S, what)
        self.has_group = True

    async def take(self, offer: WeightOffer) -> Sequence[TensorEntry]:
        """From now on, what is sent is of this version, which has these tensors. Raises WeightError."""
        if offer.transport != "shm" or offer.manifest is None:
            raise WeightError(
                f"weights come by {offer.transport!r}, and what is sent by gloo has to be in shared memory"
            )
        entries = offer.manifest.entries
        tensors = [(place, place + entry.size) for entry, place in places(entries)[0]]
        what = f"{offer.version} to be found"
        given = {"folder": offer.address, "version": [*offer.version], "tensors": tensors}
        await self._ask("take", given, STILL_S, what)
        return entries

    async def send(self, parts: Sequence[tuple[int, int]], *, sums: bool = False) -> None:
        """Bytes of the version's slot, each (begin, end) in a broadcast. `sums`: `leave` is to send their sums. Raises
        WeightError."""
        seconds = STILL_S * max(1, len(parts))
        await self._ask("send", {"places": [*parts], "sums": sums}, seconds, "weights to be taken by the server")

    async def leave(self) -> None:
        """All of the version was sent. Raises WeightError, also where it was overtaken meanwhile."""
        await self._ask("leave", {}, STILL_S, "the sums of weights to be taken by the server")

    async def during(self, answer: Coroutine[Any, Any, T], sending: Coroutine[Any, Any, None]) -> T:
        """What the server answers to a call that takes what is sent to it meanwhile. If one of the two fails, the other
        is given up. Raises what they raise: rather what the server says."""
        call, sent = asyncio.create_task(answer), asyncio.create_task(sending)
        try:
            await asyncio.wait([call, sent], return_when=asyncio.FIRST_EXCEPTION)
            if not call.done():  # it ends now, since the process has
                with contextlib.suppress(WaitTimeout):
                    await self._clock.wait_for(asyncio.wait([call]), _LAST_WORDS_S, "what the server says")
        finally:
            for task in (call, sent):
                task.cancel()
            await asyncio.gather(call, sent, return_exceptions=True)
        refused, unsent = (None if task.cancelled() else task.exception() for task in (call, sent))
        if (error := refused or unsent) is None:
            return call.result()
        self._kill()
        if isinstance(refused, ServerRefused) and unsent is not None:
            raise WeightError(f"{unsent}; {refused}") from refused
        raise error

    async def close(self) -> None:
        """End the process."""
        self._kill()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(WaitTimeout):
                await self._clock.wait_for(process.wait(), _END_S, "the process that sends weights to end")

    async def _ask(self, method: str, given: Mapping[str, Any], seconds: float, what: str) -> Any:
        process = self._process
        if not self._is_there or process is None or process.stdin is None or process.stdout is None:
            raise self._gone()
        try:
            with contextlib.suppress(ConnectionError):  # then it does not answer either
                process.stdin.write(json.dumps([method, given]).encode() + b"\n")
            line = await self._clock.wait_for(process.stdout.readline(), seconds, what)
            if not line:
                raise self._gone()
            told = json.loads(line)
            if told.get("ends"):
                raise WeightError(f"{what}: {told['error']}")
        except WaitTimeout as late:
            self._kill()
            raise WeightError(str(late)) from late
        except BaseException:
            self._kill()
            raise
        if "error" in told:
            raise WeightError(f"{what}: {told['error']}")
        return told["result"]

    @property
    def _is_there(self) -> bool:
        return self._life >= 0 and self._process is not None and self._process.returncode is None

    def _gone(self) -> WeightError:
        return WeightError(f"the process that sends weights has ended; what it said is in {self._log}")

    def _kill(self) -> None:
        self.has_group = False
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def chunks(entries: Sequence[TensorEntry]) -> list[tuple[int, int]]:
    """All bytes of a slot's tensors, as they lie there."""
    end = places(entries)[1]
    return [(begin, min(begin + BUCKET_BYTES, end)) for begin in range(HEADER, end, BUCKET_BYTES)]


def buckets(entries: Sequence[TensorEntry]) -> Iterator[list[tuple[TensorEntry, tuple[int, int]]]]:
    """All tensors that are not empty, each expert's by itself, with their bytes in the slot, so many at a time that
    they have `BUCKET_BYTES` at most, or are one."""
    bucket: list[tuple[TensorEntry, tuple[int, int]]] = []
    size = 0
    for entry, (begin, end) in _told_apart(entries):
        if bucket and size + entry.size > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        if entry.size:
            bucket.append((entry, (begin, end)))
            size += entry.size
    if bucket:
        yield bucket


def _told_apart(entries: Sequence[TensorEntry]) -> Iterator[tuple[TensorEntry, tuple[int, int]]]:
    for whole, place in places(entries)[0]:
        for entry in by_expert(whole):
            yield entry, (place, place + entry.size)
            place += entry.size
