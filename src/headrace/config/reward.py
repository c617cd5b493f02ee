"""Rewards: functions, judges, servers, reward models, and the sandbox."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import regex
from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from headrace.config.base import Section
from headrace.config.layout import LayoutConfig
from headrace.config.model import EngineConfig
from headrace.config.values.temperature import AnyTemperature


def _kind_of(value: object) -> str | None:
    return "<list>" if isinstance(value, list | tuple) else "<url>" if isinstance(value, str) else None


Url = Annotated[str, Field(pattern=r"^https?://[^/\s]")]
Urls = Annotated[
    Annotated[Url, Tag("<url>")] | Annotated[tuple[Url, ...], Tag("<list>")],
    Discriminator(
        _kind_of,
        custom_error_type="not_an_address",
        custom_error_message="an address (text; put it in quotes) or a list of these is wanted",
    ),
]


REMOTE_TOKEN = "reward.remote.token_env"


class RemoteRewardConfig(Section):
    url: Urls | None = None
    """`remote`: where batches of samples are posted as JSON: one address, or a list of them, which share the requests;
    one that fails is left alone for a while. See docs/workflows.md."""
    token_env: str | None = None
    """Environment variable with the bearer token, which every address is sent; none is unless given."""
    batch: int = Field(default=32, ge=1)
    """Most samples in one request."""
    connections: int = Field(default=4, ge=1)
    """Requests at the same time."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Of one try."""
    retries: int = Field(default=3, ge=0, le=20)
    """Tries after the first, for what may pass: no connection, no answer in time, status 429 or 5xx. Of several
    addresses each is tried once at least. Then each sample of the request is asked about alone, where what is in it may
    be the reason: see docs/workflows.md."""
    backoff_s: float = Field(default=0.5, gt=0)
    """Pause before the second try; each later one is twice as long. With several addresses, how long one that failed is
    left alone, and so on; there is a pause only where all are."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses; none unless given."""
        if self.url is None:
            return ()
        return self.url if isinstance(self.url, tuple) else (self.url,)

    @property
    def tries(self) -> int:
        """Most requests for one batch."""
        return max(self.retries + 1, len(self.urls))

    @property
    def longest_s(self) -> float:
        """Of all tries and the pauses between them."""
        return self.tries * self.timeout_s + self.backoff_s * (2 ** (self.tries - max(len(self.urls), 1)) - 1)

    @model_validator(mode="after")
    def _urls_differ(self) -> RemoteRewardConfig:
        urls = self.urls
        if self.url is not None and not urls:
            raise ValueError("url is an empty list; name an address")
        if twice := [url for url in urls if urls.count(url) > 1]:
            raise ValueError(f"url names {twice[0]} twice; name each address once")
        return self


CODE_PATIENCE, CODE_TRIES = 6, 2
"""`code`: on a slow host a program is waited for until so many times its time have passed, in so many tries. A program
that never ends has a 0 wherever it gets a sixth of a processor; and beyond, the model could choose that its sample
fails."""

DEFAULT_BATCH = 32
"""Samples that one call of a batched function has at most, unless more or fewer are asked for."""
PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*(?:\.\w+)*)\}", re.ASCII)
"""What stands for a text in a judge's question, with its name as group 1; dots name a nested column."""
_OF_THE_EPISODE = ("prompt", "response")


class JudgeConfig(Section):
    model: str | None = None
    """`judge`: a folder or Hub name of the language model that judges, on an engine of its own; the policy, as it is at
    the time, unless given."""
    prompt: str | None = None
    """What it is asked, with `{prompt}`, `{response}` and columns of the row, as `{answer}`, where their text goes."""
    pattern: str = r"(?<![\w.])([-+]?[0-9]+(?:\.[0-9]+)?)(?:\s*/\s*[0-9]+)?"
    """A regular expression of which the one group is the number; its last match in what the judge says counts. Unless
    given, the last number: of `Score: 7/10` the 7."""
    low: float | None = None
    """The number that is a reward of 0; with `high`, numbers outside of the two are no answer."""
    high: float | None = None
    """The number that is a reward of 1. Unless low and high are given the number is the reward."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest answer in tokens."""
    temperature: AnyTemperature = 0.0
    """0 is greedy; else at least 0.01."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Of one answer, the wait for its turn included. `reward.timeout_s` does not count here."""
    engine: EngineConfig = EngineConfig()

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the row that the question shows."""
        names = PLACEHOLDER.findall(self.prompt or "")
        return tuple(dict.fromkeys(name for name in names if name not in _OF_THE_EPISODE))

    @model_validator(mode="after")
    def _asks_for_a_number(self) -> JudgeConfig:
        if self.prompt is not None and "response" not in PLACEHOLDER.findall(self.prompt):
            raise ValueError("prompt does not show {response}, so every response would be judged alike; add it")
        try:
            groups = regex.compile(self.pattern).groups
        except regex.error as error:
            raise ValueError(f"pattern is {self.pattern!r}, which is no regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"pattern is {self.pattern!r}, with {groups} groups; it needs one, around the number")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high go together; give both, or neither")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) is not below high ({self.high:g})")
        return self


class RewardModelConfig(Section):
    """A model that scores whole samples: the reward, or a part of it."""

    path: str | None = None
    """A folder or Hub name of a sequence classifier of one class with the policy's tokenizer, as `headrace rm` leaves
    it. It alone is the reward, unless reward functions are given too; then its score is added to what they give."""
    weight: float = 1.0
    placement: Literal["own", "process"] = "own"
    """`own`: a lane of its own. `process`: a process of its own, on this machine."""
    layout: LayoutConfig = LayoutConfig()
    """Of ranks that score together, each in a process of its own, as `trainer.layout`."""
    max_tokens_per_microbatch: int = Field(default=4096, ge=1)


class RewardFunction(Section):
    function: str | None = Field(default=None, min_length=1)
    """`exact`, `numeric`, `f1`, `choice`, `regex`, `math`, `boxed_math`, `json_schema`, `code`, `remote`, `judge`, or a
    function of yours: `path.py:function` or `module:function`. `exact`, unless `reward.terms`, `reward.group` or
    `reward.model` is given."""
    style: Literal["headrace", "batched", "trl", "verl"] = "headrace"
    """How a function of yours is called: `f(response, row)`; `batched`, with lists, `f(responses, rows)`; as TRL does,
    `f(prompts, completions, **columns)`, with a list of one; or as verl does, `f(data_source, solution_str,
    ground_truth, extra_info)`. See docs/workflows.md."""
    batch: int | None = Field(default=None, ge=1, le=4096)
    """`style: batched`: most samples in one call; 32 unless given."""
    answer_column: str = "answer"
    """Column with what the built-in rewards compare with: for `regex` the pattern, for `json_schema` the schema, for
    `code` the tests."""
    answer: str | dict[str, JsonValue] | None = None
    """What they compare with in every row, instead of a column."""
    tolerance: float = Field(default=1e-6, ge=0)
    """`numeric`: absolute or relative difference that still counts as equal."""
    code_score: Literal["all", "share"] = "all"
    """`code`: 1 if all tests pass and else 0, or the share of tests that pass."""
    remote: RemoteRewardConfig = RemoteRewardConfig()
    judge: JudgeConfig = JudgeConfig()

    @model_validator(mode="after")
    def _sections_fit(self) -> RewardFunction:
        if (self.function == "remote") != (self.remote.url is not None):
            raise ValueError("function: remote and remote.url go together; give both, or neither")
        if self.style != "headrace" and ":" not in (self.function or ""):
            raise ValueError(
                f"style is {self.style}, which is of functions of yours, but function is {self.function}; remove it"
            )
        if self.batch is not None and self.style != "batched":
            raise ValueError(f"batch is {self.batch}, which is of style: batched; set that, or remove it")
        if (self.function == "judge") != (self.judge.prompt is not None):
            raise ValueError("function: judge and judge.prompt go together; give both, or neither")
        return self


class RewardTerm(RewardFunction):
    function: str = Field(min_length=1)
    """As `reward.function`."""
    weight: float = 1.0
    """The reward of a sample is the sum of weight x value over the terms of its row."""
    rows: tuple[str, ...] = ()
    """Only rows with one of these values in the column `reward.choose_by`; all rows unless given."""


SandboxTool = Literal["auto", "bubblewrap", "nsjail", "namespaces", "none"]


class SandboxConfig(Section):
    tool: SandboxTool = "auto"
    """What walls code off from files, processes and the network: Linux `namespaces` of our own, `nsjail`, or
    `bubblewrap` (the program `bwrap`); `auto` takes the first that works here, or `none`: then only limits and the
    killing of processes remain."""
    memory_mib: int = Field(default=4096, ge=64)
    """Memory of all processes of one sample together, and address space of each."""
    processes: int = Field(default=64, ge=1)
    """Processes and threads that one sample may start."""
    open_files: int = Field(default=256, ge=16)
    disk_mib: int = Field(default=64, ge=1)
    """Largest file, and (unless the tool is `none`) size of the working folder."""
    network: bool = False
    """Whether your reward function reaches the network. Code of the model never does."""
    read: tuple[str, ...] = ()
    """Paths below `/run`, `/var/run`, `/tmp` and `/dev` that your reward function sees; the rest of these folders is
    hidden, but for the folder of the function's own file. Code of the model sees none."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that your reward function sees. Code of the model sees none."""


class RewardConfig(RewardFunction):
    timeout_s: float = Field(default=10.0, gt=0)
    """A reward that takes longer fails its sample, and its process is killed. `code`: a program that takes longer is
    wrong; what it waits for a processor is not its own time, so on a slow host up to twelve times as much may pass."""
    workers: int | None = Field(default=None, ge=1, le=256)
    """Child processes that score samples; twice as many, if some functions run in the sandbox and some do not. The
    machine's cores unless given."""
    trusted: bool = False
    """Your functions run outside of the sandbox: with the run's environment, files and network, and one call after
    another in the same process. It can still be killed."""
    terms: tuple[RewardTerm, ...] = ()
    """Several rewards that are added up, or chosen by row."""
    choose_by: str | None = None
    """Column whose value says which `terms` a row has."""
    group: str | None = None
    """A function of yours that sees all samples of a group and gives their rewards; see docs/workflows.md."""
    model: RewardModelConfig = RewardModelConfig()
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _terms_fit(self) -> RewardConfig:
        if self.terms:
            ignored = [name for name in RewardFunction.model_fields if getattr(self, name) != _DEFAULTS[name]]
            if ignored:
                raise ValueError(f"with terms, {', '.join(ignored)} would not be heeded; move it into a term")
        chosen = any(term.rows for term in self.terms)
        if chosen != (self.choose_by is not None):
            raise ValueError("choose_by and the rows of terms go together; give both, or neither")
        engines: dict[str | None, EngineConfig] = {}
        for judge in self.judges:
            if engines.setdefault(judge.model, judge.engine) != judge.engine:
                raise ValueError(f"two judges are {judge.model!r} and share an engine; give both the same judge.engine")
        return self

    @property
    def all_terms(self) -> tuple[RewardTerm, ...]:
        """The terms, also where only one function is named; none if the group's function or the model does all."""
        if self.terms or (self.function is None and (self.group is not None or self.model.path is not None)):
            return self.terms
        values = {name: getattr(self, name) for name in RewardFunction.model_fields}
        return (RewardTerm.model_validate({**values, "function": self.function or "exact"}),)

    @property
    def code_s(self) -> float:
        """Seconds after which `code` has scored a sample, or failed it because the host is too slow."""
        return self.timeout_s * CODE_PATIENCE * CODE_TRIES

    @property
    def longest(self) -> tuple[float, str]:
        """Seconds after which any reward of a sample has failed, and the key that says so."""
        limits = [(self.timeout_s, "timeout_s")]
        if any(term.function == "code" for term in self.all_terms):
            limits.append((self.code_s, f"timeout_s (x{CODE_PATIENCE * CODE_TRIES} for code, on a slow host)"))
        if any(term.style == "batched" for term in self.all_terms):
            limits.append((2 * self.timeout_s, "timeout_s (x2 for style: batched)"))
        limits += [(judge.timeout_s, "judge.timeout_s") for judge in self.judges]
        remote = [term.remote for term in self.all_terms if term.function == "remote"]
        limits += [(each.longest_s, "remote.timeout_s (with its retries)") for each in remote]
        return max(limits)

    @property
    def description(self) -> str:
        """As `1 x math + 0.1 x regex, then group.py:rank`; without the reward model."""
        terms = self.all_terms
        words = " + ".join(f"{term.weight:g} x {term.function}" if len(terms) > 1 else term.function for term in terms)
        return ", then ".join(part for part in (words, self.group) if part)

    @property
    def term_names(self) -> tuple[str, ...]:
        """What each of `all_terms` is called in the record: its function, without the place of one of yours; with its
        number (`regex#2`), where several have the same. `model` is the reward model's."""
        names = [term.function.rpartition(":")[2] for term in self.all_terms]
        taken = names if self.model.path is None else [*names, "model"]
        return tuple(
            f"{name}#{number}" if taken.count(name) > 1 else name for number, name in enumerate(names, start=1)
        )

    @property
    def judges(self) -> tuple[JudgeConfig, ...]:
        """Of all terms."""
        return tuple(term.judge for term in self.all_terms if term.function == "judge")


_DEFAULTS = {name: field.default for name, field in RewardFunction.model_fields.items()}
