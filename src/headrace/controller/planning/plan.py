"""What a run will need, read and checked before anything expensive starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.algorithms.recipes import DataflowError, Recipe, check_dataflow, compose, compose_recording
from headrace.config import ConfigError, TrainConfig
from headrace.config.data import SourceConfig
from headrace.config.evaluation import HeldOut
from headrace.config.reward import RewardConfig
from headrace.config.trainer import ENTROPY_VOCABULARY
from headrace.controller.building.threads import check_threads
from headrace.controller.planning.backends import check_installed, check_mapped
from headrace.controller.planning.context_room import Fit, Room
from headrace.controller.planning.given_inputs import check_inputs
from headrace.controller.planning.origin import check_origin, with_origin
from headrace.controller.planning.prompt_notes import check_template, length_notes, template_notes, told_of
from headrace.controller.planning.replay import Replay, find_record, open_replay
from headrace.controller.planning.rollout_worker_count import rollout_workers
from headrace.controller.planning.tokens import check_tokens
from headrace.experience.prompts.dataset import Prompt, PromptDataset, open_prompts
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.models.folder import check_weights
from headrace.models.loading import (
    check_model,
    check_reward_model,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
    resolve_device,
)
from headrace.observe.trackers.packages import check_packages
from headrace.plugins.named import NOTHING_GIVEN, Given
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.row_checks import check_rows, read_columns, required_columns
from headrace.rollout.filters import Filter, load_filters
from headrace.rollout.rollout_function import WORKFLOWS_ALONE, RolloutFunctions
from headrace.rollout.workflow import Workflow, load_workflow, outside_player
from headrace.runtime.event_loop import run_to_end
from headrace.runtime.imports import imported_beside
from headrace.runtime.inline import SystemClock
from headrace.store.origin import Origin

if TYPE_CHECKING:
    from headrace.algorithms.pieces import Pieces
    from headrace.controller.planning.memory_estimate import MemoryEstimate
    from headrace.runtime.node_check import SharedNeeds
    from headrace.weights.transport import Transport

_TAKE_LONG = (
    "headrace.controller.planning.memory_estimate",
    "headrace.engines.embedded.engine",
    "headrace.training.own_functions",
)
"""To import, with torch and transformers."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A config that can be run, with all of its input that is cheap to hold."""

    config: TrainConfig
    recipe: Recipe
    prompts: PromptDataset
    held_out: Mapping[str, tuple[Prompt, ...]]
    """The prompts of each held-out set, by the set's name."""
    tokenizer: Any
    """A Hugging Face tokenizer."""
    stop_token_ids: tuple[int, ...]
    """The model's end-of-sequence tokens and those of the config."""
    max_context: int
    """Tokens of prompt and response."""
    vocab_size: int
    template: ChatTemplate
    fit: Fit
    """What was found of the prompts' lengths; `prompts` are those that are kept."""
    held_out_fits: Mapping[str, Fit]
    """The same of each held-out set, by the set's name."""
    notes: tuple[str, ...]
    """What the user should hear of before the start, a line each."""
    total_batches: int
    memory: MemoryEstimate
    transport: Transport
    """How weights are published."""
    workflow: Workflow
    filters: tuple[Filter, ...]
    pieces: Pieces
    """The user's own functions in the place of named ones."""
    stages: tuple[Callable[..., Any], ...] = ()
    """The functions of the user's own stages, in their order."""
    given: Given = field(default_factory=dict)
    """What was given in Python, by the text that stands for it in the config."""
    origin: Origin | None = None
    """What the run begins from, if not from the model at `model.path`."""

    replay: Replay | None = None
    """The recorded rollouts that it trains on, if it generates none."""
    functions: RolloutFunctions = WORKFLOWS_ALONE
    """Of the user's, that play groups in the place of the workflow."""
    rollout_workers: int = 0
    """Processes that play the episodes; 0: this one does."""
    shared: SharedNeeds | None = None
    """What nodes of a cluster need of the memory that their processes share, where they are looked at for it."""
    column_room: int | None = None
    """Bytes that columns may take of the memory that processes of this machine share; None where they lie elsewhere,
    or a cluster is joined, whose nodes are looked at later."""
    routed_bytes: int = 0
    """Of a token, that which experts it was routed to takes at most, where that is recorded."""

    @property
    def needs_engine(self) -> bool:
        """Whether anything is generated: rollouts, or answers to held-out prompts."""
        return self.replay is None or bool(self.held_out)

    @property
    def weights(self) -> str:
        """The model, a folder or Hub name, whose weights are version 0."""
        return self.config.model.path if self.origin is None else str(self.origin.model)

    def codec(self) -> TextCodec:
        """A new one: each remembers the prompt that it encoded last."""
        return TextCodec(self.tokenizer, self.template)

    @property
    def records_entropy(self) -> bool:
        """`trainer.record_entropy`, or what it is unless given."""
        wanted = self.config.trainer.record_entropy
        return self.vocab_size <= ENTROPY_VOCABULARY if wanted is None else wanted

    @property
    def warm_up_batches(self) -> int:
        """First batches in which only the critic learns."""
        return self.config.critic.warmup_batches if self.config.algorithm.needs_critic else 0


def make_plan(config: TrainConfig, folder: Path | None = None, given: Given = NOTHING_GIVEN) -> Plan:
    """Read the data, the tokenizer and the model's config; load the user's own classes and functions, but for those
    that are `given`. `folder`: of the run, where it may have begun already.

    Raises ConfigError, or RunMissing for a run to begin from, for whatever would make the run fail later, and where an
    event loop runs. Loads no weights, and leaves nothing running.
    """
    config, origin = with_origin(config, folder)
    config, recorded = find_record(config)
    check_threads(config.runtime.threads)
    check_inputs(config)
    check_tokens(config)
    check_packages(config.trackers)
    check_installed(config)
    recipe = compose_recipe(config)
    workers = rollout_workers(config, given)
    prompts = PromptDataset()
    if recorded is None:
        prompts = _dataset(config, config.data.sources, config.data.prompt_column, config.reward, orders=True)
    held_out = {
        each.name: _dataset(config, (each.source,), each.prompt_column, each.reward) for each in config.held_out
    }
    check_weights(config.model.path)
    workflow = load_workflow(config.rollout, given)
    if (outside := outside_player(workflow)) is not None:
        outside.token()  # told before anything expensive
    # What was trained on once has passed the filters of its time.
    has_function = config.rollout.function is not None
    filters = load_filters(config.filters, given, has_function=has_function) if recorded is None else ()
    functions = RolloutFunctions.of(config, given)
    if recorded is None or held_out:
        with imported_beside(_TAKE_LONG):
            run_to_end(lambda: _check_rewards(config, prompts, held_out, given), "a plan")

    # From here on torch is needed, which takes seconds to import: faults in the data are told before.
    from headrace.controller.planning.experts import check_experts
    from headrace.controller.planning.judges import check_judges
    from headrace.controller.planning.layouts import check_layouts
    from headrace.controller.planning.memory_estimate import estimate_memory
    from headrace.controller.planning.run_processes import processes_here, processor_notes
    from headrace.controller.planning.server_launch import server_launch
    from headrace.controller.planning.shared_memory import with_shared_memory
    from headrace.controller.planning.transports import transport_of
    from headrace.engines.embedded.cache_plan import context_limit
    from headrace.models.experts import routed_bytes
    from headrace.training.own_functions import load_pieces, load_stage_functions

    device = resolve_device(config.model.device)
    check_model(config.model.path)
    model_config = read_model_config(config.model.path)
    check_experts(config, model_config)
    check_mapped(config, model_config, device)
    check_layouts(config, model_config, device)
    vocab_size = int(model_config.get_text_config().vocab_size)
    _check_others(config, vocab_size)
    if origin is not None:
        check_origin(config, origin)
    tokenizer = load_tokenizer(config.model.path)
    context = context_limit(model_config, config.engine)
    for reward in config.rewards:
        check_judges(reward, context)
    template = ChatTemplate.of(config.data.template, tokenizer)
    text = TextCodec(tokenizer, template)
    chat_notes: list[str] = []
    if config.rollout.agent is not None and (recorded is None or held_out):
        from headrace.controller.planning.agent_renderer import settle_renderer

        config, chat_notes = settle_renderer(config, template)
    everything = (prompts, *held_out.values())
    check_template(config, text, everything)
    places = getattr(model_config.get_text_config(), "max_position_embeddings", None)
    can_grow = config.engine.max_context is not None and (places is None or context < places)
    room = Room(text, tokenizer, context, vocab_size, can_grow, config.data.too_long, config.data.max_prompt_tokens)
    key, limit = "rollout.sampling.max_new_tokens", config.rollout.sampling.max_new_tokens
    fit = room.check(prompts, config.data.described, key, limit)
    fits = {each.name: _fit(room, held_out[each.name], each, key, limit) for each in config.held_out}
    lengths = {"prompts": (len(prompts), fit)}
    lengths |= {told_of(each.name): (len(held_out[each.name]), fits[each.name]) for each in config.held_out}
    notes = (*template_notes(config, template, everything), *chat_notes, *length_notes(config, lengths))
    if device.type == "cpu":
        notes += tuple(processor_notes(config))
    if config.data.too_long == "drop":
        prompts = prompts.without(fit.too_long)
        held_out = {name: kept.without(fits[name].too_long) for name, kept in held_out.items()}
    _check_stops(config, vocab_size)
    replay = None
    if recorded is not None:
        replay = open_replay(config, recorded, folder, vocab_size=vocab_size, max_context=context)
    has_engine = replay is None or bool(held_out)
    processes = processes_here(config, workers)
    memory = estimate_memory(
        config, model_config, device, engine=has_engine, trainer=not config.rollouts_only, processes=processes
    )
    transport = transport_of(config, device)
    for section in config.engine.sections if has_engine else ():
        if section.is_server and not section.urls:
            server_launch(config, section, config.model.path, memory.cache, 0)
    batches = config.trainer.batches
    if batches is None and replay is not None:
        batches = replay.rollouts.batches * config.trainer.epochs
    elif batches is None:
        batches = math.ceil(len(prompts) * config.trainer.epochs / config.rollout.prompts_per_batch)
    stops = [*read_generation_stops(config.model.path, tokenizer), *config.rollout.sampling.stop_token_ids]
    plan = Plan(
        config=config,
        recipe=recipe,
        prompts=prompts,
        held_out={each.name: tuple(islice(held_out[each.name], each.max_prompts)) for each in config.held_out},
        tokenizer=tokenizer,
        stop_token_ids=tuple(dict.fromkeys(stops)),
        max_context=context,
        vocab_size=vocab_size,
        template=template,
        fit=fit,
        held_out_fits=fits,
        notes=notes,
        total_batches=batches,
        memory=memory,
        transport=transport,
        workflow=workflow,
        filters=filters,
        pieces=load_pieces(config),
        origin=origin,
        replay=replay,
        stages=load_stage_functions(config),
        given=given,
        functions=functions,
        rollout_workers=workers,
        routed_bytes=routed_bytes(model_config) if config.algorithm.router_replay else 0,
    )
    return with_shared_memory(plan)


def compose_recipe(config: TrainConfig) -> Recipe:
    """Raises ConfigError where its stages do not fit together."""
    reward_model = config.reward.model.path is not None
    if config.rollouts_only:
        return compose_recording(config.algorithm, reward_model=reward_model, sampled=_sampled_columns(config))
    recipe = compose(
        config.algorithm,
        own_proximal=config.own_proximal,
        reward_model=reward_model,
        sampled=_sampled_columns(config),
        sealed_critic=config.seals_critic,
        in_order=config.async_.in_order,
    )
    try:
        check_dataflow(recipe.stages)
    except DataflowError as error:
        raise ConfigError(f"algorithm: {error}") from error
    return recipe


def _sampled_columns(config: TrainConfig) -> tuple[str, ...]:
    """What goes with tokens that are not sampled from the whole vocabulary, at one temperature; and that are routed."""
    columns = {
        "kept_sets": config.truncates,
        "temperatures": config.clients_sample,
        "experts": config.algorithm.router_replay,
    }
    return tuple(name for name, is_there in columns.items() if is_there)


def _check_others(config: TrainConfig, vocab_size: int) -> None:
    """The models beside the policy that are named and will be used; those that score its tokens share its ids."""
    algorithm = config.algorithm
    named = {
        "reference.model": config.reference.model if algorithm.needs_reference else None,
        "teacher.model": config.teacher.model if algorithm.needs_teacher else None,
        "critic.model": config.critic.model if algorithm.needs_critic else None,
        "reward.model.path": config.reward.model.path,
    }
    for key, path in named.items():
        if path is None:
            continue
        check_model(path)
        size = read_model_config(path).get_text_config().vocab_size
        if size != vocab_size:
            raise ConfigError(
                f"{key} is {path!r}, with a vocabulary of {size} tokens, and the policy's has {vocab_size}: they "
                "cannot share token ids; name a model with the policy's tokenizer"
            )
    if config.reward.model.path is not None:
        check_reward_model(config.reward.model.path)


async def _check_rewards(
    config: TrainConfig, prompts: PromptDataset, held_out: Mapping[str, PromptDataset], given: Given
) -> None:
    """Load the reward functions where they will run: in processes of their own, of which one will do."""
    scored = [(config.reward, prompts), *((each.reward, held_out[each.name]) for each in config.held_out)]
    done: list[RewardConfig] = []
    for reward, rows in scored:
        if not len(rows) or reward in done:
            continue
        done.append(reward)
        alone = reward.model_copy(update={"workers": 1})
        pool = RewardPool(alone, clock=SystemClock(), columns=tuple(rows[0].row), given=given)
        try:
            await pool.start()
        finally:
            await pool.close()


def _dataset(
    config: TrainConfig,
    sources: Sequence[SourceConfig],
    prompt_column: str,
    reward: RewardConfig,
    *,
    orders: bool = False,
) -> PromptDataset:
    """`orders`: the rows are drawn in the curriculum's order."""
    # An environment gives the rewards of its episodes itself, as a rule, and so does an agent.
    scores = config.rollout.environment is None and config.rollout.agent is None
    return PromptDataset(
        *(
            open_prompts(
                source,
                prompt_column=prompt_column,
                id_column=config.data.id_column,
                tools_column=config.data.tools_column,
                required_columns=required_columns(reward) if scores else (),
                read_columns=read_columns(reward) if scores else (),
                check=partial(check_rows, reward) if scores else None,
                numbers=config.data.curriculum.column if orders else None,
                name=source.called if len(sources) > 1 else "",
            )
            for source in sources
        )
    )


def _fit(room: Room, prompts: PromptDataset, held_out: HeldOut, key: str, limit: int) -> Fit:
    """`limit` is the value of `key`, which is training's."""
    if held_out.max_new_tokens != limit:
        key, limit = f"{held_out.key}.max_new_tokens", held_out.max_new_tokens
    return room.check(prompts, held_out.source.path, key, limit)


def _check_stops(config: TrainConfig, vocab_size: int) -> None:
    if outside := [i for i in config.rollout.sampling.stop_token_ids if not 0 <= i < vocab_size]:
        raise ConfigError(
            f"rollout.sampling.stop_token_ids has {outside[0]}, which is no token: ids are from 0 to {vocab_size - 1}"
        )
