from __future__ import annotations

from typing import Any

import pytest

from headrace.observe.events import Events


def test_what_happened_before_the_record_was_there_is_told_first() -> None:
    events, told = Events(), list[tuple[str, dict[str, Any]]]()
    for number in range(2):
        events.report("engine_died", {"engine": number})
    events.tell_what_is_left()
    events.tell_to(lambda kind, data: told.append((kind, data)))
    events.report("engine_back", {"engine": 0})
    assert told == [("engine_died", {"engine": 0}), ("engine_died", {"engine": 1}), ("engine_back", {"engine": 0})]


def test_who_follows_hears_of_a_record_that_cannot_be_written_and_nothing_is_lost_by_it() -> None:
    events, told, room = Events(), list[str](), list[bool]()

    def write(kind: str, data: dict[str, Any]) -> None:
        if not room:
            raise OSError("no space left")
        told.append(kind)

    events.tell_to(write)
    events.report("engine_died", {})
    events.report("engine_back", {})
    with pytest.raises(OSError, match="no space left"):
        events.tell_what_is_left()
    assert told == []
    room.append(True)
    events.tell_what_is_left()
    assert told == ["engine_died", "engine_back"]
