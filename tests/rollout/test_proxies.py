"""What is asked past the proxies of the environment."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import pytest

from headrace.config.rollout import RolloutConfig
from headrace.rollout.proxies import past_proxies
from headrace.rollout.workflow import load_workflow

PROXY = "http://127.0.0.1:9"
LOOPBACK = "127.0.0.1,localhost,::1"


@pytest.mark.parametrize(
    ("given", "lower", "upper"),
    [
        ({"http_proxy": PROXY}, LOOPBACK, LOOPBACK),
        ({"ALL_PROXY": PROXY, "no_proxy": ""}, LOOPBACK, LOOPBACK),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a.example, localhost"}, *["a.example, localhost,127.0.0.1,::1"] * 2),
        ({"http_proxy": PROXY, "no_proxy": "a.example", "NO_PROXY": "b"}, f"a.example,{LOOPBACK}", f"b,{LOOPBACK}"),
        ({"http_proxy": PROXY, "no_proxy": "*"}, "*", "*"),
    ],
)
def test_loopback_is_added_to_what_is_there(given: dict[str, str], lower: str, upper: str) -> None:
    found = past_proxies(given)
    assert found == {"no_proxy": lower, "NO_PROXY": upper}
    assert past_proxies(given | found) == found
    assert urllib.request.proxy_bypass_environment("127.0.0.1:4", {"no": found["no_proxy"]})  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [{}, {"no_proxy": "a.example"}, {"http_proxy": ""}])
def test_without_a_proxy_nothing_is_added(given: dict[str, str]) -> None:
    assert past_proxies(given) == {}


def test_it_is_so_when_an_agents_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "a.example")
    monkeypatch.setenv("http_proxy", PROXY)
    file = tmp_path / "proxied_agent.py"
    file.write_text("import os\nassert '127.0.0.1' in os.environ['no_proxy']\n\ndef solve(episode):\n    return 0.0\n")
    load_workflow(RolloutConfig(agent=f"{file}:solve", workflow="agent"))
    assert os.environ["NO_PROXY"] == f"a.example,{LOOPBACK}"
