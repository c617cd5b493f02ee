"""What a vLLM server is asked first, and of weights that it took: what it tells, and what it lacks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from headrace_vllm.told_model import told_model
from transformers import Qwen3Config

from headrace.config.errors import ConfigError
from headrace.engines.protocol import GenerateRequest, RequestError, SamplingParams
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.http import ServerGone, ServerRefused
from headrace.engines.servers.vllm import VllmDialect
from headrace.engines.servers.vllm_told import ROUTES, WIRE
from headrace.models.config_identity import identity, identity_of
from headrace.weights.plane import Manifest, WeightError, WeightOffer
from headrace.weights.version import Version

VOCAB = 64
TOLD = {
    "wire": WIRE,
    "transfer": "headrace",
    "model": {"vocab_size": VOCAB},
    "max_model_len": 64,
    "dtype": "torch.float32",
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": 21,
}


TOKEN = {"logprob": -1.0, "top_logprobs": [{"token_id": n, "logprob": -1.0} for n in range(21)]}
CHOICE = {"token_ids": [3], "weight_versions": [{"version": "default"}], "logprobs": {"content": [TOKEN]}}


class Told:
    """In the place of HTTP: answers of paths, or their status."""

    url = "http://here"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.asked.append((path, body))
        answer = self.answers.get(path, {} if path in LOADING else 404)
        if path == GENERATE and body == {}:
            answer = self.answers.get("no request", 422)
        if isinstance(answer, int):
            raise ServerRefused("it", f"{method} {path}", answer, "")
        return answer


GENERATE = "/inference/v1/generate"
LIST = "/openapi.json"
LOADING = ("/start_weight_update", "/update_weights", "/finish_weight_update")


def server(told: dict[str, Any], **answers: Any) -> Told:
    """`told`: by the plugin, beside what fits."""
    return Told(
        {
            "/version": {"version": "0.32.0"},
            "/collective_rpc": {"results": [{**TOLD, **told}]},
            "/is_paused": {"is_paused": False},
            "/get_world_size": {"world_size": 1},
            "/metrics": "",
            GENERATE: {"choices": [CHOICE]},
            **answers,
        }
    )


def dialect(http: Told | None = None) -> VllmDialect:
    return VllmDialect(http or server({}), VOCAB)  # type: ignore[arg-type]


def meet(http: Told, most_kept: int = 5, *, truncates: bool = True) -> None:
    asyncio.run(dialect(http).meet(Expected({"vocab_size": VOCAB}, 64, "float32", truncates, most_kept)))


def test_one_that_fits_is_met() -> None:
    meet(server({}))
    meet(server({"max_logprobs": -1}), most_kept=15)
    meet(server({"stream_interval": 1}))
    meet(server({"api_processes": 1}))
    meet(server({}, **{GENERATE: {"choices": [without_top()]}}), truncates=False)


@pytest.mark.parametrize(
    ("policy", "priority"), [({"scheduling_policy": "priority"}, -1), ({"scheduling_policy": "fcfs"}, None), ({}, None)]
)
def test_one_that_takes_priorities_scores_the_swap_check_before_what_waits(
    policy: dict[str, str], priority: int | None
) -> None:
    async def run() -> None:
        http = server(policy)
        asked = dialect(http)
        await asked.meet(Expected({"vocab_size": VOCAB}, 64, "float32"))
        http.answers[GENERATE] = {"prompt_logprobs": [None, {"7": {"logprob": -2.0}}]}
        assert await asked.score(np.array([[5, 7]], np.int32)) == [[-2.0]]
        assert http.asked[-1][1].get("priority") == priority

    asyncio.run(run())


@pytest.mark.parametrize(("processes", "copies", "together"), [(1, 1, 24), (2, 1, 24), (1, 4, 96), (2, 4, 96)])
def test_each_copy_of_the_model_computes_as_many_sequences_as_it_tells(
    processes: int, copies: int, together: int
) -> None:
    """24 each. `processes`: of a copy, of which the first one's are told of."""
    told = {"results": [{**TOLD, "max_num_seqs": 24}] * processes}
    own = dialect(server({}, **{"/collective_rpc": told, "/get_world_size": {"world_size": processes * copies}}))
    asyncio.run(own.meet(Expected({"vocab_size": VOCAB}, 64, "float32")))
    assert own.together == together


def test_the_first_token_of_all_may_take_as_long_as_what_is_compiled_for_it() -> None:
    class Slow(Told):
        async def call(self, method: str, path: str, body: Any = None, **how: Any) -> Any:
            if path == GENERATE and body and how["seconds"] < 240:
                raise ServerGone("waited for a first token; giving up")
            return await super().call(method, path, body, **how)

    meet(Slow(server({}).answers))


def test_one_that_is_paused_is_asked_for_no_token() -> None:
    """It would hold the request; and what it has may never have been whole."""
    http = server({}, **{"/is_paused": {"is_paused": True}})
    meet(http)
    assert [body for path, body in http.asked if path == GENERATE] == [{}]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "are raw_logprobs, .* start it with --logprobs-mode processed_logprobs"),
        ({"has_copies_elsewhere": True}, "is one of several servers of one data-parallel vLLM, .* behind one address"),
        ({"stream_interval": 20}, "holds tokens back until there are 20 of a request, .* without --stream-interval"),
        ({"api_processes": 4}, "has 4 API processes, .* would end nothing; start it with --api-server-count 1"),
        ({"max_logprobs": 20}, "tells 20 log-probs .* need 21 here; start it with --max-logprobs 21"),
        ({"wire": WIRE - 1}, f"has headrace-vllm of wire {WIRE - 1}"),
        ({"transfer": "ipc"}, """takes weights by 'ipc'; .* --weight-transfer-config '{"backend": "headrace"}'"""),
    ],
)
def test_one_that_does_not_is_told_how_to_be_started(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        meet(server(told))


CONFIG = {"model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2}
SEEN = {"attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1e4}}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"attention_bias": True}, "its attention_bias is True, and that of model.path False; start it with the run's"),
        ({"rope_parameters": {"rope_theta": 1e4, "type": "linear", "factor": 2}}, "its rope_parameters.factor is 2, a"),
        (
            {"hidden_size": 9, "hidden_act": "gelu", "model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 65},
            "its model_type is 'llama', and that of model.path 'qwen3'; its vocab_size is 65, and that of model.path "
            "64; its hidden_size is 9, and that of model.path 8; 2 more differ; start it with the run's model$",
        ),
        ({"hidden_act": "x" * 99}, "its hidden_act is 'x{39}…, and that"),
        ({"model_type": "", "hidden_size": 9}, "its hidden_size is 9, and that"),
    ],
)
def test_one_with_another_model_is_refused_by_what_differs(there: dict[str, Any], words: str) -> None:
    own = Expected(identity_of({**CONFIG, **SEEN}), 64, "float32")
    with pytest.raises(ConfigError, match=rf"vLLM 0\.32\.0 at http://here has another model: .*{words}"):
        asyncio.run(dialect(server({"model": {**CONFIG, **SEEN, **there}})).meet(own))


@pytest.mark.parametrize(
    "there",
    [
        {"dtype": "bfloat16", "transformers_version": "4.57.0", "architectures": ["Other"], "num_of_later": 3},
        {"rope_parameters": {"rope_theta": 10000, "rope_type": "default", "mrope_section": [1]}, "rope_theta": 10000},
        # Of Mistral's own format.
        {"model_type": "", "hidden_act": "x", "rope_parameters": {"rope_theta": 1e4, "mscale_all_dim": 1}},
    ],
)
def test_one_with_a_copy_of_the_model_is_met(there: dict[str, Any]) -> None:
    own = Expected(identity_of({**CONFIG, **SEEN}), 64, "float32")
    asyncio.run(dialect(server({"model": {**CONFIG, **SEEN, **there}})).meet(own))


def test_one_that_computes_with_the_long_factors_of_rope_is_refused() -> None:
    """vLLM takes them for all samples where its context is beyond the original one."""
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1], "long_factor": [4]}
    model = {**CONFIG, **SEEN, "max_position_embeddings": 512, "rope_parameters": {"rope_theta": 1e4, **rope}}
    own = Expected(identity_of(model), 32, "float32")
    asyncio.run(dialect(server({"model": model, "max_model_len": 64})).meet(own))
    with pytest.raises(
        ConfigError, match=r"has a context of 65 tokens, .* longrope.*; start it with --max-model-len 64"
    ):
        asyncio.run(dialect(server({"model": model, "max_model_len": 65})).meet(own))


@dataclass
class OfVllm:
    """Its config of a model."""

    hf_text_config: Any
    word_embeddings_untied_by_checkpoint: bool


@pytest.mark.parametrize("has_head", [False, True])
def test_the_plugin_tells_a_model_by_its_config(has_head: bool) -> None:
    """Also where vLLM calls embeddings untied that are tied, since its checkpoint has a head as well."""
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "rope_parameters": {"rope_theta": 1e6}}
    tied = Qwen3Config(tie_word_embeddings=True, **sizes)
    theirs = Qwen3Config(tie_word_embeddings=not has_head, dtype="bfloat16", eos_token_id=5, **sizes)
    theirs.sliding_window = 0
    told = told_model(OfVllm(theirs, has_head))
    own = Expected(identity(tied), 64, "float32")
    asyncio.run(dialect(server({"model": told})).meet(own))
    untied = told_model(OfVllm(Qwen3Config(**sizes), word_embeddings_untied_by_checkpoint=False))
    with pytest.raises(ConfigError, match=r"its tie_word_embeddings is False, and that of model\.path True"):
        asyncio.run(dialect(server({"model": untied})).meet(own))


def without_top() -> dict[str, Any]:
    return {**CHOICE, "logprobs": {"content": [{**TOKEN, "top_logprobs": [{"token_id": 3, "logprob": -1.0}]}]}}


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("no request", 403, r"does not answer /inference/v1/generate \(403\); start it with --enable-scale-out"),
        ("no request", 401, r"refuses who asks \(401\); set engine.token_env"),
        ("/version", 404, "the server at http://here has no /version: .* start vLLM 0.32 or newer"),
        ("/version", {"name": "x"}, "answers /version by .*: it is no vLLM"),
        (
            "/collective_rpc",
            404,
            r"vLLM 0\.32\.0 at http://here lacks the plugin headrace-vllm, or its developer routes are closed \(404\); "
            "in a checkout of Headrace, .*: pip install plugins/headrace-vllm, and start vLLM as the README there says",
        ),
        ("/collective_rpc", 401, r"vLLM 0\.32\.0 at http://here refuses who asks \(401\); set engine\.token_env"),
        ("/collective_rpc", {"results": [None]}, "has no process that answers for headrace-vllm"),
        (GENERATE, {"choices": [{**CHOICE, "weight_versions": None}]}, "does not tell which weights sampled a token"),
        (GENERATE, {"choices": []}, "does not tell which weights sampled a token"),
        (GENERATE, {"choices": [{**CHOICE, "logprobs": None}]}, "does not tell the log-prob of a token"),
        (GENERATE, {"choices": [without_top()]}, "does not tell the 5 likeliest ids with a token"),
        (GENERATE, 500, "does not give a first token"),
        ("/get_world_size", 404, r"does not answer GET /get_world_size \(404\); start vLLM 0\.32 or newer"),
        ("/get_world_size", {}, r"answers /get_world_size by '{}'; start vLLM 0\.32 or newer"),
        ("/is_paused", 404, r"does not answer GET /is_paused \(404\); start vLLM 0\.32 or newer"),
        ("/metrics", 404, r"does not answer GET /metrics \(404\); start vLLM 0\.32 or newer"),
    ],
)
def test_what_a_server_lacks_is_named(path: str, answer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        meet(server({}, **{path: answer}))


def listed(*without: str) -> dict[str, Any]:
    """Its list of routes."""
    of_ours = {path: {method.lower(): {}} for path, method in ROUTES.items() if path not in without}
    return {"paths": {"/version": {"get": {}}, "/v1/models": {"get": {}}, **of_ours}}


def test_a_route_that_is_asked_only_later_is_missed_when_it_is_met() -> None:
    meet(server({}, **{LIST: listed()}))
    http = server({}, **{LIST: listed("/pause", "/weight_info")})
    with pytest.raises(
        ConfigError,
        match=r"vLLM 0\.32\.0 at http://here has no route POST /pause, GET /weight_info, .*; start vLLM 0\.32",
    ):
        meet(http)
    assert {path for path, body in http.asked if body} == {"/collective_rpc"}, "nothing is done there"
    other = listed()
    other["paths"]["/pause"] = {"get": {}}
    with pytest.raises(ConfigError, match="has no route POST /pause, which"):
        meet(server({}, **{LIST: other}))


@pytest.mark.parametrize("told", [500, "no list", {"paths": []}, {"paths": {"/pause": {"post": {}}}}, {}])
def test_where_there_is_no_list_of_its_own_it_is_met_as_it_is(told: Any) -> None:
    """A proxy may have another one."""
    meet(server({}, **{LIST: told}))


def test_an_answer_that_does_not_say_which_weights_sampled_it_is_none() -> None:
    request = GenerateRequest("r", np.array([1], np.int32), SamplingParams(max_new_tokens=1), noise_key=0)
    whole = {**CHOICE, "finish_reason": "length", "weight_versions": [{"version": "0.1", "start": 0, "end": 1}]}
    piece = dialect()._piece(whole, request)
    assert piece.spans is not None
    with pytest.raises(ServerGone, match=r"request r: .* does not tell which weights sampled the answer"):
        dialect()._piece({**whole, "weight_versions": None}, request)


def test_it_is_asked_for_what_it_samples_without_a_watermark_of_its_own() -> None:
    http = server({})
    meet(http)
    assert [body["sampling_params"]["watermarking"] for path, body in http.asked if path == GENERATE and body] == [
        False
    ]


OFFER = WeightOffer(Version(0, 7), "shm", "/dev/shm/x", Manifest(Version(0, 7), ()), None)


def taking(*comparisons: dict[str, Any]) -> Told:
    """One that has loaded 0.7. `comparisons`: of its processes."""
    same = {"version": "0.7", "unread": [], "different": []}
    results = [{"comparison": {**same, **each}} for each in comparisons]
    return server({}, **{"/weight_info": {"weight_version": "0.7"}, "/collective_rpc": {"results": results}})


def test_what_its_processes_could_not_compare_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    async def run() -> None:
        http = taking({}, {})
        own = dialect(http)
        await own.load(OFFER, "0.7")
        assert not warnings()
        http.answers |= taking({"unread": ["q", "p"]}, {"unread": ["q"]}).answers
        for _ in range(2):
            await own.load(OFFER, "0.7")
        words = "2 of its parameters, as p, cannot be compared with what is published; of them the swap check finds"
        assert [words in each for each in warnings()] == [True]
        assert "gross faults alone" in warnings()[0]
        http.answers |= taking({"unread": ["q", "r"]}).answers
        await own.load(OFFER, "0.7")
        assert len(warnings()) == 2

    asyncio.run(run())


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        ({"version": "0.6"}, "took '0.7', and compared '0.6' with what was published"),
        ({"version": ""}, "took '0.7', and compared '' with what was published"),
        ({"different": ["p", "q"]}, "took '0.7', and 2 parameters are not what was published, as 'p'"),
    ],
)
def test_a_version_that_one_of_its_processes_did_not_compare_is_not_taken(
    comparison: dict[str, Any], words: str
) -> None:
    with pytest.raises(WeightError, match=words):
        asyncio.run(dialect(taking({}, comparison)).load(OFFER, "0.7"))


def test_ids_as_likely_as_the_last_one_are_kept() -> None:
    """top_k 2 of the probabilities 0.4, 0.3 and 0.3 keeps all three; told two of them, it is not trained."""
    request = GenerateRequest(
        "r", np.array([1], np.int32), SamplingParams(max_new_tokens=1, top_k=2), noise_key=0, return_kept=True
    )
    top = [{"token_id": n, "logprob": math.log(p)} for n, p in ((7, 0.4), (9, 0.3), (3, 0.3))]
    top.append({"token_id": 5, "logprob": -9999.0})

    def choice(tops: list[dict[str, Any]]) -> dict[str, Any]:
        return {"token_ids": [7], "logprobs": {"content": [{"logprob": math.log(0.4), "top_logprobs": tops}]}}

    kept = dialect()._piece(choice(top), request).kept
    assert kept is not None
    assert kept.ids()[0].tolist() == [3, 7, 9]
    with pytest.raises(RequestError, match=r"told 2 ids of a probability of 0\.7000: more than 16 others"):
        dialect()._piece(choice(top[:2]), request)


class Sender:
    """In the place of what weights come from."""

    host, port, has_group = "10.0.0.1", 7, False

    def __init__(self) -> None:
        self.joined: list[tuple[Sequence[str], int]] = []

    async def open(self) -> None: ...
    async def take(self, offer: WeightOffer) -> tuple[()]:
        return ()

    async def join(self, prefixes: Sequence[str], ranks: int) -> None:
        self.joined.append((prefixes, ranks))

    async def send(self, parts: Any, *, sums: bool) -> None: ...
    async def leave(self) -> None: ...
    async def during(self, answer: Awaitable[Any], sending: Awaitable[None]) -> None:
        await asyncio.gather(answer, sending)


def test_the_processes_of_all_copies_of_the_model_come_to_the_group() -> None:
    """Two copies of two processes each: those of the first answer for the plugin, and of a dense model each copy is
    told that it is the only one."""
    compared = {"version": "0.7", "unread": [], "different": []}
    told = {"results": [{**TOLD, "comparison": compared}] * 2}
    http = server({}, **{"/collective_rpc": told, "/get_world_size": {"world_size": 4}})
    http.answers |= {"/weight_info": {"weight_version": "0.7"}}
    sender = Sender()

    async def run() -> None:
        own = VllmDialect(http, VOCAB, sender)  # type: ignore[arg-type]
        await own.meet(Expected({"vocab_size": VOCAB}, 64, "float32"))
        await own.load(OFFER, "0.7")

    asyncio.run(run())
    assert sender.joined == [(("headrace",), 4)]
    assert [body["update_info"]["ranks"] for path, body in http.asked if path == "/update_weights"] == [4]
