"""How a command enters the folder that it is given."""

from __future__ import annotations

from typing import Literal

Begin = Literal["new", "resume", "fresh"]
"""`new`: where no run is. `resume`: go on with the one that is there. `fresh`: erase it and begin again."""
