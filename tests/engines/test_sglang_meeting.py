"""What an SGLang server that is attached to has to be: refused with the mend, or met."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from transformers import Qwen3Config

from headrace.config.errors import ConfigError
from headrace.controller.building.server_specs import told_apart
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.http import ServerHttp
from headrace.engines.servers.sglang import SglangDialect
from headrace.engines.servers.sglang_told import require_one_copy
from headrace.runtime.inline import InlineRuntime

INFO = {
    "version": "0.5.23",
    "dtype": "float32",
    "max_req_input_len": 63,
    "model_path": "org/model",
    "skip_tokenizer_init": True,
    "stream_interval": 1,
    "tokenizer_worker_num": 1,
}
TOKEN = [[-3.91, 3, None]]
"""Of 50 that are equally likely."""
META = {
    "weight_versions": [],
    "output_token_sampling_mask": [[3, 4]],
    "output_token_sampling_logprobs": [-0.25],
}


def met(answers: Mapping[str, Any], expected: Expected) -> str:
    """The name of a server that answers so; what it has no answer for it does not know."""

    async def answer(request: web.Request) -> web.Response:
        found = answers.get(request.path)
        return web.Response(status=404) if found is None else web.json_response(found)

    async def run() -> str:
        runtime = InlineRuntime()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = ServerHttp(f"http://127.0.0.1:{runner.addresses[0][1]}", runtime.clock)
        await http.open()
        try:
            dialect = SglangDialect(http, 50, runtime)
            await dialect.meet(expected)
            return dialect.name
        finally:
            await http.close()
            await runner.cleanup()
            await runtime.close()

    return asyncio.run(run())


def answers(info: Mapping[str, Any] = {}, without: str = "", token: Any = TOKEN) -> dict[str, Any]:
    meta = {name: value for name, value in META.items() if name != without} | {"output_token_logprobs": token}
    return {"/server_info": {**INFO, **info}, "/continue_generation": {}, "/generate": {"meta_info": meta}}


EXPECTED = Expected({"hidden_size": 8}, 64, "float32", truncates=True)


def test_one_that_has_all_is_met() -> None:
    assert met(answers(), EXPECTED) == "SGLang 0.5.23"
    untruncated = Expected({}, 64, "float32")
    assert met(answers(without="output_token_sampling_mask"), untruncated) == "SGLang 0.5.23"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({}, "has no /server_info: it is no SGLang, or one that is too old; start SGLang 0.5.23"),
        ({"/server_info": INFO}, r"has no /continue_generation \(404\); start SGLang 0.5.23"),
        (answers(without="weight_versions"), "does not tell which weights sampled a token: it is too old"),
        (answers(without="output_token_sampling_mask"), "does not tell which tokens top-p and top-k keep"),
        (answers({"dtype": "auto"}), "computes in 'auto', and engine.dtype is float32; start it with --dtype float32"),
        (answers(token=[[-0.5, 3, None]]), "tells log-probs before temperature"),
        (answers({"skip_tokenizer_init": False}), "start it with --skip-tokenizer-init$"),
        (answers({"stream_interval": 8}), "has stream_interval 8, .*start it with --stream-interval 1$"),
        (answers({"max_req_input_len": 62}), "takes 62 tokens, .* or lower that to 63"),
    ],
)
def test_what_a_server_lacks_is_refused_with_the_mend(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        met(told, EXPECTED)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('{"hidden_size": 16}', r"its hidden_size is 16, and that of model\.path 8"),
        ('{"rope_theta": 10000}', r"its rope_theta is 10000, and that of model\.path 1000000\.0"),
        (
            '{"rope_parameters": {"rope_theta": 5e5}}',
            r"its rope_theta is 500000\.0, and that of model\.path 1000000\.0",
        ),
        ('{"text_config": {"model_type": "llama"}}', r"its model_type is 'llama', and that of model\.path 'qwen3'"),
    ],
)
def test_another_model_is_seen_where_its_folder_can_be_read(tmp_path: Any, config: str, words: str) -> None:
    text = Qwen3Config(hidden_size=8, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    expected = replace(EXPECTED, model=told_apart(text))
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=f"has another model: {words}"):
        met(answers({"model_path": str(tmp_path)}), expected)


def test_weights_by_gloo_go_to_each_process_with_a_part_of_the_one_copy() -> None:
    assert require_one_copy({"tp_size": 4, "dp_size": 1, "pp_size": 1}, "SGLang") == 4
    for option, flag in (("dp_size", "--dp-size"), ("pp_size", "--pp-size")):
        with pytest.raises(
            ConfigError, match=f"has {option} 2, and takes no weights by gloo then; start it with {flag} 1"
        ):
            require_one_copy({"tp_size": 4, option: 2}, "SGLang")
