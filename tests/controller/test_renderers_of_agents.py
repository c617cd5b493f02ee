"""What renders an agent's chats: settled before the start, compared with the chat template, and so in the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from agent_code import SOURCE
from controller_jobs import make_job
from qwen3_chats import qwen3_tokenizer
from transformers import AutoModelForCausalLM, Qwen3Config

from headrace.cli.main import main
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.planning.agent_renderer import settle_renderer
from headrace.experience.records.codec import decode_group
from headrace.experience.text.chat_template import ChatTemplate
from headrace.gateway.agents import model_renderer
from headrace.gateway.agents.model_renderer import ModelRenderer
from headrace.store.journal import Journal

pytest.importorskip("renderers")
HUB = "Qwen/Qwen3-0.6B"
TOKENIZER = qwen3_tokenizer()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model of Qwen 3's kind and tokens, and an agent of two turns."""
    path = make_job(tmp_path_factory.mktemp("job"), data__eval=None, record__journal="all", trainer__batches=2)
    torch.manual_seed(0)
    size = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "head_dim": 16,
    }
    ends = {"eos_token_id": TOKENIZER.eos_token_id, "bos_token_id": None}
    config = Qwen3Config(**size, **ends, num_key_value_heads=1, vocab_size=272, max_position_embeddings=512)
    AutoModelForCausalLM.from_config(config).save_pretrained(path.parent / "model")
    TOKENIZER.save_pretrained(path.parent / "model")
    (path.parent / "agent.py").write_text(SOURCE)
    settings = yaml.safe_load(path.read_text())
    settings["rollout"]["agent"] = f"{path.parent}/agent.py:two_turns"
    path.write_text(yaml.safe_dump(settings))
    return path


def settled(job: Path, *overrides: str, template: str | None = TOKENIZER.chat_template) -> tuple[str, list[str]]:
    config = load_config(TrainConfig, job, list(overrides))
    tokenizer = qwen3_tokenizer()
    tokenizer.chat_template = template
    found, notes = settle_renderer(config, ChatTemplate(tokenizer, config.data.template.kwargs))
    return found.gateway.renderer, notes


def test_auto_is_the_package_where_it_knows_the_model_by_its_name(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = f"model.path={HUB}"
    assert settled(job) == ("template", [])
    assert settled(job, named) == (HUB, [])
    assert settled(job, named, "gateway.renderer=template") == ("template", [])
    assert settled(job, named, "data.template.file=a.jinja") == ("template", [])
    given, (note,) = settled(job, named, "data.template.kwargs={mood: calm}")
    assert given == "template"
    assert note.startswith(f"chats are rendered by the chat template: gateway.renderer is '{HUB}', which cannot render")
    assert "Unsupported chat_template_kwargs" in note
    monkeypatch.setattr(model_renderer, "is_installed", lambda: False)
    assert settled(job, named) == ("template", [])


def test_what_the_package_renders_otherwise_is_told_with_what_follows(job: Path) -> None:
    assert settled(job, "gateway.renderer=qwen3") == ("qwen3", [])
    _, (note,) = settled(job, "gateway.renderer=qwen3", "data.template.kwargs={enable_thinking: false}")
    assert "renderers 0.1.12: qwen3) renders a user's message and a tool's result otherwise than the chat te" in note
    assert note.endswith("gateway.renderer: template trains on the template")
    _, (note,) = settled(job, "gateway.renderer=qwen3", template="{{ messages[0].content }}")
    assert "renders a user's first message, a system message, tools, a user's message, a tool's result and a u" in note
    _, (note,) = settled(job, "gateway.renderer=qwen3", template=None)
    assert "is compared with nothing" in note


def test_check_says_what_renders(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(job)]) == 0
    assert "\nchats     by the chat template; a turn that goes on adds" in capsys.readouterr().out
    assert main(["check", str(job), f"gateway.renderer={HUB}"]) == 0
    assert f"\nchats     by renderers 0.1.12, for {HUB}; a turn that goes on adds" in capsys.readouterr().out
    assert main(["check", str(job), "gateway.renderer=glm-5"]) != 0
    assert "gateway.renderer is 'glm-5', which cannot render for" in capsys.readouterr().err


def test_a_renderer_that_is_wanted_is_not_done_without(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_renderer, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[renderers\]'"):
        settled(job, "gateway.renderer=qwen3")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_whose_chats_the_package_renders(
    job: Path, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = ["gateway.renderer=qwen3", "data.template.kwargs={enable_thinking: false}", f"rollout.workers={workers}"]
    run = tmp_path / "run"
    assert main(["train", str(job), *off, "--dir", str(run)]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["gateway"]["renderer"] == "qwen3"
    by = ModelRenderer("qwen3", "a/folder", ChatTemplate(TOKENIZER, {"enable_thinking": False}))
    journal = Journal(run / "journal")
    places = [each.place for segment in journal.segments() for each in journal.written(segment.writer)]
    samples = [sample for place in places for sample in decode_group(journal.read(place)).samples]
    assert samples
    for sample in samples:
        asked = TOKENIZER.decode(sample.tokens).partition("user\n")[2].partition("<|im_end|>")[0]
        prompt = by.whole([{"role": "user", "content": asked}], None, {})
        assert sample.tokens[: len(prompt)].tolist() == prompt.tolist()
    assert main(["train", str(job), *off[1:], "gateway.renderer=template", "--dir", str(run), "--resume"]) != 0
    assert "gateway.renderer" in capsys.readouterr().err
