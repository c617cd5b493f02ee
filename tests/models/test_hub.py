"""Names on the Hub, with a server on loopback in its place."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from models_helpers import tiny_model, tiny_tokenizer

from headrace.config import ConfigError
from headrace.models.folder import find_model_folder
from headrace.models.hub import offline_snapshot
from headrace.models.loading import check_model, load_tokenizer, read_model_config, save_pretrained_folder


class Hub:
    """Answers every question with `status`, and counts them."""

    def __init__(self) -> None:
        hub = self
        self.status, self.asked = 503, 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.asked += 1
                self.send_response(hub.status)
                self.send_header("Content-Type", "application/json")
                if hub.status == 404:
                    self.send_header("X-Error-Code", "RepoNotFound")
                self.end_headers()
                self.wfile.write(b'{"id": "org/name"}')

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{hub.server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    offline_snapshot.cache_clear()
    yield hub
    offline_snapshot.cache_clear()
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


def test_a_name_that_the_hub_does_not_have(hub: Hub) -> None:
    hub.status = 404
    for read in (find_model_folder, check_model, load_tokenizer, read_model_config):
        with pytest.raises(
            ConfigError, match=r"'org/name': there is no such folder here, and .* has no model of that name"
        ):
            read("org/name")
    with pytest.raises(ConfigError, match="has no names like that"):
        find_model_folder("a b/c?")


def test_a_name_that_the_hub_has(hub: Hub) -> None:
    hub.status = 200
    assert find_model_folder("org/name") is None
    assert find_model_folder("org/name") is None
    assert hub.asked == 1


def test_a_hub_that_cannot_be_reached_is_asked_once(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"cannot be reached \(.*503.*\), nor has its cache .*check the spelling"):
        check_model("org/name")
    assert hub.asked == 1
    assert capfd.readouterr().err == ""


def test_a_model_in_the_cache_is_read_from_there_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    place = tmp_path / "cache" / "models--org--name"
    snapshot = place / "snapshots" / "abc"
    save_pretrained_folder(tiny_model("qwen3"), tiny_tokenizer(), snapshot)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")
    check_model("org/name")
    assert load_tokenizer("org/name").decode([3, 4]) == "ab"
    assert find_model_folder("org/name") == snapshot
    assert hub.asked == 1
    shutil.rmtree(place)


def test_a_mistyped_folder_is_told_the_one_that_is_there(hub: Hub, tmp_path: Path) -> None:
    save_pretrained_folder(tiny_model("qwen3"), tiny_tokenizer(), tmp_path / "models" / "qwen-small")
    for path in ("modles/qwen-small", "models/qwen-smal", "./models/qwen-smal", f"{tmp_path}/models/qwen_small"):
        with pytest.raises(ConfigError, match=r"did you mean '.*models/qwen-small'\?"):
            find_model_folder(path)
    with pytest.raises(ConfigError) as error:
        find_model_folder("models/other")
    assert "did you mean" not in str(error.value)
