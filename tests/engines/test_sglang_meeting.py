"""What an SGLang server that is attached to has to be: refused with the mend, or met."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from transformers import Qwen3Config

from headrace.config.errors import ConfigError
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.http import ServerHttp, ServerRefused
from headrace.engines.servers.sglang import SglangDialect
from headrace.engines.servers.sglang_told import ADMIN_ROUTES, require_one_copy, routes
from headrace.models.config_identity import identity
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


class Keys(NamedTuple):
    """As SGLang has them: `admin` opens the routes of ADMIN_ROUTES, `api` the others, and those as well where there is
    no `admin`."""

    api: str | None = None
    admin: str | None = None


NONE = Keys()


def met(answers: Mapping[str, Any], expected: Expected, keys: Keys = NONE, sent: Keys = NONE) -> str:
    """The name of a server that answers so; what it has no answer for it does not know. A number is a status. `keys`:
    that it was started with; `sent`: those that it is asked with."""

    async def answer(request: web.Request) -> web.Response:
        wanted = keys.admin if keys.admin and request.path in ADMIN_ROUTES else keys.api
        if wanted and request.headers.get("Authorization") != f"Bearer {wanted}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        found = answers.get(request.path, 404)
        return web.Response(status=found) if isinstance(found, int) else web.json_response(found)

    async def run() -> str:
        runtime = InlineRuntime()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        of_routes = dict.fromkeys(ADMIN_ROUTES, sent.admin) if sent.admin else {}
        http = ServerHttp(f"http://127.0.0.1:{runner.addresses[0][1]}", runtime.clock, sent.api, of_routes)
        await http.open()
        try:
            dialect = SglangDialect(http, 50, runtime)
            await dialect.is_up()
            await dialect.meet(expected)
            return dialect.name
        finally:
            await http.close()
            await runner.cleanup()
            await runtime.close()

    return asyncio.run(run())


def answers(
    info: Mapping[str, Any] = {}, without: str = "", token: Any = TOKEN, of_ids: Sequence[float | None] = ()
) -> dict[str, Any]:
    """`of_ids`: log-probs of ids that are asked for."""
    meta = {name: value for name, value in META.items() if name != without} | {"output_token_logprobs": token}
    if of_ids:
        meta["output_token_ids_logprobs"] = [[[each, number, None] for number, each in enumerate(of_ids)]]
    return {"/server_info": {**INFO, **info}, "/continue_generation": {}, "/generate": {"meta_info": meta}}


EXPECTED = Expected({"hidden_size": 8}, 64, "float32", truncates=True)


def test_one_that_has_all_is_met() -> None:
    assert met(answers(), EXPECTED) == "SGLang 0.5.23"
    assert met(answers({"pp_size": 1, "enable_pdmux": False}), EXPECTED) == "SGLang 0.5.23"
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
        (answers({"skip_tokenizer_init": False}), "start it with --skip-tokenizer-init$"),
        (answers({"stream_interval": 8}), "has stream_interval 8, .*start it with --stream-interval 1$"),
        (answers({"pp_size": 2}), "has pp_size 2, .* sampling while it is paused; start it with --pp-size 1$"),
        (answers({"enable_pdmux": True}), "has enable_pdmux True, .* is paused; start it without --enable-pdmux$"),
        (answers({"enable_watermark": True}), "has a watermark in what .*; start it without --enable-watermark$"),
        (answers({"max_req_input_len": 62}), "takes 62 tokens, .* or lower that to 63"),
    ],
)
def test_what_a_server_lacks_is_refused_with_the_mend(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        met(told, EXPECTED)


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        (Keys("a"), Keys("a")),
        (Keys(admin="b"), Keys("b")),
        (Keys(admin="b"), Keys(admin="b")),
        (Keys("a", "b"), Keys("a", "b")),
    ],
)
def test_its_keys_are_sent_to_the_routes_that_ask_for_them(keys: Keys, sent: Keys) -> None:
    assert met(answers(), EXPECTED, keys, sent) == "SGLang 0.5.23"


@pytest.mark.parametrize(
    ("keys", "sent", "words"),
    [
        (Keys("a"), NONE, r"^http://\S+ refuses who asks \(401\); set engine\.token_env to the name"),
        (Keys(admin="b"), NONE, "ADMIN"),
        (Keys(admin="b"), Keys("a"), "ADMIN"),
        (Keys("a", "b"), Keys("a"), "ADMIN"),
        (Keys("a", "b"), Keys("a", "c"), "ADMIN"),
    ],
)
def test_a_key_that_it_does_not_take_is_told_and_which(keys: Keys, sent: Keys, words: str) -> None:
    admin = (
        r"SGLang 0\.5\.23 at http://\S+, at /continue_generation, refuses who asks \(401\); set "
        r"engine\.admin_token_env to .* its --admin-api-key \(without an --api-key, engine\.token_env may as well\)$"
    )
    with pytest.raises(ConfigError, match=admin if words == "ADMIN" else words):
        met(answers(), EXPECTED, keys, sent)


def test_one_that_cannot_go_on_is_not_told_to_be_another() -> None:
    with pytest.raises(ServerRefused, match="the server answered 500 to POST /continue_generation"):
        met(answers() | {"/continue_generation": 500}, EXPECTED)
    with pytest.raises(ConfigError, match=r"has no /continue_generation \(405\); start SGLang 0\.5\.23"):
        met(answers() | {"/continue_generation": 405}, EXPECTED)


SMALL = {"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 50}
OWN = replace(
    EXPECTED,
    model=identity(Qwen3Config(**SMALL, rope_parameters={"rope_theta": 1e6})),
    model_type="qwen3",
    weights="/own",
)


def told_of(folder: Path, config: Mapping[str, Any], **info: Any) -> dict[str, Any]:
    """By a server that was started with a model of this config."""
    (folder / "config.json").write_text(json.dumps(config))
    return answers({"model_path": str(folder), **info})


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 16}, r"its hidden_size is 16, and that of model\.path 8"),
        ({"rope_theta": 10000}, r"its rope_parameters\.rope_theta is 10000, and that of model\.path 1000000\.0"),
        ({"rope_theta": None, "rope_scaling": {"type": "linear", "factor": 2}}, r"its rope_parameters\.\w+ is "),
        ({"attention_bias": True}, r"its attention_bias is True, and that of model\.path False"),
        ({"num_key_value_heads": 8}, r"its num_key_value_heads is 8, and that of model\.path 32"),
        ({"model_type": "llama", "num_attention_heads": 2}, r"its model_type is 'llama', and that of .* 'qwen3'; its"),
    ],
)
def test_another_model_is_seen_where_its_folder_can_be_read(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"has another model: {words}"):
        met(told_of(tmp_path, {**SMALL, "rope_theta": 1e6, **config}), OWN)


def test_a_copy_in_another_folder_is_met(tmp_path: Path) -> None:
    """As an older transformers saved it, in another dtype."""
    copy = {
        **SMALL,
        "rope_theta": 1000000,
        "rope_scaling": None,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    told = told_of(tmp_path, copy)
    assert met(told, OWN) == "SGLang 0.5.23"
    assert met(told_of(tmp_path, {"model_type": "of_nobody"}), OWN) == "SGLang 0.5.23", "it cannot be read"


def test_what_a_server_changes_of_its_config_counts(tmp_path: Path) -> None:
    def changed(own: dict[str, Any], changes: str) -> dict[str, Any]:
        return told_of(tmp_path, {**SMALL, "rope_theta": 1e6, **own}, json_model_override_args=changes)

    with pytest.raises(ConfigError, match=r"another model: its rms_norm_eps is 0\.1, and that of model\.path 1e-06"):
        met(changed({}, '{"rms_norm_eps": 0.1}'), OWN)
    assert met(changed({"rms_norm_eps": 0.1}, '{"rms_norm_eps": 1e-6}'), OWN) == "SGLang 0.5.23"
    scaled = '{"rope_scaling": {"rope_type": "linear", "factor": 2.0}}'
    with pytest.raises(
        ConfigError, match=r"its rope_parameters\.rope_type is 'linear', and that of \S+ 'default'; its"
    ):
        met(changed({}, scaled), OWN)
    rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    assert met(changed({}, scaled), replace(OWN, model=identity(Qwen3Config(**SMALL, rope_parameters=rope))))
    assert met(changed({}, '{"rms_norm_eps": "small"}'), OWN) == "SGLang 0.5.23", "it cannot be read"


def test_its_kind_of_model_is_told_where_its_folder_cannot_be_read() -> None:
    """`/own`: nor need that be read."""
    for kind in ("qwen3", None, "mistral"):
        assert met(answers() | {"/model_info": {"model_type": kind}}, OWN) == "SGLang 0.5.23"
    whole = replace(OWN, model={**OWN.model, "model_type": "qwen3_text"})
    assert met(answers({"model_path": "/own"}) | {"/model_info": {"model_type": "qwen3_text"}}, whole)
    with pytest.raises(ConfigError, match=r"another model: its model_type is 'qwen2', and that of .* 'qwen3'; s"):
        met(answers() | {"/model_info": {"model_type": "qwen2"}}, OWN)


WIDE = [[-6.91, 3, None]]
"""Of a thousand that are equally likely."""


@pytest.mark.parametrize(
    ("token", "of_ids", "words"),
    [
        (WIDE, [-6.91, -6.912], r"another model: .* of about 1,002 ids, and that of model\.path has 50; start it with"),
        (WIDE, [-6.91, -2.0], "tells log-probs before temperature, .*; start it without SGLANG_RETURN_ORIGINAL"),
        ([[-0.5, 3, None]], [-0.5, -4.0], "tells log-probs before temperature"),
        (WIDE, [], r"of -6\.91 where 50 ids are equally likely: it has another model, of .* about 1,002 ids, or tells"),
        ([[-4.2, 3, None]], [-4.2, -4.2], "a vocabulary of about 67 ids"),
        ([[-4.2, 3, None]], [-4.2, None, -4.2], "a vocabulary of about 67 ids"),
        ([[-4.2, 3, None]], [None], "about 67 ids, or tells"),
    ],
)
def test_another_vocabulary_and_log_probs_before_temperature_are_told_apart(
    token: Any, of_ids: list[float | None], words: str
) -> None:
    """Where the folder that it was started with cannot be read."""
    told = answers({"model_path": "/on/another/machine"}, token=token, of_ids=of_ids)
    with pytest.raises(ConfigError, match=words):
        met(told, EXPECTED)


@pytest.mark.parametrize("logprob", [float("nan"), None])
def test_weights_that_were_never_whole_tell_nothing(logprob: float | None) -> None:
    """Of what is no number its JSON has null."""
    assert met(answers(token=[[logprob, 3, None]]), EXPECTED) == "SGLang 0.5.23"


def listed(*without: str, by_group: bool) -> dict[str, Any]:
    """Its list of routes."""
    of_ours = {path: {how.lower(): {}} for path, how in routes(by_group=by_group).items() if path not in without}
    return {"/openapi.json": {"paths": {"/server_info": {"get": {}}, **of_ours}}}


def test_a_route_that_is_asked_only_later_is_missed_when_it_is_met() -> None:
    assert met(answers() | listed(by_group=False), EXPECTED) == "SGLang 0.5.23"
    words = r"SGLang 0\.5\.23 at http://\S+ has no route POST /update_weights_from_disk, .*; start SGLang 0\.5\.23"
    with pytest.raises(ConfigError, match=words):
        met(answers() | listed("/update_weights_from_disk", by_group=False), EXPECTED)
    with pytest.raises(ConfigError, match="has no route POST /pause_generation, "):
        met(answers() | listed("/pause_generation", by_group=True), EXPECTED)
    assert "/update_weights_from_disk" not in routes(by_group=True)
    assert "/begin_weight_update" in routes(by_group=True)


def test_weights_by_gloo_go_to_each_process_with_a_part_of_the_one_copy() -> None:
    assert require_one_copy({"tp_size": 4, "dp_size": 1}, "SGLang") == 4
    with pytest.raises(ConfigError, match="has dp_size 2, and takes no weights by gloo then; start it with --dp-si"):
        require_one_copy({"tp_size": 4, "dp_size": 2}, "SGLang")
