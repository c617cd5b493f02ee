"""The policy model and the device that it runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from headrace.config.base import Section
from headrace.config.values.hosts import is_loopback, listener

_PORTS = {"http": 80, "https": 443}
"""Where a URL names none."""

Dtype = Literal["float32", "bfloat16"]


class ModelConfig(Section):
    path: str
    """A folder in Hugging Face format, or the name of a model on the Hub. The weights are safetensors of 16 bits or
    more, and are just those that config.json describes."""
    dtype: Dtype = "float32"
    """Compute dtype of the trainer. Master weights and optimiser state are always float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    device: str = "auto"
    """`auto` (CUDA where there is one, else CPU), `cpu`, `cuda` or `cuda:N`. Unless it is `cpu`, a worker to which
    `cluster.place` gives a GPU computes on that."""


EngineKind = Literal["embedded", "vllm", "sglang"]


class EngineConfig(Section):
    kind: EngineKind = "embedded"
    """`embedded`, in Headrace itself; or, of the policy's engines alone, an inference server: `vllm`, `sglang`."""
    dtype: Dtype | None = None
    """Dtype of weights and KV cache; the model's dtype unless given."""
    max_concurrent_sequences: int = Field(default=64, ge=1, le=4096)
    """Sequences decoded together, at most: slots of the KV cache."""
    max_context: int | None = Field(default=None, ge=2)
    """Longest prompt + response in tokens; the model's own limit unless given. With a rotary embedding of type
    `longrope` it is `original_max_position_embeddings` at most, beyond which that is another one."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """Memory that the KV cache may take; unless given, half of what is free at the start, or in training on a CUDA
    device what all else leaves."""
    prefill_tokens_per_step: int = Field(default=1024, ge=1)
    """Tokens prefilled between two decode steps, so that a long prompt does not hold up the others."""

    @model_validator(mode="after")
    def _of_the_policy_alone(self) -> EngineConfig:
        if self.kind != "embedded" and not isinstance(self, PolicyEngineConfig):
            raise ValueError(f"kind is {self.kind!r}, and a server is an engine of the policy alone; use embedded")
        return self


class EngineSection(Section):
    """Engines of one kind, of those that sample the policy."""

    kind: EngineKind = "embedded"
    """`embedded`, in Headrace itself, or an inference server: `vllm`, `sglang`."""
    max_concurrent_sequences: int = Field(default=64, ge=1, le=4096)
    """Sequences that each of them decodes together."""
    replicas: int = Field(default=1, ge=1, le=64)
    """Engines with weights, KV cache and `max_concurrent_sequences` of their own; each takes new weights by itself, so
    that the others go on."""
    python: str | None = None
    """Of a server that is launched: the interpreter of the environment that it is installed in (`make vllm-env` makes
    `.venv-vllm`, `make sglang-env` `.venv-sglang`); the run's own unless given."""
    url: str | list[str] | None = None
    """Servers that run already, as `http://127.0.0.1:8000`, in the place of `replicas` that are launched. One beyond
    loopback needs `token_env`."""
    token_env: str | None = None
    """The environment variable that holds the token for `url`."""
    admin_token_env: str | None = None
    """Of an SGLang at `url` that was started with an `--admin-api-key` which is not its `--api-key`: the environment
    variable that holds it. Unless given, `token_env` is for all routes."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Options of a server that is launched, by its own names, as `{enable_prefix_caching: true}`; what it does not know
    it refuses."""
    start_deadline_s: float = Field(default=600.0, gt=0)
    """In which a launched server has to be up."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Of servers that are attached to; none where they are launched."""
        if self.url is None:
            return ()
        return (self.url,) if isinstance(self.url, str) else tuple(self.url)

    @property
    def count(self) -> int:
        """How many engines it describes."""
        return len(self.urls) or self.replicas

    @property
    def is_server(self) -> bool:
        return self.kind != "embedded"

    @model_validator(mode="after")
    def _of_a_server(self) -> Self:
        given = [key for key in ("python", "url", "token_env", "admin_token_env", "args") if getattr(self, key)]
        if not self.is_server and given:
            raise ValueError(f"{given[0]} is of a server, and kind is 'embedded'; drop it, or set kind: vllm or sglang")
        if self.admin_token_env is not None and self.kind != "sglang":
            raise ValueError(f"admin_token_env is of SGLang, and kind is {self.kind!r}, which has one token; drop it")
        if self.url is not None:
            _check_urls(self)
            return self
        for key in ("token_env", "admin_token_env"):
            if getattr(self, key) is not None:
                raise ValueError(f"{key} is of url, which is not given; a launched server listens on loopback alone")
        return self


class PolicyEngineConfig(EngineConfig, EngineSection):
    """Of the engines that sample the policy: there may be several, and of several kinds."""

    process: bool = False
    """Each engine in a process of its own, on this machine: what ends it does not end the run, and its host work does
    not hold up the run's. Weights reach it by `weights.transport`, `shm` unless given. So is the engine of each judge
    that is a model of its own. On a CPU the threads are shared out: the engines have as many as the trainer, each its
    part; they are not lent to who is busy. Beside a server, embedded engines are so in any case."""
    colocated: bool = False
    """In `async.mode: sync`: engines and trainer have the same devices by turns, and never memory for both. While a
    batch is trained the engines have neither weights nor KV cache; while one is generated the trainer, and the critic,
    keep what they have in the host's memory (on a CPU, which has no other, they give back gradients alone). Results are
    the same. See docs/turns.md."""
    lent: int = Field(default=0, ge=0, le=64)
    """So many engines more, embedded ones, on the devices of the trainer (and of the critic), where those are not the
    other engines': they serve while the trainer waits for its batch, and keeps what it has in the host's memory. Once
    the batch is there they give it back, and what they had in flight goes on elsewhere. At most one for each rank of
    the trainer. Where waits are too short, nothing is lent. See docs/turns.md."""
    beside: list[EngineSection] = Field(default_factory=list)
    """More engines of the same model, of other kinds or with other options, one section each. `engine` may be written
    as a list of sections: the first is this one, with what holds of all engines (`dtype`, `max_context`, `spread`, …),
    and the others are these."""
    spread: Literal["group", "episode"] = "group"
    """Of several engines, whether one serves all episodes of a group (the prompt is computed once), or each episode
    goes to the one with least to do."""
    return_deadline_s: float = Field(default=300.0, gt=0)
    """How long an engine that died, or cannot take new weights, may hold things up. When none has served for so long,
    the run stops, with a checkpoint; when none that serves is new enough for a group, the group is issued again."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_list(cls, given: Any) -> Any:
        if not isinstance(given, list):
            return given
        if not given or not all(isinstance(each, Mapping) for each in given):
            raise ValueError("engine is a list, and not one of sections; write each as {kind: ..., replicas: ...}")
        if "beside" in given[0]:
            raise ValueError("engine is a list whose first section has beside; write those as sections of the list")
        for number, each in enumerate(given[1:], start=1):
            common = [key for key in each if key not in EngineSection.model_fields]
            if common and common[0] in cls.model_fields:
                raise ValueError(f"engine.{number}.{common[0]} holds of all engines; write it in the first section")
        return {**given[0], "beside": given[1:]} if given[1:] else given[0]

    @property
    def sections(self) -> tuple[EngineSection, ...]:
        """Each describes engines, in the order of their numbers."""
        return (self, *self.beside)

    @property
    def total(self) -> int:
        """How many engines there are."""
        return sum(section.count for section in self.sections)

    @model_validator(mode="after")
    def _each_server_once(self) -> Self:
        seen: set[tuple[str | None, int | None, str]] = set()
        for url in (url for section in self.sections for url in section.urls):
            found = urlsplit(url)
            place = listener(found.hostname or ""), found.port or _PORTS.get(found.scheme), found.path.rstrip("/")
            if place in seen:
                raise ValueError(f"url names {url!r} twice; each server is asked by one engine")
            seen.add(place)
        return self

    @property
    def has_server(self) -> bool:
        return any(section.is_server for section in self.sections)

    @property
    def attached(self) -> bool:
        """Whether some are servers that run already."""
        return any(section.urls for section in self.sections)

    @property
    def apart(self) -> bool:
        """Whether they compute in processes of their own."""
        return self.process or self.has_server

    @model_validator(mode="after")
    def _of_embedded(self) -> Self:
        own = all(section.is_server for section in self.sections)
        if own and self.prefill_tokens_per_step != EngineConfig().prefill_tokens_per_step:
            raise ValueError("prefill_tokens_per_step is of the embedded engine; give the server's own option in args")
        return self


def _check_urls(engine: EngineSection) -> None:
    if engine.replicas != 1:
        raise ValueError(f"replicas is {engine.replicas}, and url names {len(engine.urls)}; give one of the two")
    if engine.args or engine.python:
        raise ValueError("args and python are of servers that are launched, and url names some that run; drop them")
    if not engine.urls:
        raise ValueError("url is an empty list; name a server, or drop it to launch one")
    for url in engine.urls:
        found = urlsplit(url)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError(f"url is {url!r}; give one as http://127.0.0.1:8000")
        bare, host = re.split("[?#]", url)[0], found.netloc.rpartition("@")[2]
        if host != found.netloc:
            raise ValueError(f"url has a user before {host}; drop it, and have token_env name the server's token")
        if bare != url:
            raise ValueError(f"url has something behind {bare!r}; drop it: the server's paths are added to url")
        if not is_here(url) and not engine.token_env:
            raise ValueError(f"url {url!r} is beyond this machine, where anybody may ask it; set token_env")


def is_here(url: str) -> bool:
    """Whether it is one of loopback."""
    return is_loopback(urlsplit(url).hostname or "")
