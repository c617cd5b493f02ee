"""The roles that train, connected to the rows that they train on; and the rules by which their tokens are trained."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.controller.building.episode_runners import policy_settings
from headrace.controller.building.groundwork import Groundwork
from headrace.controller.building.models import Models
from headrace.controller.planning.plan import Plan
from headrace.experience.columns import EXPERTS
from headrace.experience.loader import StreamingLoader
from headrace.roles.actors import actor
from headrace.roles.actors.actor import ActorRole
from headrace.roles.actors.batch_stats import BatchStats, FreshRule, StalenessRule
from headrace.roles.actors.critic import CriticRole
from headrace.roles.actors.gap_sample import GapSampler, due_after
from headrace.roles.actors.trained_step import TrainedStep
from headrace.roles.actors.whole_batch import WholeBatches
from headrace.roles.context import RoleContext
from headrace.roles.lending import Lending
from headrace.roles.lending_rule import LendingRule
from headrace.roles.replay import NeverFresh
from headrace.roles.turns import NoTurns, SharedDevices, Turns
from headrace.rollout.workflow import outside_player
from headrace.runtime.signal import Signal
from headrace.training.epochs import Epochs
from headrace.training.objective import policy_columns, prepare_batch
from headrace.training.protocol import StepReport
from headrace.weights.version import Lineage, Version


@dataclass(frozen=True, slots=True)
class TrainingRoles:
    """Builds actor and critic, which step together on each batch."""

    plan: Plan
    models: Models
    base: Groundwork
    lineage: Lineage
    turns: Turns
    rule: StalenessRule
    fresh: FreshRule

    def critic(self) -> CriticRole | None:
        """None where the algorithm needs none."""
        if self.models.critic is None:
            return None
        config = self.plan.config
        budget = config.critic.tokens_at_once
        epochs = self._epochs(config.critic.updates_per_batch, whole=config.seals_critic)
        return CriticRole(
            self.base.context,
            self._loader("critic.update", budget, epochs),
            self.models.critic,
            self.rule,
            max_tokens=budget,
            epochs=epochs,
            turns=self.turns,
        )

    def actor(
        self,
        published: Signal,
        critic: CriticRole | None,
        gap: GapSampler | None,
        *,
        trained: Callable[[int, Sequence[StepReport], BatchStats], Awaitable[None]],
        after_step: Callable[[TrainedStep], Awaitable[None]],
        settled: Callable[[], Awaitable[None]],
    ) -> ActorRole:
        """`published`: told of each version. `trained`, `after_step`, `settled`: see `ActorRole`."""
        config, algorithm, kl = self.plan.config, self.plan.config.algorithm, self.models.kl
        budget = config.trainer.tokens_at_once
        epochs = self._epochs(algorithm.updates_per_batch, whole=algorithm.seals_batch)
        routed = (EXPERTS,) if algorithm.router_replay else ()
        return ActorRole(
            self.base.context,
            self._loader(actor.NAME, budget, epochs),
            self.models.trainer,
            published,
            self.lineage,
            self.rule,
            self.fresh,
            columns=(*policy_columns(algorithm, own_proximal=config.own_proximal), *routed),
            max_tokens_per_microbatch=budget,
            whole=None if epochs is None else self._whole_batches(epochs),
            critic=critic,
            warm_up_batches=self.plan.warm_up_batches,
            gap_rows=gap.rows if gap is not None else lambda batch: (),
            coefficient=lambda: kl.value if algorithm.kl.moves_in_loss else None,
            trained=trained,
            after_step=after_step,
            settled=settled,
            turns=self.turns,
        )

    def _whole_batches(self, epochs: Epochs) -> WholeBatches:
        config, algorithm = self.plan.config, self.plan.config.algorithm
        return WholeBatches(
            epochs,
            recompute=algorithm.needs_proximal and not config.own_proximal,
            prepares=prepare_batch(algorithm) is not None,
            stop_kl=algorithm.stop_kl,
        )

    def _epochs(self, updates: int, *, whole: bool) -> Epochs | None:
        """Over batches that are all there before they are trained on, if they are."""
        config = self.plan.config
        if not (whole or config.async_.in_order):
            return None
        return Epochs(config.algorithm.epochs_per_batch, updates, config.seed)

    def _loader(self, consumer: str, max_tokens: int, epochs: Epochs | None) -> StreamingLoader:
        config, base = self.plan.config, self.base
        return StreamingLoader(
            base.table,
            base.flow,
            consumer=consumer,
            max_tokens=max_tokens if epochs is None else None,
            streaming=config.async_.streaming and epochs is None,
            timeout_s=config.runtime.stall_timeout_s,
            unfinished=base.context.unfinished,
            stood_still=self._stood_still,
            holds=lambda: self.turns.holds_rows,
        )

    def _stood_still(self) -> float:
        """Seconds in which no row could come: while no engine served, a model that only scores was brought back, or of
        what a rollout worker was lost with, or while all agents outside were at work and tasks waited for them."""
        outside, hands = outside_player(self.plan.workflow), self.base.hands
        models = self.models
        away = sum(pool.outage.seconds() for pool in (models.engines, *models.judges.values()))
        away += sum(scorer.outage.seconds() for scorer in models.returns)
        busy = 0.0 if outside is None else outside.tasks.busy_s()
        return away + busy + (0.0 if hands is None else hands.seats.lost_time.seconds())


def turns_of(plan: Plan, context: RoleContext, models: Models) -> Turns:
    """Who has the devices that engines and those that train share, if they do."""
    pool, rollout = models.engines, plan.config.rollout
    if plan.config.engine.colocated:
        return SharedDevices(context, pool, models.groups)
    if not pool.lent:
        return NoTurns()
    rule = LendingRule(len(pool.own), len(pool.lent))
    return Lending(context, pool, models.groups, rule, groups=rollout.prompts_per_batch + rollout.surplus)


def staleness_rule(plan: Plan) -> StalenessRule:
    """Which tokens may enter the loss: of a run that replays, those that might in the recorded one."""
    config = plan.config
    masks_truncated = config.algorithm.truncated == "mask"
    if plan.replay is not None:
        return plan.replay.rule(masks_truncated=masks_truncated)
    bound, at_deadline = config.async_.staleness_bound, config.deadline_rule
    return StalenessRule(bound, at_deadline == "mask", at_deadline == "late", masks_truncated)


def fresh_rule(plan: Plan, lineage: Lineage) -> FreshRule:
    """Which tokens show the engine's mismatch: of a run that replays, none."""
    if plan.replay is not None:
        return NeverFresh(lineage)
    return FreshRule(lineage, keeps_keys=plan.config.async_.swap == "keep")


def gap_sampler(
    plan: Plan, models: Models, context: RoleContext, fresh: FreshRule, committed: Version
) -> GapSampler | None:
    """None on-policy, where every token shows the gap, and where nothing is generated for it."""
    if plan.replay is not None or not plan.config.async_.staleness_bound:
        return None
    policy = policy_settings(plan, models.engines, context.runtime)
    # The first batch that the actor looks at shows the gap, unless it comes after others, when it may be stale.
    warms_up = plan.warm_up_batches > committed.number
    first = plan.warm_up_batches if warms_up else due_after(committed.number)
    return GapSampler(context, models.engines, policy, plan.prompts, fresh, first=first)
