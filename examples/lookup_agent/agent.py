"""Answers with the value of a key. It knows nothing of training: it speaks the OpenAI API, and has one tool."""

import json
import sqlite3
from pathlib import Path

import aiohttp

FACTS = Path(__file__).parent / "facts.db"
TURNS = 4
TOOL = {
    "type": "function",
    "function": {
        "name": "query",
        "description": "The value of a key.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}


def query(key="", **_) -> str:
    with sqlite3.connect(f"file:{FACTS}?mode=ro", uri=True) as database:
        found = database.execute("SELECT value FROM facts WHERE key = ?", (str(key),)).fetchone()
    return found[0] if found else "?"


async def solve_alone(episode) -> float:
    """Without its tool."""
    return await solve(episode, tools=None)


async def solve(episode, tools=(TOOL,)) -> float:
    messages = [{"role": "user", "content": episode.row["prompt"]}]
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        for _ in range(TURNS):
            body = {"model": episode.model, "messages": messages} | ({"tools": [*tools]} if tools else {})
            async with client.post(f"{episode.base_url}/chat/completions", json=body) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls") or []
            if not calls:
                break
            for call in calls:
                result = query(**json.loads(call["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return float(messages[-1].get("content") == episode.row["answer"])
