"""What agents need of whoever serves them: an episode behind an address and a key. `gateway/` has it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Protocol

from headrace.rollout.policy import Policy
from headrace.rollout.trajectory import Trajectory


class Session(Protocol):
    """One episode, open to requests."""

    base_url: str
    """Of the OpenAI API, as `http://127.0.0.1:40001/v1`."""
    api_key: str
    """This episode's alone."""
    model: str
    """What to ask for."""
    broken: asyncio.Future[None]
    """Has an exception once the episode cannot go on, whatever the agent does."""

    def folder(self) -> Path:
        """An empty folder of this episode's own, which is removed with it."""

    async def socket(self) -> str:
        """Path of a Unix socket that answers for this episode alone."""

    def standing(self) -> AbstractContextManager[None]:
        """Within, the episode's time does not run."""

    def close(self) -> None:
        """Its key opens nothing from now on, and what was asked is aborted."""

    def trajectories(self) -> Sequence[Trajectory]:
        """What was sampled and delivered, as histories. Raises ValueError if nothing was."""


class Sessions(Protocol):
    """Opens episodes."""

    def open(self, policy: Policy) -> AbstractAsyncContextManager[Session]:
        """A session of the policy's episode. Once it is left, it is closed, and nothing of it runs any more."""
