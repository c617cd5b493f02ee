"""Keeps the relays of the weight plane at work: makes lost ones anew, and gives those that are behind the newest
version."""

from __future__ import annotations

from contextlib import suppress

from headrace.roles.context import RoleContext
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.relay.relays import Relays


class WeightRelaysRole:
    def __init__(self, context: RoleContext, relays: Relays) -> None:
        self._context = context
        self._relays = relays

    async def run(self) -> None:
        """Until cancelled, as the run ends. Raises StoreError."""
        context, relays = self._context, self._relays
        while True:
            relays.events.tell_what_is_left()
            due = relays.next_due()
            if due is not None and due <= 0:
                await relays.mend()
                continue
            with suppress(WaitTimeout):
                wait = context.stall_timeout_s if due is None else due
                await relays.changed.wait(context.runtime.clock, wait, "a relay that is behind")
