"""The page of rollouts, and rollouts on a terminal: what a model wrote is shown, and never acts."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from headrace.experience.records.rollout_codec import RolloutDetail, encode_detail
from headrace.observe.untrusted import visible
from headrace.store.rollouts import Rollout, Turn
from headrace.viewer.rollout_page import page
from headrace.viewer.rollout_text import as_json, as_text
from headrace.viewer.token_text import TokenTexts

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> <!-- --> ]]> &lt;b&gt; \" ' ` ${x} "
    "\u2028\u2029 [bold red]rich[/] \x1b[31mred\x1b]0;title\x07 \u202eoverride \x00 \U0001f600"
)


class Texts(TokenTexts):
    """Each token is a character of HOSTILE."""

    def __init__(self) -> None:
        super().__init__(None)

    def pieces(self, tokens: Any) -> list[str]:
        return [HOSTILE[token] for token in np.asarray(tokens)]


def rollout(**changes: Any) -> Rollout:
    length = len(HOSTILE)
    chosen = np.arange(length) >= 4
    detail = RolloutDetail(
        tokens=np.arange(length, dtype=np.int32),
        loss_mask=chosen,
        logprobs=np.where(chosen, -1, 0).astype(np.float32),
        versions=np.where(chosen, np.where(np.arange(length) < 10, 3, 5), -1).astype(np.int32),
        branches=np.where(chosen, 0, -1).astype(np.int32),
        trained=chosen & (np.arange(length) < length - 1),
        advantages=np.full(length, 0.5, dtype=np.float32),
        trainer_logprobs=np.where(chosen, -1.25, 0).astype(np.float32),
        terms={HOSTILE: 1.0},
        metadata={"turns": 2, HOSTILE: [HOSTILE]},
    )
    made = Rollout(
        batch=1,
        at=0.0,
        key=(0, 0, 0),
        episode=0,
        sample=0,
        prompt_id=HOSTILE,
        status="failed",
        reason=HOSTILE,
        reward=0.5,
        advantage=0.5,
        tokens=length - 4,
        staleness=2,
        turns=(Turn(False, HOSTILE[:4]), Turn(True, HOSTILE[4:])),
        data=encode_detail(detail),
    )
    return replace(made, **changes)


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.policy = ""
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        named = dict(attrs)
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(named["content"])
        if tag == "script":
            self._script = named

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None


def test_hostile_text_is_data_and_nothing_else() -> None:
    text = page(HOSTILE, [rollout(), rollout(episode=1)], Texts())
    seen = Seen()
    seen.feed(text)
    data = [json.loads(body) for named, body in seen.scripts if named.get("type") == "application/json"]
    shown = visible(HOSTILE)
    assert [one["text"] for one in data] == [shown, shown], "all of it is there, and what has no glyph by its name"
    steering = [each for each in text if not (each.isprintable() or each == "\n")]
    assert steering == [], "nothing turns the text of the page around"
    assert not any("<" in body for named, body in seen.scripts if "type" in named), "no tag, nor the beginning of one"
    code = [body for named, body in seen.scripts if "type" not in named]
    assert len(code) == 1
    digest = base64.b64encode(hashlib.sha256(code[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in seen.policy, "only our own script may run"
    assert "default-src 'none'" in seen.policy
    assert "img" not in seen.tags
    assert "<bdi>turns 2</bdi>" in text
    assert not any(name.startswith("on") for name in seen.attributes)
    assert seen.tags.count("article") == 2
    assert seen.tags.count("section") == 1, "a group is one section"
    assert not re.search(r"https?://", text), "it loads nothing"


def test_the_page_has_each_tokens_numbers() -> None:
    seen = Seen()
    seen.feed(page("run", [rollout()], Texts()))
    ((_, body),) = [script for script in seen.scripts if script[0].get("type") == "application/json"]
    sample = json.loads(body)
    length = len(HOSTILE)
    assert sample["versions"] == [[-1, 4], [3, 6], [5, length - 10]]
    assert sample["mask"] == "0000" + "2" * (length - 5) + "1"
    assert sample["gap"] == [0.0] * 4 + [-0.25] * (length - 5) + [0.0]
    assert sample["advantage"] == [[0.5, length]]
    units = len(visible(HOSTILE).encode("utf-16-le")) // 2
    assert sum(sample["lengths"]) == units, "the smiling face counts as two, as JavaScript counts"
    assert len(sample["lengths"]) == length
    assert sample["skip"] == 4


def test_a_terminal_is_not_steered() -> None:
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(as_text(rollout()))
    shown = capture.get()
    assert "\x1b[31m" not in shown
    assert "\x1b]0;" not in shown
    assert "\u202e" not in shown
    assert "turns 2, " in shown
    assert "[bold red]rich[/]" in shown, "it is no markup"
    assert "␛[31mred" in shown


def test_text_without_a_glyph_is_named() -> None:
    assert visible("a\tb\nc") == "a\tb\nc"
    assert visible("\x00\x1b\x7f\u202e\ud800\u200d") == "␀␛␡<U+202E><U+D800>\u200d"
    assert visible("漢字 \U0001f600 é") == "漢字 \U0001f600 é"


def test_json_has_everything_and_can_be_written() -> None:
    told = as_json(rollout())
    assert json.loads(json.dumps(told)) == told
    assert told["turns"][1] == {"by": "policy", "text": HOSTILE[4:]}
    assert told["trainer_logprobs"][4] == -1.25
    assert told["at"] is None
    assert told["metadata"] == {"turns": 2, HOSTILE: [HOSTILE]}


@pytest.mark.parametrize("count", [0, 1])
def test_a_page_of_few(count: int) -> None:
    seen = Seen()
    seen.feed(page("run", [rollout()] * count, Texts()))
    assert seen.tags.count("article") == count
