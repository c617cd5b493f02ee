"""Prompts and rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from headrace.config.base import Section


class DataConfig(Section):
    train: str
    """JSONL file, one prompt a line."""
    eval: str | None = None
    """JSONL file of held-out prompts."""
    prompt_column: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (then the tokenizer's chat template is applied)."""
    id_column: str | None = None
    """Column with a stable prompt id; the line number unless given."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by the run's seed."""


class RemoteRewardConfig(Section):
    url: str | None = Field(default=None, pattern=r"^https?://[^/\s]")
    """`remote`: where batches of samples are posted as JSON; see docs/workflows.md."""
    token_env: str | None = None
    """Environment variable with the bearer token; none is sent unless given."""
    batch: int = Field(default=32, ge=1)
    """Most samples in one request."""
    connections: int = Field(default=4, ge=1)
    """Requests at the same time."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Of one try."""
    retries: int = Field(default=3, ge=0)
    """Tries after the first, for what may pass: no connection, no answer in time, status 429 or 5xx."""
    backoff_s: float = Field(default=0.5, gt=0)
    """Pause before the second try; each later one is twice as long."""


class RewardFunction(Section):
    function: str | None = None
    """`exact`, `numeric`, `f1`, `choice`, `regex`, `math`, `boxed_math`, `json_schema`, `code`, `remote`, or a function
    of yours: `path.py:function` or `module:function`. `exact`, unless `reward.terms` or `reward.group` is given."""
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

    @model_validator(mode="after")
    def _remote_has_a_place(self) -> RewardFunction:
        if (self.function == "remote") != (self.remote.url is not None):
            raise ValueError("function: remote and remote.url go together; give both, or neither")
        return self


class RewardTerm(RewardFunction):
    function: str
    """As `reward.function`."""
    weight: float = 1.0
    """The reward of a sample is the sum of weight x value over the terms of its row."""
    rows: tuple[str, ...] = ()
    """Only rows with one of these values in the column `reward.choose_by`; all rows unless given."""


class SandboxConfig(Section):
    tool: Literal["auto", "bubblewrap", "nsjail", "namespaces", "none"] = "auto"
    """What walls code off from files, processes and the network: `bubblewrap` (the program `bwrap`), `nsjail`, or Linux
    `namespaces` of our own; `auto` takes the first that works here, or `none`: then only limits and the killing of
    processes remain."""
    memory_mib: int = Field(default=4096, ge=64)
    """Address space of one process."""
    processes: int = Field(default=64, ge=1)
    """Processes and threads that one sample may start."""
    open_files: int = Field(default=256, ge=16)
    disk_mib: int = Field(default=64, ge=1)
    """Largest file, and (unless the tool is `none`) size of the working folder."""
    network: bool = False
    """Whether your reward function reaches the network. Code of the model never does."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that your reward function sees. Code of the model sees none."""


class RewardConfig(RewardFunction):
    timeout_s: float = Field(default=10.0, gt=0)
    """A reward that takes longer fails its sample, and its process is killed."""
    workers: int = Field(default=1, ge=1, le=256)
    """Child processes that score samples; twice as many, if some functions run in the sandbox and some do not."""
    trusted: bool = False
    """Your functions run outside of the sandbox: with the run's environment, files and network, and one call after
    another in the same process. It can still be killed."""
    terms: tuple[RewardTerm, ...] = ()
    """Several rewards that are added up, or chosen by row."""
    choose_by: str | None = None
    """Column whose value says which `terms` a row has."""
    group: str | None = None
    """A function of yours that sees all samples of a group and gives their rewards; see docs/workflows.md."""
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
        return self

    @property
    def all_terms(self) -> tuple[RewardTerm, ...]:
        """The terms, also where only one function is named; none if the group's function does all."""
        if self.terms or (self.function is None and self.group is not None):
            return self.terms
        values = {name: getattr(self, name) for name in RewardFunction.model_fields}
        return (RewardTerm.model_validate({**values, "function": self.function or "exact"}),)

    @property
    def description(self) -> str:
        """As `1 x math + 0.1 x regex, then group.py:rank`."""
        terms = self.all_terms
        words = " + ".join(f"{term.weight:g} x {term.function}" if len(terms) > 1 else term.function for term in terms)
        return ", then ".join(part for part in (words, self.group) if part)


_DEFAULTS = {name: field.default for name, field in RewardFunction.model_fields.items()}
