"""An agent that looks up what it is asked for, and then rewrites its history."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal

Message = dict[str, Any]
Ask = Callable[[list[Message]], Awaitable[Message]]
Agent = Callable[[Ask], Awaitable[None]]
Rewriting = Literal["summed up", "asked otherwise", "told otherwise", "taken back", "answered otherwise"]

VALUES = dict(zip("abcdefgh", "31415926", strict=True))


def question(key: str, thinks: bool, known: str = "") -> str:
    """For the value of `key`, before which the policy `thinks`; `known`: one that is told."""
    told = f"{known} is {VALUES[known]}. " if known else ""
    return f"{told}{'Think: what' if thinks else 'What'} is {key}?"


def looking_up(keys: str, thinks: bool, how: Rewriting) -> Agent:
    """Asks for two of four `keys`, rewrites the history as `how` says, and goes on: for the third, unless it is told
    another value for the second."""
    one, two, three, other = keys

    def user(key: str, known: str = "") -> Message:
        return {"role": "user", "content": question(key, thinks, known)}

    def rewritten(messages: list[Message]) -> list[Message]:
        match how:
            case "summed up":
                return [user(three, one)]
            case "asked otherwise":
                return [user(other), *messages[1:], user(three)]
            case "told otherwise":
                return [*messages[:-2], {**messages[-2], "content": "8 units"}]
            case "taken back":
                return [*messages[:4], user(three)]
            case "answered otherwise":
                return [*messages[:-1], {**messages[-1], "content": "It is hard."}, user(three)]

    async def agent(ask: Ask) -> None:
        async def until_told(messages: list[Message]) -> None:
            while True:
                messages.append(await ask(messages))
                if not messages[-1].get("tool_calls"):
                    return
                for call in messages[-1]["tool_calls"]:
                    value = VALUES.get(json.loads(call["function"]["arguments"]).get("key"), "no")
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{value} units"})

        messages = [user(one)]
        await until_told(messages)
        messages.append(user(two))
        await until_told(messages)
        await until_told(rewritten(messages))

    return agent
