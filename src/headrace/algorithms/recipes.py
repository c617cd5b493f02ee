"""Algorithms as data: the stages that run, the table columns that each reads and writes, the losses.

Torch-free, so that a config is checked before anything heavy is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Unit = Literal["row", "group", "batch"]


class DataflowError(ValueError):
    """The stages do not fit together. The message names the columns and the stages, all faults at once."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    unit: Unit
    """What must be whole before it starts: a row, a group, or the sealed batch (which stops streaming)."""


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    stages: tuple[Stage, ...]
    loss: Mapping[str, str]
    """The loss of each stage that trains a model."""

    @property
    def stops_streaming(self) -> tuple[str, ...]:
        """Names of the stages that wait for a sealed batch."""
        return tuple(stage.name for stage in self.stages if stage.unit == "batch")

    def has(self, stage: str) -> bool:
        return any(other.name == stage for other in self.stages)

    def stage(self, name: str) -> Stage:
        """The one of that name, which the recipe `has`."""
        return next(stage for stage in self.stages if stage.name == name)


class Settings(Protocol):
    """What of a config decides the stages; `headrace.config.algorithm.AlgorithmConfig` has it."""

    @property
    def recipe(self) -> str: ...
    @property
    def loss(self) -> str: ...
    @property
    def needs_reference(self) -> bool: ...
    @property
    def distils(self) -> bool: ...
    @property
    def needs_teacher(self) -> bool: ...
    @property
    def needs_critic(self) -> bool: ...
    @property
    def needs_whole_batch(self) -> bool: ...
    @property
    def seals_batch(self) -> bool: ...
    @property
    def needs_proximal(self) -> bool: ...
    @property
    def kl_of_proximal(self) -> bool: ...
    @property
    def truncated(self) -> str: ...
    @property
    def kl(self) -> KLSettings: ...
    @property
    def stages(self) -> Sequence[OwnStage]: ...
    @property
    def advantage_reads(self) -> Sequence[str]: ...
    @property
    def loss_reads(self) -> Sequence[str]: ...


class KLSettings(Protocol):
    @property
    def place(self) -> str: ...
    @property
    def coefficient(self) -> float: ...


class OwnStage(Protocol):
    """A stage of the user's own."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> Sequence[str]: ...
    @property
    def writes(self) -> Sequence[str]: ...
    @property
    def unit(self) -> Unit: ...


def compose(
    settings: Settings,
    *,
    own_proximal: bool = False,
    reward_model: bool = False,
    sealed_critic: bool = False,
    sampled: Sequence[str] = (),
    in_order: bool = False,
) -> Recipe:
    """The stages that these settings need, and no others. `check_dataflow` holds for them, but for the user's own.

    `own_proximal`: the proximal policy's log-probs are a column, and not computed by the actor; so they must be where
    the KL in the reward is of that policy. `reward_model`: what the rollout gives is not yet the reward, but is scored
    by a model first. `sealed_critic`: the critic makes several steps on a batch. `sampled`: what tokens have where not
    all are sampled from the whole vocabulary at one temperature: `kept_sets`, `temperatures`; and `experts`, which the
    policy is told to route to, and other models are not. `in_order`: models score a row once it is in the batch that
    is composed, with the weights of that time, though it may have been there before.
    """
    placed = (*_FORWARD, "batch") if in_order else _FORWARD
    own_forward = (*placed, *sampled)
    forward = tuple(name for name in own_forward if name != "experts")
    in_reward = settings.kl.coefficient > 0 and settings.kl.place == "reward"
    stages = [
        Stage("rollout", (), (*_OF_TOKENS, *sampled, "scored" if reward_model else "reward", *_OF_GROUP), "group"),
        Stage("filter", ("reward",), ("keep",), "group"),
        Stage("schedule", ("keep",), ("batch",), "group"),
    ]
    if reward_model:
        scores = ("reward", "model_score")
        stages.insert(1, Stage("reward", ("tokens", "loss_mask", "scored", "episode"), scores, "row"))
    compared, trained = ["reward", "keep", "episode", "truncated", "tokens", "loss_mask", "logprobs"], []
    written = ["advantages"]
    if settings.needs_reference:
        stages.append(Stage("reference", forward, ("reference",), "row"))
        # The actor reads it in either place: the KL is recorded with the batch.
        trained.append("reference")
        compared += ["reference"] if in_reward else []
    if settings.needs_teacher:
        stages.append(Stage("teacher", forward, ("teacher",), "row"))
        trained += ["teacher"] if settings.distils else []
    if settings.needs_critic:
        after = settings.truncated == "bootstrap"
        values = ("values", "last_value") if after else ("values",)
        stages.append(Stage("critic.value", (*placed, "truncated") if after else placed, values, "row"))
        compared += values
        written.append("returns")
    if own_proximal:
        stages.append(Stage("proximal", (*own_forward, "batch"), ("proximal",), "row"))
        trained += ["proximal"] if settings.needs_proximal else []
        compared += ["proximal"] if settings.kl_of_proximal else []
    for own in settings.stages:
        needed = ("keep", "batch") if own.unit == "batch" else ("keep",)
        stages.append(Stage(own.name, _once([*needed, *own.reads]), tuple(own.writes), own.unit))
    compared += settings.advantage_reads
    trained += settings.loss_reads
    by_batch = settings.needs_whole_batch
    compared += ["batch"] if by_batch else []
    if not settings.distils:  # where a teacher takes the place of rewards: the loss compares with it token by token
        trained.append("advantages")
        stages.append(Stage("advantages", _once(compared), tuple(written), "batch" if by_batch else "group"))
    loss = {"actor": settings.loss}
    if settings.needs_critic:
        update = ("tokens", "loss_mask", "truncated", "values", "returns", "batch")
        stages.append(Stage("critic.update", update, (), "batch" if sealed_critic else "row"))
        loss["critic.update"] = "value_loss"
    recorded = ["reward", "terms", *(["model_score"] if reward_model else [])]
    actor = _once([*_OF_TOKENS, *sampled, "truncated", *recorded, *trained, "batch"])
    stages.append(Stage("actor", actor, (), "batch" if settings.seals_batch else "row"))
    return Recipe(settings.recipe, tuple(stages), loss)


def compose_recording(settings: Settings, *, reward_model: bool, sampled: Sequence[str] = ()) -> Recipe:
    """The stages of a run that only records what it generates: those before anything is trained. See `compose`."""
    first = compose(settings, reward_model=reward_model, sampled=sampled)
    names = ("rollout", "reward", "filter", "schedule")
    read = ("loss_mask", "versions", "branches", "reward", "terms", "truncated", "batch")
    scored = ("model_score",) if reward_model else ()
    record = Stage("record", (*read, *scored), (), "row")
    return Recipe("rollouts only", (*(stage for stage in first.stages if stage.name in names), record), {})


def _once(columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(columns))


_OF_TOKENS = ("tokens", "loss_mask", "logprobs", "versions", "branches")
_OF_GROUP = ("group", "episode", "truncated", "metadata", "terms")
_FORWARD = ("tokens", "loss_mask", "keep")
"""What a model that only scores reads. Groups that a filter dropped cost it nothing."""


def check_dataflow(stages: Sequence[Stage], sources: Iterable[str] = ()) -> tuple[Stage, ...]:
    """The stages in an order in which every column is written before it is read.

    `sources` are columns that are there from the start (of the dataset). Among stages that could come next,
    the order given decides. Raises DataflowError if a column that is read has no writer, if any column has
    two (a source counts as one), or if stages wait for each other in a circle; or if two stages share a name.
    """
    writers: dict[str, list[str]] = {column: ["the dataset"] for column in sources}
    for stage in stages:
        for column in stage.writes:
            writers.setdefault(column, []).append(f"stage {stage.name}")
    faults = [
        f"column {column} is written by {' and by '.join(names)}: one writer must go"
        for column, names in writers.items()
        if len(names) > 1
    ]
    faults += [
        f"column {column} is read by stage {stage.name}, and nothing writes it: add a stage that does"
        for stage in stages
        for column in stage.reads
        if column not in writers
    ]
    names = [stage.name for stage in stages]
    faults += [f"two stages are named {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
    if faults:
        raise DataflowError("; ".join(faults))
    return _in_order(stages, available=set(sources))


def _in_order(stages: Sequence[Stage], available: set[str]) -> tuple[Stage, ...]:
    ordered: list[Stage] = []
    waiting = list(stages)
    while waiting:
        ready = next((stage for stage in waiting if available.issuperset(stage.reads)), None)
        if ready is None:
            raise DataflowError(_circle(waiting))
        waiting.remove(ready)
        ordered.append(ready)
        available.update(ready.writes)
    return tuple(ordered)


def _circle(stuck: Sequence[Stage]) -> str:
    """Walk from a stuck stage to the stuck writer of a column that it reads, until the walk meets itself."""
    writer = {column: stage for stage in stuck for column in stage.writes}
    path: list[tuple[Stage, str]] = []
    stage = stuck[0]
    while all(stage.name != seen.name for seen, _ in path):
        column = next(column for column in stage.reads if column in writer)
        path.append((stage, column))
        stage = writer[column]
    start = next(place for place, (seen, _) in enumerate(path) if seen.name == stage.name)
    steps = [f"stage {reader.name} reads {column}, written by {writer[column].name}" for reader, column in path[start:]]
    return f"stages wait for each other in a circle: {'; '.join(steps)}: split one of them in two, or cut a read"
