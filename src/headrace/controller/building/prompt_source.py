"""From the sources of a plan to what hands out its prompts, at the place where the run's ledger stands."""

from __future__ import annotations

from headrace.controller.planning.plan import Plan
from headrace.experience.prompts.dataset import PromptOrder, PromptSource, SourcePrompts
from headrace.experience.prompts.pass_rates import PassRates
from headrace.experience.prompts.prompt_order import FixedOrder, MixedOrder, PassRateOrder, RowOrder
from headrace.experience.records.recorded import RecordedSource
from headrace.store import RunStore


def make_prompt_source(plan: Plan, store: RunStore) -> tuple[PromptSource | RecordedSource, PassRates | None]:
    """With what a curriculum by pass rates learns from. Raises ConfigError where the ledger is not of these data."""
    config, frontier = plan.config, _frontier(store)
    epochs = None if config.trainer.batches is not None else config.trainer.epochs
    if plan.replay is not None:
        return RecordedSource(plan.replay.rollouts, epochs=epochs, frontier=frontier), None
    order = _order(plan)
    learns = config.data.curriculum.pass_rate is not None
    if learns:
        order.restore(store.ledger.drawn())
    source = PromptSource(
        plan.prompts,
        order,
        epochs=epochs,
        max_attempts=config.rollout.max_attempts,
        frontier=frontier,
        drawn=store.ledger.row,
    )
    rates = PassRates(order, passes_above=config.data.curriculum.passes_above) if learns else None
    return source, rates


def _order(plan: Plan) -> MixedOrder:
    config, parts = plan.config, plan.prompts.parts
    sizes = [len(part) for part in parts]
    given = [source.weight for source in config.data.sources]
    weights = [size if weight is None else weight for size, weight in zip(sizes, given, strict=True)]
    orders: list[RowOrder] = []
    for number, part in enumerate(parts):
        shuffled = PromptOrder(len(part), config.seed, config.data.shuffle, source=number)
        curriculum = config.data.curriculum
        if curriculum.pass_rate is not None:
            orders.append(PassRateOrder(shuffled, curriculum.pass_rate))
        else:
            numbers = part.numbers if curriculum.column is not None and isinstance(part, SourcePrompts) else None
            orders.append(FixedOrder(shuffled, numbers, descending=curriculum.descending))
    return MixedOrder(orders, sizes, weights)


def _frontier(store: RunStore) -> tuple[int, int] | None:
    """First (epoch, position) that was never issued."""
    last = store.ledger.frontier()
    return None if last is None else (last[0], last[1] + 1)
