"""What a run will need, read and checked before anything expensive starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.algorithms.recipes import DataflowError, Recipe, check_dataflow, compose, compose_recording
from headrace.config import ConfigError, TrainConfig
from headrace.config.trainer import ENTROPY_VOCABULARY
from headrace.controller.building.threads import check_threads
from headrace.controller.planning.algorithm_notes import algorithm_notes
from headrace.controller.planning.backends import check_installed
from headrace.controller.planning.context_room import Fit
from headrace.controller.planning.given_inputs import check_inputs
from headrace.controller.planning.origin import with_origin
from headrace.controller.planning.prompt_notes import check_template, length_notes, template_notes
from headrace.controller.planning.replay import Replay, find_record, open_replay
from headrace.controller.planning.rollout_worker_count import rollout_workers
from headrace.controller.planning.rows import check_rewards, read_rows
from headrace.controller.planning.tokens import check_tokens
from headrace.experience.prompts.dataset import Prompt, PromptDataset
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.models.folder import check_weights
from headrace.observe.trackers.packages import check_packages
from headrace.plugins.named import NOTHING_GIVEN, Given
from headrace.rollout.filters import Filter, load_filters
from headrace.rollout.rollout_function import WORKFLOWS_ALONE, RolloutFunctions
from headrace.rollout.workflow import Workflow, load_workflow, outside_player
from headrace.runtime.event_loop import run_to_end
from headrace.runtime.imports import imported_beside
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
    is_recorded = recorded is not None
    _check_settings(config)
    recipe, workers = compose_recipe(config), rollout_workers(config, given)
    rows = read_rows(config, is_recorded=is_recorded)
    generates = not is_recorded or bool(rows.held_out)
    check_weights(config.model.path)
    workflow = _workflow(config, given)
    filters = () if is_recorded else _filters(config, given)
    functions = RolloutFunctions.of(config, given)
    if generates:
        with imported_beside(_TAKE_LONG):
            run_to_end(lambda: check_rewards(config, rows, given), "a plan")

    # From here on torch is needed, which takes seconds to import: faults in the data are told before.
    from headrace.controller.planning.memory_estimate import estimate_memory
    from headrace.controller.planning.policy_model import check_stops, read_policy
    from headrace.controller.planning.run_processes import processes_here, processor_notes
    from headrace.controller.planning.shared_memory import with_shared_memory
    from headrace.controller.planning.transports import transport_of
    from headrace.models.experts import routed_bytes
    from headrace.training.own_functions import load_pieces, load_stage_functions

    policy = read_policy(config, origin)
    template = ChatTemplate.of(config.data.template, policy.tokenizer)
    text = TextCodec(policy.tokenizer, template)
    agent_notes: list[str] = []
    if config.rollout.agent is not None and generates:
        from headrace.controller.planning.agent_renderer import settle_renderer

        config, agent_notes = settle_renderer(config, template)
    check_template(config, text, rows.sets)
    fits = rows.fits(config, policy.room(config, text))
    notes = [*template_notes(config, template, rows.sets), *agent_notes]
    notes += length_notes(config, rows.counts(fits))
    if not config.rollouts_only:
        notes += algorithm_notes(config.algorithm)
    if policy.device.type == "cpu":
        notes += processor_notes(config)
    if config.data.too_long == "drop":
        rows = rows.without_too_long(fits)
    check_stops(config, policy.vocab_size)
    replay = None
    if recorded is not None:
        replay = open_replay(config, recorded, folder, vocab_size=policy.vocab_size, max_context=policy.context)
    memory = estimate_memory(
        config,
        policy.config,
        policy.device,
        engine=generates,
        trainer=not config.rollouts_only,
        processes=processes_here(config, workers),
    )
    transport = transport_of(config, policy.device)
    if generates:
        _check_servers(config, memory)
    plan = Plan(
        config=config,
        recipe=recipe,
        prompts=rows.prompts,
        held_out={each.name: tuple(islice(rows.held_out[each.name], each.max_prompts)) for each in config.held_out},
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stops(config),
        max_context=policy.context,
        vocab_size=policy.vocab_size,
        template=template,
        fit=fits.prompts,
        held_out_fits=fits.held_out,
        notes=tuple(notes),
        total_batches=_total_batches(config, len(rows.prompts), replay),
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
        routed_bytes=routed_bytes(policy.config) if config.algorithm.router_replay else 0,
    )
    return with_shared_memory(plan)


def _check_settings(config: TrainConfig) -> None:
    """What needs neither data nor model to be seen. Raises ConfigError."""
    check_threads(config.runtime.threads)
    check_inputs(config)
    check_tokens(config)
    check_packages(config.trackers)
    check_installed(config)


def _workflow(config: TrainConfig, given: Given) -> Workflow:
    workflow = load_workflow(config.rollout, given)
    if (outside := outside_player(workflow)) is not None:
        outside.token()  # told before anything expensive
    return workflow


def _filters(config: TrainConfig, given: Given) -> tuple[Filter, ...]:
    """Those of a run that generates: what was trained on once has passed the filters of its time."""
    return load_filters(config.filters, given, has_function=config.rollout.function is not None)


def _check_servers(config: TrainConfig, memory: MemoryEstimate) -> None:
    """Those that the run launches. Raises ConfigError."""
    from headrace.controller.planning.server_launch import server_launch

    for section in config.engine.sections:
        if section.is_server and not section.urls:
            server_launch(config, section, config.model.path, memory.cache, 0)


def _total_batches(config: TrainConfig, prompts: int, replay: Replay | None) -> int:
    if config.trainer.batches is not None:
        return config.trainer.batches
    if replay is not None:
        return replay.rollouts.batches * config.trainer.epochs
    return math.ceil(prompts * config.trainer.epochs / config.rollout.prompts_per_batch)


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
