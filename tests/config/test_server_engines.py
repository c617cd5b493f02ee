"""The section of an engine that is an inference server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import TrainConfig
from headrace.config.model import EngineConfig, PolicyEngineConfig
from headrace.config.reading.unused_keys import ineffective
from headrace.config.values.hosts import is_loopback


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"args": {"x": 1}}, "args is of a server, and kind is 'embedded'"),
        ({"url": "http://127.0.0.1:1"}, "url is of a server"),
        ({"kind": "vllm", "url": "127.0.0.1:1"}, "url is '127.0.0.1:1'; give one as http://127.0.0.1:8000"),
        ({"kind": "vllm", "url": []}, "url is an empty list"),
        (
            {"kind": "vllm", "url": "http://user:pw@h:8000", "token_env": "T"},
            "url has a user before h:8000; drop it, and have token_env name the server's token",
        ),
        ({"kind": "vllm", "url": "http://user@127.0.0.1:8000"}, "url has a user before 127.0.0.1:8000; drop it"),
        ({"kind": "vllm", "url": "http://@127.0.0.1:8000"}, "url has a user before 127.0.0.1:8000; drop it"),
        (
            {"kind": "vllm", "url": "http://h:8000?x=1", "token_env": "T"},
            "url has something behind 'http://h:8000'; drop",
        ),
        ({"kind": "vllm", "url": "http://127.0.0.1:8000/?"}, "url has something behind 'http://127.0.0.1:8000/'; drop"),
        (
            {"kind": "vllm", "url": "http://127.0.0.1:8000/#a"},
            "url has something behind 'http://127.0.0.1:8000/'; drop",
        ),
        (
            {"kind": "vllm", "url": "http://10.0.0.7:8000"},
            "is beyond this machine, where anybody may ask it; set token_env",
        ),
        (
            {"kind": "vllm", "url": "http://127.somebody.example:8000"},
            "is beyond this machine, where anybody may ask it; set token_env",
        ),
        ({"kind": "vllm", "url": ["http://127.0.0.1:1"], "replicas": 2}, "replicas is 2, and url names 1"),
        ({"kind": "vllm", "url": "http://127.0.0.1:1", "args": {"x": 1}}, "args and python are of servers"),
        ({"kind": "vllm", "token_env": "T"}, "token_env is of url, which is not given"),
        ({"kind": "sglang", "admin_token_env": "A"}, "admin_token_env is of url, which is not given"),
        (
            {"kind": "vllm", "url": "http://127.0.0.1:1", "admin_token_env": "A"},
            "admin_token_env is of SGLang, and kind",
        ),
        ({"admin_token_env": "A"}, "admin_token_env is of a server, and kind is 'embedded'"),
        ({"kind": "vllm", "prefill_tokens_per_step": 8}, "prefill_tokens_per_step is of the embedded engine"),
        (
            {"kind": "vllm", "url": ["http://127.0.0.1:1", "http://127.0.0.1:1/"]},
            "url names 'http://127.0.0.1:1/' twice",
        ),
        ({"kind": "vllm", "url": ["http://127.0.0.1:1", "http://localhost:1"]}, "url names 'http://localhost:1' twice"),
        ({"kind": "vllm", "url": ["http://[::1]:1", "http://localhost:1/"]}, "url names 'http://localhost:1/' twice"),
        ({"kind": "vllm", "url": ["http://localhost", "http://localhost:80"]}, "url names 'http://localhost:80' twice"),
        ({"kind": "vllm", "url": ["https://127.0.0.1:443", "https://[::1]"]}, "url names .* twice"),
        ({"kind": "vllm", "url": ["http://127.0.0.1:1", "http://[0:0:0:0:0:0:0:1]:1"]}, "url names .* twice"),
        ({"kind": "vllm", "url": ["http://127.0.0.1:1", "http://[::ffff:127.0.0.1]:1"]}, "url names .* twice"),
        ({"kind": "vllm", "url": ["http://127.0.0.2:1", "http://[::ffff:127.0.0.2]:1"]}, "url names .* twice"),
        ({"kind": "tgi"}, "Input should be 'embedded', 'vllm' or 'sglang'"),
        ({"kind": "sglang", "url": "http://10.0.0.7:8000"}, "is beyond this machine"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PolicyEngineConfig.model_validate(given)


def test_it_is_apart_and_as_many_as_are_named(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:1", "http://localhost:2", "http://localhost", "https://localhost", "http://localhost/a"]
    engine = PolicyEngineConfig.model_validate({"kind": "vllm", "url": urls})
    assert (engine.apart, engine.count, engine.urls) == (True, 5, tuple(urls))
    assert PolicyEngineConfig.model_validate({"kind": "vllm", "replicas": 3}).count == 3
    far = PolicyEngineConfig.model_validate({"kind": "vllm", "url": "https://far.example", "token_env": "T"})
    assert far.urls == ("https://far.example",)
    assert not PolicyEngineConfig().apart


def test_several_sections_are_engines_beside_each_other() -> None:
    engine = PolicyEngineConfig.model_validate(
        [
            {"kind": "vllm", "replicas": 2, "dtype": "bfloat16", "spread": "episode"},
            {"kind": "embedded", "max_concurrent_sequences": 8},
            {"kind": "vllm", "url": ["http://127.0.0.1:1", "http://127.0.0.1:2"]},
        ]
    )
    assert (engine.total, engine.count, [each.count for each in engine.sections]) == (5, 2, [2, 1, 2])
    assert engine.has_server
    assert engine.apart
    assert engine.dtype == "bfloat16"
    assert PolicyEngineConfig.model_validate(engine.model_dump()) == engine
    assert PolicyEngineConfig.model_validate([{"replicas": 3}]) == PolicyEngineConfig(replicas=3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "engine is a list, and not one of sections"),
        (["vllm"], "engine is a list, and not one of sections"),
        ([{}, {"dtype": "bfloat16"}], "engine.1.dtype holds of all engines; write it in the first section"),
        ([{}, {"max_contxt": 3}], "beside.0.max_contxt"),
        ([{}, {"args": {"x": 1}}], "args is of a server, and kind is 'embedded'"),
        ([{"beside": []}, {}], "engine is a list whose first section has beside"),
    ],
)
def test_a_list_that_is_none_of_sections_is_refused(given: list[Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PolicyEngineConfig.model_validate(given)


def test_a_judges_engine_is_no_server() -> None:
    with pytest.raises(ValidationError, match="kind is 'vllm', and a server is an engine of the policy alone"):
        EngineConfig.model_validate({"kind": "vllm"})


FAR = {"kind": "vllm", "url": ["http://127.0.0.1:1", "http://10.0.0.7:8000"], "token_env": "T"}


def configured(engine: Any, **weights: Any) -> TrainConfig:
    given = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}, "engine": engine, "weights": weights}
    return TrainConfig.model_validate(given)


@pytest.mark.parametrize(
    ("engine", "weights", "words"),
    [
        ({}, {}, "weights.transport is gloo, which is for inference servers, and there is none; set engine.kind"),
        (FAR, {}, "engine.url 'http://10.0.0.7:8000' is beyond this machine, and weights.host '127.0.0.1' is not"),
        (FAR, {"host": "localhost"}, "weights.host 'localhost' is not"),
        (FAR, {"host": "0.0.0.0"}, "host is '0.0.0.0', where nobody finds this machine"),
    ],
)
def test_gloo_is_for_servers_that_reach_this_machine(engine: Any, weights: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        configured(engine, transport="gloo", **weights)


@pytest.mark.parametrize("weights", [{}, {"transport": "shm"}])
def test_a_server_beyond_this_machine_gets_no_shared_memory(weights: dict[str, Any]) -> None:
    words = (
        r"engine\.url 'http://10\.0\.0\.7:8000' is beyond this machine, .* use weights\.transport: gloo, .* "
        r"or if it is on this machine, have it listen on loopback and write url: http://127\.0\.0\.1:8000"
    )
    with pytest.raises(ValidationError, match=words):
        configured(FAR, **weights)
    assert configured(FAR, transport="disk").transport == "disk"  # a folder that both may see


def test_what_goes_on_by_gloo_is_published_in_shared_memory() -> None:
    config = configured([{"kind": "vllm"}, {"kind": "embedded"}], transport="gloo")
    assert (config.sends_weights, config.transport, config.servers_beyond) == (True, "shm", ())
    assert ineffective(config) == []
    far = configured(FAR, transport="gloo", host="10.0.0.1")
    assert far.servers_beyond == ("http://10.0.0.7:8000",)
    assert ineffective(far) == []
    for engine, reason in (({"kind": "vllm"}, "no engine.url is beyond this machine"), (FAR, "is not gloo")):
        transport = "gloo" if engine is not FAR else "disk"
        (told,) = ineffective(configured(engine, transport=transport, host="10.0.0.1"))
        assert told.startswith("weights.host has no effect: ")
        assert reason in told


def test_top_p_without_top_k_is_not_for_vllm() -> None:
    """Unless given, top_p sets a top_k of its own."""
    given = {"model": {"path": "m"}, "data": {"train": "t.jsonl"}, "engine": {"kind": "vllm"}}
    sampled = TrainConfig.model_validate({**given, "rollout": {"sampling": {"top_p": 0.9}}})
    assert sampled.rollout.sampling.top_k == 512
    with pytest.raises(ValidationError, match=r"top_p is 0\.9 and top_k 0, and vLLM tells kept sets under top_k alone"):
        TrainConfig.model_validate({**given, "rollout": {"sampling": {"top_p": 0.9, "top_k": 0}}})


@pytest.mark.parametrize(
    ("host", "holds"),
    [
        ("localhost", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.0.2.1", False),
        ("::", False),
        ("0.0.0.0", False),
        ("127.evil.example", False),
    ],
)
def test_addresses_that_are_this_machine_s_alone(host: str, holds: bool) -> None:
    assert is_loopback(host) is holds


def test_with_ray_every_worker_is_an_actor() -> None:
    given = {"model": {"path": "m"}, "data": {"train": "t"}, "runtime": {"kind": "ray"}}
    config = TrainConfig.model_validate(given)
    assert config.engine.apart
    assert config.trainer_processes == ("trainer",)
    assert not [line for line in ineffective(config) if "placement" in line]
    for more, words in (
        ({"trainer": {"placement": "own"}}, "trainer.placement is own, and with runtime.kind ray"),
        ({"engine": {"process": False}}, "engine.process is false, and with runtime.kind ray"),
        ({"reference": {"placement": "own"}}, "actors; leave it out, or set process"),
        ({"runtime": {"address": "auto"}}, "runtime.address is 'auto', and runtime.kind inline"),
    ):
        with pytest.raises(ValueError, match=words):
            TrainConfig.model_validate({**given, **more})


REFRESHED = {"refresh_every": 5}


@pytest.mark.parametrize("own", [REFRESHED, {**REFRESHED, "placement": "hybrid"}])
def test_with_ray_a_reference_that_is_refreshed_is_hybrid(own: dict[str, Any]) -> None:
    given = {"model": {"path": "m"}, "data": {"train": "t"}, "runtime": {"kind": "ray"}, "reference": own}
    assert TrainConfig.model_validate(given).reference.placement == "hybrid"


@pytest.mark.parametrize(
    ("kind", "own", "words"),
    [
        ("ray", {"placement": "process"}, r"placement process, where no newer policy reaches it; use hybrid \["),
        ("ray", {"placement": "own"}, "all workers are actors; leave it out, or set hybrid"),
        ("ray", {"model": "sft"}, "model 'sft': with runtime.kind ray a reference .* is hybrid, .* leave one"),
        ("ray", {"model": "sft", "placement": "process"}, "reference.model 'sft': with runtime.kind ray .* leave one"),
        ("ray", {"layout": "d2"}, "reference.layout d2: no newer policy reaches ranks of its own; leave one"),
        ("inline", {"placement": "process"}, "where no newer policy reaches it; use own or hybrid"),
        ("inline", {"layout": "d2"}, "reference.layout d2: no newer policy reaches ranks of its own; leave one"),
        ("inline", {"model": "sft", "placement": "hybrid"}, "is hybrid, .* reference.model is 'sft'; leave one"),
    ],
)  # fmt: skip
def test_what_a_reference_that_is_refreshed_cannot_be_leads_to_what_it_can(
    kind: str, own: dict[str, Any], words: str
) -> None:
    given = {"model": {"path": "m"}, "data": {"train": "t"}, "runtime": {"kind": kind}}
    with pytest.raises(ValueError, match=words):
        TrainConfig.model_validate({**given, "reference": {**REFRESHED, **own}})
