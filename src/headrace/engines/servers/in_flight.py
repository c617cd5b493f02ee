"""The requests that a server has: each is read by a task of its own, to its end, whoever has left it meanwhile.

Every token that comes is of the version that is loaded at that moment: whoever exchanges the weights has the server
paused, and all that it sampled read. What comes of a version that is being checked is held until it is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress

from headrace.config.errors import ConfigError
from headrace.engines.liveness import Liveness
from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, RequestError
from headrace.engines.servers.answers import Answer
from headrace.engines.servers.dialect import Dialect, Piece
from headrace.engines.servers.http import ServerGone
from headrace.engines.servers.token_count import TokenCount
from headrace.engines.servers.token_silence import TokenSilence
from headrace.engines.servers.window import ServerLoad, Window
from headrace.runtime.protocol import Services, WaitTimeout
from headrace.runtime.signal import Signal
from headrace.weights.version import Version

_AGAIN_S = (0.2, 1.0, 5.0)
"""After which a server is told again of aborted requests that have not ended: one whose abort was there before it, by
another connection, goes on. One that gives tokens still as long after the last time is left: its server may know it by
another name, as where a proxy gives it an X-Request-Id."""


class InFlight:
    """False where there are none."""

    def __init__(
        self,
        dialect: Dialect,
        services: Services,
        liveness: Liveness,
        changed: Signal,
        version: Version,
        silence_s: float | None = None,
        *,
        slots: int,
        fail: Callable[[Exception], None],
    ) -> None:
        """`changed`: notified once a request is over. `version`: of the weights that the server has. `silence_s`:
        see `TokenSilence`. `slots`: sequences that it decodes together. `fail`: told why the server is gone."""
        self.version = version
        self.is_named = False
        """The server was told what its weights are called: they came through here."""
        self.checking: Version | None = None
        """What is sampled is of this version, and is held."""
        self.count = TokenCount()
        self.silence = TokenSilence(silence_s)
        self.prefilled = 0
        """Tokens of prompts."""
        self.busy_s = self.idle_s = 0.0
        """As of the last `note_load`."""
        self._dialect = dialect
        self._services = services
        self._liveness = liveness
        self._changed = changed
        self._fail = fail
        self._answers: dict[str, Answer] = {}
        self._window = Window.open(slots)
        self._since = services.clock.now()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def names(self) -> tuple[str, ...]:
        """Ids of requests."""
        return tuple(self._answers)

    @property
    def unread(self) -> int:
        """Requests of which something is to come."""
        return sum(not answer.is_read for answer in self._answers.values())

    @property
    def has_room(self) -> bool:
        """The server may be given one more."""
        return len(self._answers) < self._window.size

    def hear(self, load: ServerLoad) -> None:
        """How the server fares."""
        self.silence.heard(load)
        self._window = self._window.after(load, len(self._answers))
        self._changed.notify()

    def begin_load(self) -> None:
        """Seconds are counted from now on."""
        self._since = self._services.clock.now()

    def note_load(self) -> None:
        """Count the seconds until now."""
        now = self._services.clock.now()
        if self._liveness.started and not self._liveness.is_dead:
            if self._answers:
                self.busy_s += now - self._since
            else:
                self.idle_s += now - self._since
        self._since = now

    def begin(self, request: GenerateRequest) -> Answer:
        """Ask the server. Raises RequestError."""
        if request.request_id in self._answers:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        answer = Answer(request)
        self.note_load()
        self._answers[request.request_id] = answer
        self.prefilled += len(request.prompt)
        answer.pump = self._services.spawn(self._pump(answer), f"request {request.request_id}")
        return answer

    def abort(self, request_ids: Iterable[str]) -> None:
        """See `Engine.abort`. What the server still sends is read, so that it is known how much it sent."""
        found = [self._answers.get(name) for name in request_ids]
        self._end([mine for mine in found if mine is not None], FinishReason.ABORT)

    def put_off(self) -> None:
        """End with INTERRUPTED what no token came of: keys of its prompt may be of the weights that leave, and nothing
        would tell so of its tokens. For when all that was sampled has been read."""
        self._end([mine for mine in self._answers.values() if not mine.has_begun], FinishReason.INTERRUPTED)

    def _end(self, answers: Iterable[Answer], finish: FinishReason) -> None:
        ended = [mine for mine in answers if not mine.is_over]
        for mine in ended:
            mine.end(finish)
        if ended:
            self._services.spawn(self._tell_aborted(ended), "requests to be ended")

    async def stop(self) -> None:
        """End all of them with ABORT, and read no more."""
        answers = [*self._answers.values()]
        pumps = [answer.pump for answer in answers if answer.pump is not None]
        for answer in answers:
            answer.end(FinishReason.ABORT)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    def lose(self, error: Exception) -> None:
        """The server is dead. What came before is handed out."""
        for name, answer in self._answers.items():
            answer.pieces.put_nowait(EngineError(f"request {name!r} was lost: {error}"))

    def release(self) -> None:
        """Hand out what was held, of requests too that ended meanwhile."""
        for answer in self._answers.values():
            answer.release()
        self._leave_read()

    def refuse(self) -> None:
        """Nobody has what was held: what is in flight ends with INTERRUPTED."""
        self._end(self._answers.values(), FinishReason.INTERRUPTED)
        self._leave_read()

    async def until_none(self, seconds: float, why: str) -> None:
        """Until all are over. Raises EngineError."""
        try:
            await self._changed.wait_until(
                lambda: not self._answers or self._liveness.has_ended,
                self._services.clock,
                seconds,
                lambda: f"{len(self._answers)} requests in flight {why}",
            )
        except WaitTimeout as late:
            raise EngineError(str(late)) from late
        self._liveness.check()

    async def _tell_aborted(self, answers: list[Answer]) -> None:
        def have_ended() -> bool:
            return self._liveness.has_ended or all(mine.is_read for mine in answers)

        async def end_in(seconds: float) -> bool:
            clock = self._services.clock
            with suppress(WaitTimeout):
                await self._changed.wait_until(have_ended, clock, seconds, lambda: "what was aborted to end")
                return True
            return False

        for seconds in (0.0, *_AGAIN_S):
            if await end_in(seconds):
                return
            running = [mine for mine in answers if not mine.is_read]
            try:
                await self._dialect.abort([mine.asked.request_id for mine in running])
            except EngineError:  # then by leaving them
                for mine in running:
                    if mine.pump is not None:
                        mine.pump.cancel()
                return
        if not self._dialect.retracts and not await end_in(_AGAIN_S[-1]):
            for mine in answers:
                mine.is_unheard = True

    async def _pump(self, mine: Answer) -> None:
        """Read what comes of one request, to its end."""
        name = mine.asked.request_id
        try:
            async with aclosing(self._dialect.stream(mine.asked)) as pieces:
                async for piece in pieces:
                    self._take(mine, piece)
                    if piece.finish is not None:
                        return
                    if mine.is_unheard and len(piece.tokens):  # which ends it
                        self.count.before = None
                        return
            raise EngineError(f"request {name} ended without a finish reason")
        except (EngineError, RequestError) as error:
            self.count.before = None
            is_checked = self.checking is not None
            if isinstance(error, ServerGone):
                if await self._is_gone():
                    self._fail(error)
                elif is_checked:  # what was handed out is of the weights before, and goes on from there
                    mine.end(FinishReason.INTERRUPTED)
                    return
            mine.pieces.put_nowait(error)
        except asyncio.CancelledError:
            self.count.before = None
            raise
        except Exception as error:  # of what the server says, which may be anything
            self.count.before = None
            words = f"what the server sent cannot be read: {type(error).__name__}: {error}"
            unread = EngineError(f"request {name}: {words}")
            unread.__cause__ = error
            mine.pieces.put_nowait(unread)
        finally:
            mine.is_read = True
            if not mine.held:
                self._leave(name)

    async def _is_gone(self) -> bool:
        """Where it cannot tell, whoever watches its health looks again."""
        try:
            return not await self._dialect.is_up()
        except ConfigError:
            return True
        except Exception:
            return False

    def _take(self, mine: Answer, piece: Piece) -> None:
        if len(piece.tokens):
            self.silence.token()
        self.count.read += len(piece.tokens)
        chunk = mine.stamp(piece, self.checking or self.version, is_named=self.is_named)
        if mine.is_over:
            return
        if self.checking is None:
            mine.pieces.put_nowait(chunk)
        else:
            mine.held.append(chunk)

    def _leave(self, name: str) -> None:
        """The request is over, and all that came of it is handed out."""
        self.note_load()
        self._answers.pop(name, None)
        self._changed.notify()

    def _leave_read(self) -> None:
        for name in [name for name, answer in self._answers.items() if answer.is_read]:
            self._leave(name)
