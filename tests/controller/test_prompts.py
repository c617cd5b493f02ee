"""Prompts of a run: how they are rendered, which are too long, and what is said of them before the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_styles import CHATML, LLAMA3, byte_tokenizer
from controller_jobs import make_job, run
from transformers import AutoModelForCausalLM, Qwen3Config

from headrace.cli.main import main
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.building.episode_runners import policy_settings
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.experience.sample import GroupKey
from headrace.rollout.policy import Policy
from headrace.runtime.inline import InlineRuntime
from headrace.store import RunReader
from headrace.weights.version import INITIAL

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "bos_token_id": None,
    "pad_token_id": None,
}
TOOL = {"name": "add", "parameters": {"type": "object"}}


def chat_job(folder: Path, rows: list[dict[str, Any]], template: str | None = CHATML, **changes: object) -> Path:
    """A job whose model has a tokenizer of bytes with `template`, and 256 places."""
    path = make_job(folder, data__train=str(folder / "rows.jsonl"), data__eval=None, **changes)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = byte_tokenizer(template)
    config = Qwen3Config(
        **SHAPE, vocab_size=len(tokenizer), max_position_embeddings=256, eos_token_id=tokenizer.eos_token_id
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return path


def ask(text: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}], "answer": "1"}


def test_check_shows_the_first_prompt_as_rendered_and_names_what_no_template_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {**ask("3+4?"), "tools": [TOOL]}
    template = {"system": "Be brief.", "kwargs": {"enable_thinking": False, "thinkin": True}}
    path = chat_job(tmp_path, [row] * 4, data__template=template)
    assert main(["check", str(path)]) == 0
    out, noted = capsys.readouterr()
    assert "data.template.kwargs.thinkin has no effect: the chat template does not read thinkin" in noted
    shown = out[out.index("prompt    '1' as the policy reads it") :].splitlines()[1:11]
    assert shown == [
        "  | <|im_start|>system",
        "  | Be brief.",
        "  | Tools:",
        '  | {"name": "add", "parameters": {"type": "object"}}<|im_end|>',
        "  | <|im_start|>user",
        "  | 3+4?<|im_end|>",
        "  | <|im_start|>assistant",
        "  | <think>",
        "  | ",
        "  | </think>",
    ]


def test_tools_that_no_template_shows_are_refused(tmp_path: Path) -> None:
    path = chat_job(tmp_path, [{**ask("a"), "tools": json.dumps([TOOL])}], LLAMA3)
    with pytest.raises(ConfigError, match=r"prompt '1' has tools \(column 'tools'\).* shows none"):
        make_plan(load_config(TrainConfig, path))
    assert make_plan(load_config(TrainConfig, path, ["data.tools_column=null"])).prompts[0].tools is None
    with pytest.raises(ConfigError, match=r"data\.tools_column is 'tolls', and no prompt has tools there"):
        make_plan(load_config(TrainConfig, path, ["data.tools_column=tolls"]))


def test_tools_beside_a_prompt_of_text_are_refused(tmp_path: Path) -> None:
    path = chat_job(tmp_path, [{"prompt": "a", "tools": [TOOL]}])
    with pytest.raises(ConfigError, match=r"line 1, column 'tools': a prompt of text has no place for tools; give it"):
        make_plan(load_config(TrainConfig, path))


HEAD = len("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n") - 2 * len("<|im_start|>") - len("<|im_end|>") + 3
"""Tokens of a rendered prompt beside its text."""
# 256 places, 8 of them for the response: a text of 248 - HEAD bytes fits, one of 249 - HEAD does not.
ROWS = [ask("x" * (248 - HEAD)), ask("y" * (249 - HEAD)), ask("short"), ask("z" * 300)]


def test_prompts_that_are_too_long_are_counted_and_dropped_before_the_start(tmp_path: Path) -> None:
    path = chat_job(tmp_path, ROWS, data__too_long="drop", data__shuffle=False)
    plan = make_plan(load_config(TrainConfig, path))
    assert plan.notes == ("2 of 4 prompts are too long, with more than 248 tokens (data.too_long: drop)",)
    assert plan.fit.too_long == (1, 3)
    assert [prompt.prompt_id for prompt in plan.prompts] == ["1", "3"]
    assert plan.fit.tokenised == 3, "the short one's bytes tell enough"


def test_too_long_fails_by_default_with_the_first_and_how_many(tmp_path: Path) -> None:
    path = chat_job(tmp_path, ROWS)
    with pytest.raises(ConfigError, match=r"prompt '4' has .* the context holds 256, .*; shorten it, remove"):
        make_plan(load_config(TrainConfig, path))
    with pytest.raises(ConfigError, match=r"'1' has 248 tokens, and data.max_prompt_tokens is 99 \(so have 3 of"):
        make_plan(load_config(TrainConfig, path, ["data.max_prompt_tokens=99"]))
    path = chat_job(tmp_path, ROWS[:3])
    plan = make_plan(load_config(TrainConfig, path))
    assert plan.fit.cramped == 1, "one token of room is enough, unless said otherwise"


def test_nothing_left_is_refused(tmp_path: Path) -> None:
    path = chat_job(tmp_path, ROWS[3:] * 2, data__too_long="drop")
    with pytest.raises(ConfigError, match=r"all 2 prompts of .* have more than 248 tokens .* data.too_long is drop"):
        make_plan(load_config(TrainConfig, path))


def test_truncation_on_the_left_keeps_the_end(tmp_path: Path) -> None:
    path = chat_job(tmp_path, ROWS, data__too_long="truncate_left", data__shuffle=False)
    plan = make_plan(load_config(TrainConfig, path))
    assert len(plan.prompts) == 4
    runtime = InlineRuntime()
    settings = policy_settings(plan, EnginePool([AbsentEngine()], runtime.clock), runtime)
    policy = Policy(settings, group=GroupKey(0, 0, 0), episode=0, min_version=INITIAL)
    whole = plan.codec().encode(plan.prompts[3].content)
    assert len(whole) == 300 + HEAD
    np.testing.assert_array_equal(policy.encode(plan.prompts[3].content), whole[-248:])
    np.testing.assert_array_equal(policy.encode(plan.prompts[2].content), plan.codec().encode(plan.prompts[2].content))
    assert "as the policy reads it, 248 tokens" in describe_plan(plan)


@pytest.mark.slow
@pytest.mark.copied
def test_a_run_with_dropped_prompts_keeps_the_law_and_records_what_rewards_measure(tmp_path: Path) -> None:
    path = chat_job(tmp_path, [*ROWS, ask("a"), ask("b"), ask("c")], data__too_long="drop", trainer__batches=2)
    (tmp_path / "reward.py").write_text(
        "def score(response, row):\n    return {'score': sum(map(ord, response)) % 7, 'letters': len(response)}\n"
    )
    code, out = run("train", path, "--dir", tmp_path / "run", "--plain", cwd=tmp_path)
    assert code == 0, out
    assert out.splitlines()[0] == (
        "headrace: note: 2 of 7 prompts are too long, with more than 248 tokens (data.too_long: drop)"
    )
    with RunReader(tmp_path / "run") as reader:
        counts = reader.counts()
        recorded = [entry.record["reward_terms"] for entry in reader.metrics.read("batch")]
    assert counts.issued == counts.running + counts.ready + counts.trained + sum(counts.dropped.values())
    assert counts.trained == 4
    assert all(0 <= terms["letters"] <= 8 for terms in recorded)
    code, out = run("rollouts", tmp_path / "run", "--json", "--limit", "1", cwd=tmp_path)
    assert "letters" in json.loads(out)["terms"]


def test_an_environment_whose_role_the_template_refuses_is_told_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(
        "from headrace.rollout.environment import StepResult\n"
        "class Env:\n"
        "    def reset(self, row): return None\n"
        "    def step(self, action): return StepResult('x', 1.0)\n"
    )
    strict = CHATML.replace("{%- elif m.role == 'tool' %}", "{%- elif m.role == 'tool' %}{{ raise_exception('no') }}")
    rollout = {"workflow": "multi_turn", "environment": f"{tmp_path}/env.py:Env", "observation_role": "tool"}
    path = chat_job(tmp_path, [ask("a")], strict, **{f"rollout__{key}": value for key, value in rollout.items()})
    with pytest.raises(ConfigError, match=r"of rollout.observation_role \('tool'\): .*TemplateError: no"):
        make_plan(load_config(TrainConfig, path))
    make_plan(load_config(TrainConfig, path, ["rollout.observation_role=user"]))
