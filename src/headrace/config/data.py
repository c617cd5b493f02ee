"""Prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headrace.config.base import Section
from headrace.config.template import TemplateConfig

TooLong = Literal["fail", "drop", "truncate_left"]


class SourceConfig(Section):
    path: str = Field(min_length=1)
    """A file (.jsonl, .json, .csv, .tsv, also with .gz or .zst after it; .parquet, .arrow), a folder saved by
    `save_to_disk`, a folder of data files, or a name on the Hugging Face Hub. See docs/data.md."""
    name: str | None = Field(default=None, min_length=1)
    """What the source is called in the record, where there are several; the path's last part without its suffix unless
    given."""
    weight: float | None = Field(default=None, gt=0)
    """Its share of the prompts, as a part of the sum of all weights; give it to all sources or to none. As many parts
    as it has rows unless given: then an epoch has every row of every source once."""
    subset: str | None = None
    """Of a Hub name or a folder of data files."""
    split: str | None = None
    """Of a folder or a Hub name; needed where there are several."""
    revision: str | None = None
    """Of a Hub name: a branch, a tag or a commit."""

    @property
    def called(self) -> str:
        """Its name in the record."""
        return self.name or self.path.rstrip("/").rpartition("/")[2].partition(".")[0] or self.path


def _kind_of(value: object) -> str | None:
    if isinstance(value, str):
        return "<path>"
    if isinstance(value, Mapping | SourceConfig):
        return "<options>"
    return "<list>" if isinstance(value, list | tuple) else None


def _kinds(words: str) -> Discriminator:
    return Discriminator(_kind_of, custom_error_type="not_a_source", custom_error_message=words)


OneSource = Annotated[
    Annotated[str, Field(min_length=1), Tag("<path>")] | Annotated[SourceConfig, Tag("<options>")],
    _kinds("a path (text; put it in quotes) or a mapping with path is wanted"),
]
Sources = Annotated[
    Annotated[str, Field(min_length=1), Tag("<path>")]
    | Annotated[SourceConfig, Tag("<options>")]
    | Annotated[tuple[OneSource, ...], Tag("<list>")],
    _kinds("a path (text; put it in quotes), a mapping with path, or a list of these is wanted"),
]
"""A path, a path with options, or several of these."""


def sources_of(value: str | SourceConfig | tuple[str | SourceConfig, ...]) -> tuple[SourceConfig, ...]:
    """Each with its options."""
    values = value if isinstance(value, tuple) else (value,)
    return tuple(SourceConfig(path=each) if isinstance(each, str) else each for each in values)


def named_all(sources: Iterable[SourceConfig]) -> str:
    """The sources, for messages."""
    return ", ".join(source.path for source in sources)


def check_sources(value: Sources) -> Sources:
    """Raises ValueError where there are none, they cannot be told apart, or only some have a weight."""
    sources = sources_of(value)
    if not sources:
        raise ValueError("the list is empty; name a source")
    names = [source.called for source in sources]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"two sources are called {twice[0]!r}; give each a name of its own")
    if slashed := [name for name in names if "/" in name]:
        raise ValueError(f"the name {slashed[0]!r} has a slash, which parts it from a row's id; leave it out")
    without = [source.called for source in sources if source.weight is None]
    if without and len(without) < len(sources):
        raise ValueError(f"{without[0]!r} has no weight, and others have; give one to all sources, or to none")
    return value


def check_unweighted(value: Sources) -> Sources:
    """Raises ValueError where a source has a weight, which is for `headrace train`."""
    if weighted := [source.called for source in sources_of(value) if source.weight is not None]:
        raise ValueError(f"{weighted[0]!r} has a weight, and here every row comes once in a pass; leave weight out")
    return check_sources(value)


class CurriculumConfig(Section):
    """The order of the rows within each epoch of a source, in place of a plain shuffle: by one of `column` and
    `pass_rate`."""

    column: str | None = None
    """A column with a number, as `difficulty` or `extra_info.level`: rows come from the lowest to the highest; equal
    ones as `data.shuffle` has them."""
    descending: bool = False
    """`column`: from the highest to the lowest."""
    pass_rate: float | None = Field(default=None, ge=0, le=1)
    """Rows that were never drawn come first; of the others that whose last pass rate is nearest to this, as it was when
    the batch that is composed began."""
    passes_above: float = 0.5
    """`pass_rate`: a sample passes with a reward above this."""

    @model_validator(mode="after")
    def _one_of_two(self) -> CurriculumConfig:
        if self.column is not None and self.pass_rate is not None:
            raise ValueError("column and pass_rate are two orders; give one of them")
        if self.descending and self.column is None:
            raise ValueError("descending goes with column; leave it out")
        return self


class TrainingData(Section):
    """What all kinds of data have in common."""

    train: Sources
    eval: OneSource | None = None

    @property
    def held_out(self) -> tuple[SourceConfig, ...]:
        """Of `eval`; none, or one."""
        return () if self.eval is None else sources_of(self.eval)

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """Of `train`."""
        return sources_of(self.train)

    @property
    def described(self) -> str:
        """The training sources, for messages."""
        return named_all(self.sources)


class DataConfig(TrainingData):
    train: Annotated[Sources, AfterValidator(check_sources)]
    """A file, folder or Hub name with one prompt a row; or a mapping with its options, as `{path: openai/gsm8k, subset:
    main, split: train}`; or a list of these, which are mixed. See docs/data.md."""
    eval: OneSource | None = None
    """Held-out prompts: a file, folder or Hub name, or a mapping with its options."""
    prompt_column: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (then the tokenizer's chat template is applied). A
    nested column is named with dots, as `extra_info.question`, here and wherever a column is named."""
    tools_column: str | None = "tools"
    """Column with JSON schemas of the tools of a prompt, for the chat template: a list, or its JSON text. Rows may lack
    it."""
    template: TemplateConfig = TemplateConfig()
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt in tokens. Unless given, one that leaves room in the context for one token of a response; where
    `too_long` is not `fail`, one that leaves room for `rollout.sampling.max_new_tokens`."""
    too_long: TooLong = "fail"
    """What is done with longer prompts, which are counted before anything starts: `fail`, `drop` them, or
    `truncate_left`: keep their last tokens (and the first, if it begins every text)."""
    id_column: str | None = None
    """Column with a stable prompt id; the number of the line or row unless given."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by the run's seed."""
    curriculum: CurriculumConfig = CurriculumConfig()
    rollouts: str | None = None
    """Folder of a run whose recorded rollouts are trained on, instead of new ones: batch by batch as they were, with
    their rewards, log-probs and kept sets. `train` is not read then, and an engine is loaded only if `eval` is given.
    See docs/replay.md."""
