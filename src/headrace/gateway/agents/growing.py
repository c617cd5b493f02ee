"""An answer while it is sampled: what of it is certain, for those who read along.

What is certain is the beginning of each part of the message that the whole answer is read as (`Reading`), however its
tokens come. Held back is what may still be part of a character, of a text that stops the answer, of a thought's mark or
of a call, and white space that would be dropped before one; calls, and what is behind the first, come with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engines.protocol import TokenChunk
from headrace.experience.text.messages import Message
from headrace.experience.text.piecewise import Piecewise
from headrace.experience.text.stops import first_place
from headrace.experience.text.token_texts import ShownToken, TokenTexts
from headrace.gateway.agents.answered import Answered
from headrace.gateway.agents.left_out import LeftOut
from headrace.gateway.agents.reading import Reading
from headrace.gateway.agents.reasoning import ThoughtSplitter
from headrace.gateway.agents.so_far import SoFar
from headrace.runtime.protocol import Clock
from headrace.runtime.signal import Signal


class GrowingAnswer:
    """One choice. Its tokens are read when somebody asks for what is certain, so that many small chunks cost little."""

    def __init__(self, reading: Reading, *, logprobs: bool) -> None:
        self._reading = reading
        self._token_texts = TokenTexts(reading.text) if logprobs else None
        self._tokens: list[ShownToken] = []
        self._coming: list[TokenChunk] = []
        self._pieces = Piecewise(reading.text)
        self._held = ""
        """What may be part of a text that stops the answer, and all behind one."""
        self._splitter = ThoughtSplitter(begun=reading.begun) if reading.splits else None
        self._watch = None if reading.parser is None else reading.parser.watch()
        self._plain_thought, self._plain = LeftOut(reading.marks), LeftOut(reading.marks)
        self._message: Message = {"role": "assistant", "content": ""}

    def came(self, chunk: TokenChunk) -> None:
        """More tokens, none of which will be taken back."""
        self._coming.append(chunk)

    def so_far(self) -> SoFar:
        """What is certain now."""
        coming, self._coming = self._coming, []
        ids: list[int] = []
        for chunk in coming:
            ids += chunk.tokens.tolist()
            if self._token_texts is not None:
                self._tokens += self._token_texts.push(chunk.tokens.tolist(), chunk.logprobs.tolist())
        if ids:
            # Of an engine that died after it sampled the token that closes the turn: nothing comes behind it.
            self._push(ids[:-1] if ids[-1] in self._reading.closing else ids)
        return SoFar(self._message, self._tokens)

    def _push(self, ids: list[int]) -> None:
        self._held += self._pieces.push(ids)
        place = first_place(self._held, self._reading.stop)
        said, self._held = self._held[:place], self._held[place:]
        if said:
            self._hear(said)

    def _hear(self, said: str) -> None:
        thought, answer = ("", said) if self._splitter is None else self._splitter.push(said)
        self._say(thought, answer if self._watch is None else self._watch.push(answer))

    def _say(self, thought: str, text: str) -> None:
        message = self._message
        if self._splitter is not None and self._splitter.has_thought:
            thought = self._plain_thought.push(thought)
            rest = "" if self._splitter.is_open else self._plain_thought.flush()
            message["reasoning_content"] = message.get("reasoning_content", "") + thought + rest
        message["content"] += self._plain.push(text)


@dataclass(eq=False, slots=True)
class Live:
    """The answer to one request, which as many connections read along as there are."""

    changes: int = 0
    """How often there may have come more of it."""
    answered: Answered | None = None
    """Once it is asked for: what is known of it before its end."""
    _choices: list[GrowingAnswer | SoFar] = field(default_factory=list)
    _changed: Signal = field(default_factory=Signal)

    def begin(self, answered: Answered, choices: Sequence[GrowingAnswer]) -> None:
        self.answered = answered
        self._choices += choices

    def came(self, index: int, chunk: TokenChunk) -> None:
        """More tokens of a choice. Those with which it ends are left to its whole."""
        growing = self._choices[index]
        if chunk.finish_reason is None and isinstance(growing, GrowingAnswer):
            growing.came(chunk)
            self.notify()

    def end(self, index: int, whole: SoFar) -> None:
        """A choice has ended. The end of the last one is that of the answer, and told by whoever has that."""
        self._choices[index] = whole
        if any(isinstance(each, GrowingAnswer) for each in self._choices):
            self.notify()

    def notify(self) -> None:
        self.changes += 1
        self._changed.notify()

    async def wait(self, seen: int, clock: Clock, seconds: float) -> None:
        """Until there have been more changes than `seen`. Raises WaitTimeout."""
        await self._changed.wait_until(lambda: self.changes != seen, clock, seconds, lambda: "more of an answer")

    def so_far(self) -> list[SoFar]:
        """Of each choice what is certain now."""
        return [each.so_far() if isinstance(each, GrowingAnswer) else each for each in self._choices]
