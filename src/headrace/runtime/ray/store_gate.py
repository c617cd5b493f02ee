"""Whether the object store of this node may be touched.

Ray ends a process that finds its node's store gone, at once and without a word (exit code 1, in C++), so that the run
could neither say why it ends nor end in order. A store does not go by itself: where the head of a cluster has died,
what `ray start` left there ends its node's daemon, and with that the store, about a second later. So the controller
looks at the head several times a second, and touches the store no more once nobody listens there.
"""

from __future__ import annotations

import asyncio
import socket
import threading

_LOOK_S = 0.2
_ANSWER_S = 5.0


class StoreGate:
    """Open while the head listens, or does not answer in time, as one that is busy; shut while connections to it are
    refused."""

    def __init__(self, at: tuple[str, int]) -> None:
        """`at`: host and port of the head."""
        self._at = at
        self._open, self._closed = threading.Event(), threading.Event()
        self._open.set()
        threading.Thread(target=self._look, name="store gate", daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it is open, within so long."""
        return self._open.wait(seconds)

    async def wait_soon(self) -> None:
        """Until it is open."""
        while True:
            if self._open.is_set():
                return
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_S):
            try:
                socket.create_connection(self._at, timeout=_ANSWER_S).close()
            except ConnectionRefusedError:
                self._open.clear()
            except OSError:
                continue
            else:
                self._open.set()
