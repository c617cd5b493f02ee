"""A plan in words: the dataflow, the roles and where they run, and the memory."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.algorithms.kept_sets import most_bytes
from headrace.algorithms.recipes import check_dataflow
from headrace.config import TrainConfig
from headrace.config.evaluation import PLAIN
from headrace.config.layout import LayoutConfig
from headrace.config.model import EngineSection
from headrace.config.places import layouts_of
from headrace.controller.building.processors import threads_of_worker
from headrace.controller.building.threads import available_threads, takes_turns
from headrace.controller.planning import rollout_worker_count
from headrace.controller.planning.backends import describe_backend
from headrace.controller.planning.free_memory import in_units
from headrace.controller.planning.layouts import GIVE_VALUES, config_of_kind
from headrace.controller.planning.memory_lines import memory_lines, use_lines
from headrace.controller.planning.placement import worker_counts
from headrace.controller.planning.placement_view import drawn
from headrace.controller.planning.plan import Plan
from headrace.controller.planning.planned_model import PlannedModel
from headrace.controller.planning.prompt_notes import first_prompt
from headrace.controller.planning.rank_words import network_notes, ranks_in_words, ray_in_words, stages_in_words
from headrace.controller.planning.servers import describe_servers
from headrace.controller.planning.table_size import largest_group, table_bound
from headrace.experience.schedule import reachable_staleness
from headrace.models.loading import read_model_config
from headrace.rewards.reward_pool import worker_count
from headrace.runtime.process.site import site_parent

_LANE_OF = {"rollout": "engine", "actor": "trainer"}
_TRAINED_AS = {"actor": "trainer", "critic.value": "critic", "critic.update": "critic"}
"""The config's section of those that train, or score with what is trained."""
_OWN_LANE = {name: name for name in ("reward", "reference", "proximal", "teacher")} | {
    "critic.value": "critic",
    "critic.update": "critic",
}


def describe_plan(plan: Plan) -> str:
    """Several lines, for a terminal."""
    is_asked_here = plan.replay is None and plan.config.rollout.agent is None  # an agent asks as it likes
    asked = [first_prompt(plan)] if is_asked_here else []
    parts = [_run(plan), *asked, _dataflow(plan), _roles(plan), _memory(plan)]
    return "\n\n".join("\n".join(part) for part in parts)


def _run(plan: Plan) -> list[str]:
    config = plan.config
    rollout = config.rollout
    return [
        f"model     {config.model.path}: {plan.memory.parameters / 1e6:,.2f} M parameters, "
        f"trainer {config.model.dtype}, {_engines(plan)} {config.engine.dtype or config.model.dtype}, "
        f"context {plan.max_context} tokens",
        *([] if plan.origin is None else [f"from      {plan.origin.name}: {_taken(plan)}"]),
        f"data      {_data(plan)}; held out: {_held_out(plan)}"
        + (f"; {plan.fit.cramped} leave no room for max_new_tokens" if plan.fit.cramped else ""),
        *_sources(plan),
        f"batches   {plan.total_batches} of {rollout.prompts_per_batch} prompts x {rollout.samples_per_prompt} "
        f"samples, {'nothing trained' if plan.config.rollouts_only else f'{_steps(plan)} each'}"
        + (f"; {rollout.surplus} prompt(s) more are started" if rollout.surplus else ""),
        f"sampling  {_sampling(plan)}",
        *_chats(plan),
        *describe_servers(plan),
        *_schedule(plan),
        *_table(plan),
        *describe_backend(config, on_device=bool(plan.memory.on_device)),
        *_cluster(plan),
    ]


def _engines(plan: Plan) -> str:
    engine = plan.config.engine
    if not engine.has_server:
        return "engine" if engine.total == 1 else f"{engine.total} engines, each"
    return " and ".join(map(_engines_of, engine.sections)) + ","


def _engines_of(section: EngineSection) -> str:
    if not section.is_server:
        return f"{section.count} embedded engine{'s' * (section.count > 1)}"
    where = f"at {', '.join(section.urls)}" if section.urls else "launched"
    return f"{section.count} {section.kind} server{'s' * (section.count > 1)} {where}"


def _cluster(plan: Plan) -> list[str]:
    runtime = plan.config.runtime
    if runtime.kind != "ray":
        return []
    lines = [
        f"ray       {ray_in_words(runtime.address)}; all workers are actors",
        *drawn(plan.config, plan.rollout_workers, plan.shared),
    ]
    ranks = worker_counts(plan.config, 0)
    return lines + network_notes(plan.config.weights.host, max(ranks["trainer"], ranks["critic"]))


def _data(plan: Plan) -> str:
    data = plan.config.data
    if plan.replay is not None:
        return f"{data.rollouts}, recorded: {plan.replay.describe()}"
    return f"{data.described}: {len(plan.prompts)} prompts"


def _schedule(plan: Plan) -> list[str]:
    config = plan.config
    if config.rollouts_only:
        most = config.ahead(plan.memory.slots)
        return [f"schedule  rollouts only, of version 0: {most} groups run or wait to be recorded at most"]
    if plan.replay is not None:
        return [f"schedule  as recorded: staleness at most {plan.replay.bound}, {config.async_.mode}, no engine for it"]
    return [
        f"schedule  {config.async_.mode}: staleness at most {config.async_.staleness_bound}, on deadline "
        f"{config.deadline_rule}, swaps {config.async_.swap}",
        *_staleness(plan),
    ]


def _taken(plan: Plan) -> str:
    assert plan.origin is not None
    both = plan.config.algorithm.needs_critic and plan.origin.critic is not None
    moments = "and the optimiser's moments" if plan.config.from_.optimizer else "the optimiser begins anew"
    return f"its weights{' and its critic' if both else ''} are version 0, {moments}"


def _held_out(plan: Plan) -> str:
    """As `64`, or `64; gsm 1319 x 8 (pass@1, majority)`."""
    told = []
    for each in plan.config.held_out:
        count = str(len(plan.held_out[each.name])) + (f" x {each.samples}" if each.samples > 1 else "")
        name = "" if each.name == PLAIN else f"{each.name} "
        told.append(f"{name}{count}" + ("" if each.metrics == ("mean",) else f" ({', '.join(each.metrics)})"))
    return "; ".join(told) or "0"


def _sources(plan: Plan) -> list[str]:
    """What each of several sources has its share of, and how rows are ordered, if not just shuffled."""
    data, lines = plan.config.data, []
    if len(data.sources) > 1 and plan.replay is None:
        sizes = [len(part) for part in plan.prompts.parts]
        weights = [
            size if source.weight is None else source.weight for source, size in zip(data.sources, sizes, strict=True)
        ]
        lines += [
            f"  {source.called:<17} {weight / sum(weights):.1%} of the prompts, {size} rows"
            for source, weight, size in zip(data.sources, weights, sizes, strict=True)
        ]
    if data.curriculum.column is not None:
        way = "from the highest" if data.curriculum.descending else "from the lowest"
        lines.append(f"  order             by {data.curriculum.column}, {way}, in every epoch of a source")
    if data.curriculum.pass_rate is not None:
        lines.append(f"  order             rows never drawn first, then pass rates near {data.curriculum.pass_rate:g}")
    return lines


def _sampling(plan: Plan) -> str:
    """The distribution that tokens are drawn from."""
    config, sampling = plan.config, plan.config.rollout.sampling
    drawn = f"at most {sampling.max_new_tokens} tokens, temperature {sampling.temperature:g}"
    if sampling.stop:
        drawn = f"up to {' or '.join(map(repr, sampling.stop))}, {drawn}"
    if sampling.truncates:
        drawn += f", top_p {sampling.top_p:g}, " + (f"top_k {sampling.top_k}" if sampling.top_k else "no top_k")
    else:
        drawn += ", from the whole vocabulary"
    if config.clients_sample:
        drawn += ", unless a request has its own temperature, top_p or top_k"
    if not config.truncates:
        return drawn
    most = most_bytes(plan.vocab_size, config.most_kept)
    return f"{drawn}: what these keep travels with each token, in {most} bytes at most"


def _chats(plan: Plan) -> list[str]:
    """What renders those of an agent."""
    if plan.config.rollout.agent is None or not plan.needs_engine:
        return []
    wanted = plan.config.gateway.renderer
    if wanted == "template" and not plan.template.exists:
        return ["chats     none: without a chat template rollout.agent can only ask for completions"]
    if wanted == "template":
        return ["chats     by the chat template; a turn that goes on adds what it puts behind the answer"]
    from headrace.gateway.agents.model_renderer import package

    return [f"chats     by {package()}, for {wanted}; a turn that goes on adds what that puts behind the answer"]


def _staleness(plan: Plan) -> list[str]:
    """How stale tokens get, and what binds it: max_staleness, async.ahead, or the engine's slots."""
    config, slots = plan.config, plan.memory.slots
    batch, samples, given = config.rollout.prompts_per_batch, config.rollout.samples_per_prompt, config.async_.ahead
    bound, ahead = config.async_.staleness_bound, config.ahead(slots)
    reached = reachable_staleness(batch, bound, ahead)
    binds = "the engine's slots" if given is None else "async.ahead"
    if reached == bound:
        binds = "max_staleness"
    lines = [
        f"  ahead             {ahead} groups run or wait at most",
        f"  staleness reached {reached} by answers that take equally long, bound by {binds}",
    ]
    if binds != "max_staleness":
        lines.append(
            f"                    ({bound} only by groups that others overtake; async.ahead={(bound - 2) * batch + 1} "
            "would let all come to it)"
        )
    if binds == "the engine's slots":
        lines[0] += f": a batch of {batch}, and what {slots} slots decode, {samples} a group; never under 2 batches"
    return lines


def _table(plan: Plan) -> list[str]:
    """How much the experience table holds, and whether that may bind how far generation runs ahead."""
    config, bound, largest = plan.config, table_bound(plan), largest_group(plan)
    fits, needed = bound // largest, config.rollout.prompts_per_batch
    most = config.ahead(plan.memory.slots) + needed
    memory, what = "host memory", "async.table_gib"
    if plan.column_room == bound:
        memory = what = f"what is free in {site_parent()}"
    lines = [
        f"  table             {in_units(bound)} of {memory} at most: {fits} of the largest groups, {in_units(largest)}"
    ]
    if fits < most:
        lines.append(
            f"                    (fewer than the {most} that run, wait or are trained at most: with large groups "
            f"generation runs less far ahead, but always the {needed} of a batch; {what} sets it)"
        )
    return lines


def _steps(plan: Plan) -> str:
    """As `8 optimiser step(s) in 2 epochs`."""
    algorithm = plan.config.algorithm
    epochs = f" in {algorithm.epochs_per_batch} epochs" if algorithm.epochs_per_batch > 1 else ""
    early = f" (fewer after a KL above {algorithm.stop_kl:g})" if epochs and algorithm.stop_kl is not None else ""
    return f"{algorithm.steps_per_batch} optimiser step(s){epochs}{early}"


def _dataflow(plan: Plan) -> list[str]:
    stages = check_dataflow(plan.recipe.stages)
    lines = [f"dataflow  {'' if plan.config.rollouts_only else 'recipe '}{plan.recipe.name}"]
    for stage in stages:
        reads = ", ".join(stage.reads) or "prompts"
        loss = plan.recipe.loss.get(stage.name)
        made = "the record" if loss is None else f"version k + 1 (loss: {loss})"
        writes = ", ".join(stage.writes) or made
        lines.append(f"  {stage.name:<11} each {stage.unit:<6} {reads} -> {writes}")
    if not plan.config.rollouts_only:
        lines.append(f"  streaming: {_streaming(plan)}")
    return lines


def _streaming(plan: Plan) -> str:
    if plan.recipe.stops_streaming:
        return f"no: {', '.join(plan.recipe.stops_streaming)} wait for the whole batch"
    if not plan.config.async_.streaming:
        return f"no: mode {plan.config.async_.mode} trains whole batches"
    return "yes: the trainer begins a batch with its first group"


def _of_relays(plan: Plan) -> str:
    """By what they speak."""
    if not plan.memory.on_device or plan.config.weights.relay_backend == "gloo":
        return "gloo"
    return "NCCL where each is on a device of its own, not run: Headrace's tests have one device; else gloo"


def _roles(plan: Plan) -> list[str]:
    threads = available_threads(plan.config.runtime.threads)
    turns = plan.config.runtime.turns or takes_turns(plan.config)
    share = f"{threads} CPU thread(s), in turn with the others" if turns else "1 CPU thread"
    left_out = ("schedule", "rollout") if plan.replay is not None else ("schedule",)
    names = [stage.name for stage in plan.recipe.stages if stage.name not in left_out]
    names += [] if plan.config.rollouts_only else ["weight follower"]
    if plan.held_out:
        names.append("evaluator")
    sent = ", to servers by gloo" if plan.config.sends_weights else ""
    if plan.config.weights.transport == "collective":
        sent = f", and over a relay for each that takes them by collective ({_of_relays(plan)})"
    elif plan.config.weights.transport is None and plan.config.cluster.is_given and plan.transport == "shm":
        sent = f", and over a relay for each on a node that does not see the trainer's memory ({_of_relays(plan)})"
    lines = [f"roles     runtime {plan.config.runtime.kind}, weights by {plan.transport}{sent}"]
    engines, functions = _engine_processes(plan.config), _places_of_functions(plan.config)
    for name in names:
        lane = _LANE_OF.get(name)
        placements = {"reference": plan.config.reference.placement, "proximal": plan.config.proximal.placement}
        trained = plan.config.trainer_processes
        kind = _TRAINED_AS.get(name, name)
        if kind in plan.config.scorer_processes or kind in trained:
            layout = layouts_of(plan.config)[kind]
            own = "a process of its own"
            if layout.ranks > 1 or layout.stage:
                own = ranks_in_words(layout, _stages(plan, kind, layout), on_device=plan.memory.on_device)
            place = f"{own}: {threads_of_worker(plan.config)} CPU thread(s)"
        elif name == "rollout" and engines:
            place = f"event loop; engines in {engines}"
        elif placements.get(name) == "hybrid":
            lane_or_process = "the actor's process" if "trainer" in trained else "compute lane 'trainer'"
            place = f"{lane_or_process}, in turn with the actor"
        elif turns and (turn := lane or _OWN_LANE.get(name)):
            place = f"compute lane {turn!r}: {share}"
        elif name in _OWN_LANE:
            place = f"compute lane {_OWN_LANE[name]!r}: {share}"
        elif name in functions:
            place = functions[name]
        elif lane:
            place = f"compute lane {lane!r}: {threads} CPU thread(s), shared while the other computes"
        else:
            place = "event loop"
        lines.append(f"  {name:<16} {place}")
    if lent := plan.config.engine.lent:
        lines.append(
            f"  {'lent engines':<16} {lent} more on the trainer's devices, while it waits for its batch and sleeps; "
            "nothing is lent where that takes longer than it gives"
        )
    if plan.config.functions_process:
        lines.append(
            f"  {'functions':<16} modules are imported in their process anew, so that nothing global in them is "
            "shared with this one; functions.placement=own computes here"
        )
    if not plan.needs_engine:
        return lines
    lines += rollout_worker_count.describe(plan.config, plan.rollout_workers, plan.tokenizer)
    reward = plan.config.reward
    apart = reward.group or any(term.function not in ("remote", "judge") for term in reward.all_terms)
    if reward.description:
        place = f"{worker_count(reward)} child process(es)" if apart else "event loop"
        lines.append(f"  {'rewards':<16} {place}: {reward.description}")
    for judge in reward.judges:
        place = "the policy's engine" if judge.model is None else f"compute lane 'judge': {share}, {judge.model}"
        lines.append(f"  {'judge':<16} {place}")
    return lines


def _places_of_functions(config: TrainConfig) -> dict[str, str]:
    """By stage."""
    algorithm = config.algorithm
    names = [stage.name for stage in algorithm.stages] + (["advantages"] if algorithm.looks_at_tokens else [])
    place = "the functions' process: 1 CPU thread" if config.functions_process else "compute lane 'functions'"
    return dict.fromkeys(names, place)


def _engine_processes(config: TrainConfig) -> str:
    """As `2 processes of their own, 1 CPU thread(s) each`; empty where they have none."""
    if not config.engine.apart:
        return ""
    threads = threads_of_worker(config)
    count = config.engine.total
    own = "a process of its own" if count == 1 else f"{count} processes of their own"
    return f"{own}, {threads} CPU thread(s) each" if count > 1 else f"{own}, {threads} CPU thread(s)"


def _memory(plan: Plan) -> list[str]:
    memory, lines = plan.memory, list[str]()
    mend = "lower engine.max_concurrent_sequences or engine.kv_cache_gib, or take a smaller model"
    for each in memory.places:
        place, turns = f"each device of {' + '.join(each.roles)}", _turns(plan, each.turns, each.uses)
        lines += memory_lines(each.needed, each.free, place, on_device=True, mend=mend, more=turns)
        lines += use_lines(each.uses, {})
    if memory.uses or not memory.places:
        turns, computes = _turns(plan, memory.turns, memory.uses), memory.on_device and not memory.places
        lines += memory_lines(memory.needed, memory.free, memory.place, on_device=computes, mend=mend, more=turns)
    lines += use_lines(memory.uses, memory.on_host)
    return [*lines, *(f"  of the trainer's machine: {use} {in_units(n)}" for use, n in memory.beside_trainer.items())]


def _turns(plan: Plan, turns: Mapping[str, int], uses: Mapping[str, int]) -> list[str]:
    """A line, where there are any."""
    if not turns:
        return []
    told = ", ".join(f"{in_units(size)} {turn}" for turn, size in turns.items())
    how = "by turns" if plan.config.engine.colocated else "lent"
    return [f"  {how}: {told}; all that is below would be {in_units(sum(uses.values()))}"]


def _stages(plan: Plan, kind: str, layout: LayoutConfig) -> str:
    """As `, in stages of 3, 3, 2 layers`; nothing without stages."""
    if layout.pp == 1:
        return ""
    config = config_of_kind(kind, plan.config, read_model_config(plan.config.model.path))
    return stages_in_words(layout, PlannedModel.of(config, gives_values=kind in GIVE_VALUES))
