"""How many tokens a server has handed out, and how many of them have come: so it is known when all have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenCount:
    read: int = 0
    """Tokens that came since the server was met."""
    before: int | None = None
    """Tokens that it had handed out by then; None if that is not known, or not any more."""

    def begin(self, told: int | None) -> None:
        """All that the server says it has handed out has come; None: it does not say."""
        self.before = None if told is None else told - self.read

    @property
    def handed_out(self) -> int:
        """What the server has to say, if all has come."""
        return (self.before or 0) + self.read
