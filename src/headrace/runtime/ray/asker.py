"""Who asks an actor for something, as the numbers of its calls say."""

from __future__ import annotations

from dataclasses import dataclass

_END = ">"


@dataclass(frozen=True, slots=True)
class Asker:
    """The controller, or a worker in one of its lives."""

    name: str
    generation: int

    @property
    def prefix(self) -> str:
        """With which the numbers of all its calls begin; `of` is the way back."""
        return f"{self.name}.{self.generation}{_END}"

    @classmethod
    def of(cls, number: str) -> Asker:
        """Whose call has this number."""
        name, _, generation = number.partition(_END)[0].rpartition(".")
        return cls(name, int(generation))


CONTROLLER = Asker("controller", 0)
