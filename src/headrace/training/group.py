"""The trainer that roles see: its ranks are workers, or on a lane of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from headrace.models.packing import PackRow
from headrace.runtime.refs import Ref, Refs, refs_in
from headrace.store.media.files import Digest
from headrace.training.following import Following
from headrace.training.gap import Gap
from headrace.training.group_state import KeptReference, take, write
from headrace.training.held_rows import HeldRows
from headrace.training.layouts.ranks import Layout
from headrace.training.parts_on_disk import Opened
from headrace.training.protocol import PartWritten, StepReport
from headrace.training.rank_workers import Ranks, RankWorkers, ranks_of
from headrace.training.rows.packed_rows import RowToTrain
from headrace.training.shared_passes import SharedPasses, of_refs
from headrace.training.shares import Loads
from headrace.weights.plane import Departure, WeightReceiver
from headrace.weights.receiving import receiver_at
from headrace.weights.relay.receiver import OverRelays
from headrace.weights.relay.relays import Relays
from headrace.weights.seen import Seen
from headrace.weights.version import Version

_ACCUMULATE = "accumulate"


class TrainerGroup:
    """A model in training. Until `step`, what was accumulated can be discarded."""

    def __init__(
        self,
        name: str,
        ranks: Ranks,
        receiver: tuple[str, str] | None = None,
        *,
        max_tokens: int = 1,
        refs: Refs | None = None,
    ) -> None:
        """`name`: of its kind of worker, and of their lane. `receiver`: transport and address by which its weights
        leave. Where there are several ranks, `max_tokens`: the most in a micro-batch; and `refs`: by which what some
        answered is let go when another fails."""
        self.name = name
        self._ranks = ranks
        self._receiver = receiver
        self._max_tokens = max_tokens
        self._refs = refs
        self._passes = SharedPasses(ranks, max_tokens)
        self._loads = Loads(ranks.layout.dp)
        """Since the last step: in streaming accumulation a batch comes in many calls."""
        self._held = HeldRows(ranks, self._passes, max_tokens)
        self._left_from = 0
        """The rank whose versions receivers find, as they have been told."""
        self._relays: Relays | None = None
        self._moved: Callable[[], Awaitable[None]] | None = None
        self._steps = self._settled = 0
        """Optimiser steps since the ranks were made, or loaded a checkpoint: now, and at the last `settled`."""
        self._between = False
        """Within the several steps of a batch: ranks remember what it began with."""
        self._came = 0, 0
        """Bytes of the last version that ranks have on other machines than the first one's, and those that they sent
        for them."""
        self._takers: Sequence[int] = ()
        """Ranks that have taken a part of the checkpoint, and are to write it."""
        self._unhealed: set[int] = set()
        """Replicas that were made anew beside others, and have not all of their state yet."""

    @classmethod
    async def of(cls, name: str, ranks: Ranks, max_tokens: int = 1, refs: Refs | None = None) -> TrainerGroup:
        """Of ranks that have come together."""
        transport, address = await ranks.call("plane", what="where its weights are")
        return cls(name, ranks, (transport, address), max_tokens=max_tokens, refs=refs)

    async def restart(self) -> None:
        """Make its ranks anew from their spec, whether or not they were lost. Its receivers follow. Raises
        WorkerLost."""
        assert isinstance(self._ranks, RankWorkers), f"the {self.name} is no worker"
        await self._ranks.restart()
        self._steps = self._settled = 0
        self._unhealed.clear()
        self._loads.forget()
        await self._leaves_elsewhere()

    @property
    def has_replicas(self) -> bool:
        """Whether one can heal another."""
        return self._layout.model_replicas > 1

    async def is_whole(self, *, stepped: bool) -> bool:
        """Whether a replica is left that has its state, and all such can have one. `stepped`: that behind all steps of
        the batch at hand, which is not settled yet; else that of the last batch that was settled, which they still
        have, or remember between the steps of the next one. Gradients do not count. Raises WorkerLost."""
        ranks = [rank for replica in self._with_state for rank in self._layout.members(replica)]
        reached = await self._ranks.each("reaches", dict.fromkeys(ranks, ()), what="the steps that they made")
        wanted = self._steps if stepped else self._settled
        return bool(ranks) and all(wanted in (had if self._between else had[:1]) for had in reached.values())

    @property
    def absent(self) -> Mapping[str, str]:
        """Workers of replicas that the others go on without, each with the reason."""
        ranks = self._ranks
        return ranks.absent_workers if isinstance(ranks, RankWorkers) else {}

    @property
    def may_come_back(self) -> bool:
        """Whether some of them are taken in again, once they are made."""
        return isinstance(self._ranks, RankWorkers) and bool(self._ranks.absent.wanted)

    @property
    def can_be_lost(self) -> bool:
        """Whether its ranks are workers."""
        return isinstance(self._ranks, RankWorkers)

    async def lost_while_idle(self) -> NoReturn:
        """See `IdleLosses.raised`. Raises WorkerLost."""
        assert isinstance(self._ranks, RankWorkers), f"the {self.name} is no worker"
        await self._ranks.idle_losses.raised()

    async def make_again(self) -> None:
        """A replica that is absent, once there is room for it: `heal` takes it in. Raises WorkerLost."""
        assert isinstance(self._ranks, RankWorkers), f"the {self.name} is no worker"
        await self._ranks.absent.make_again()

    async def heal(self, *, stepped: bool, without: bool = False) -> list[str]:
        """Bring all to the state that `is_whole` asks for: replicas that have lost a rank, or were not given it before
        the one that gave it was lost, are made anew, and given it; the others stay, and forget their gradients.
        `without`: those for which there is no room soon are `absent`, rather than waited for; and those that were made
        again take part from now on. Receivers of weights follow. Returns the names of the workers whose refs are gone.
        Raises WorkerLost."""
        whole, steps = self._with_state, self._steps if stepped else self._settled
        if not whole:
            await self._all("reaches", what="the steps that it made")  # raises the loss of one that had the state
        await self.discard()
        ranks = [rank for replica in whole for rank in self._layout.members(replica)]
        await self._ranks.each("recall", dict.fromkeys(ranks, (steps,)), what="what the batch began with")
        self._steps, self._between = steps, False
        broken = [replica for replica in range(self._layout.model_replicas) if replica not in whole]
        if not broken:
            return []
        assert isinstance(self._ranks, RankWorkers), f"the {self.name} is no worker"
        self._unhealed.update(broken)  # a new one reports no steps, as all do behind a checkpoint that was loaded
        await (self._ranks.renew(broken) if without else self._ranks.restart(broken))
        gives = self._ranks.present.index(whole[0])
        await self._all("heal", gives, steps, what="the state of another replica")
        if self._ranks.present[0] in broken or self._left_from != self._first[0]:
            await self._leaves_elsewhere()
        self._unhealed.clear()
        return self._ranks.names_of(broken)

    @property
    def _with_state(self) -> Sequence[int]:
        return [replica for replica in self._ranks.whole if replica not in self._unhealed]

    async def _leaves_elsewhere(self) -> None:
        first = self._first[0]
        self._receiver = await self._call("plane", what="where its weights are")
        self._left_from = first
        if self._moved is not None:
            await self._moved()

    async def accumulate(
        self, micros: Sequence[Sequence[RowToTrain]], coefficient: float | None = None
    ) -> Sequence[Ref]:
        """See `TrainerRank.accumulate`: the refs of all rows. Several ranks share the rows among micro-batches of their
        own; nothing is accumulated where one cannot read its own."""
        rows = [row for micro in micros for row in micro]
        if self._is_alone:
            given = [list(micro) for micro in micros]
            found: Sequence[Sequence[Ref]] = await self._of_rows(
                rows, self._call("accumulate", given, coefficient, what="a micro-batch")
            )
            return [ref for refs in found for ref in refs]
        parts = self._passes.parts([len(row) for row in rows], self._loads.had(_ACCUMULATE))
        taken = {
            rank: ([[rows[place] for place in places] for places in part], coefficient)
            for rank, part in self._by_rank(parts).items()
        }
        await self._of_rows(rows, self._ranks.each("take", taken, what="rows of a micro-batch"))
        self._loads.add(_ACCUMULATE, parts, [len(row) for row in rows])
        once = [[()] if part else [] for part in parts]
        answers = await self._passes.made("accumulate_taken", once, (), "a micro-batch", left=self._free)
        each = {rank: answer for rank, answered in answers.items() for answer in answered}
        return self._passes.in_order(parts, each, len(rows))

    async def hold(self, batch: int, rows: Sequence[RowToTrain], coefficient: float | None = None) -> None:
        """See `TrainerRank.hold`. Each row is one rank's until `let_go`."""
        await self._of_rows(rows, self._held.hold(batch, rows, coefficient))

    async def score_held(self, places: Sequence[int]) -> None:
        """See `TrainerRank.score_held`."""
        await self._held.over("score_held", places, "log-probs of a micro-batch")

    async def prepare_held(self) -> None:
        """See `TrainerRank.prepare_held`."""
        assert self._layout.dp == 1, "no rank has the whole batch"
        await self._all("prepare_held", what="what the whole batch decides on")

    async def accumulate_held(self, places: Sequence[int]) -> None:
        """See `TrainerRank.accumulate_held`."""
        await self._held.over("accumulate_held", places, "a micro-batch")

    async def let_go(self) -> Sequence[Ref | None]:
        """See `TrainerRank.let_go`. Of a rank that is lost nothing is known; the batch is trained all the same."""
        self._between = False
        return await self._held.let_go()

    async def remember(self) -> None:
        """To be called before the first of several steps on a batch. Where there are replicas, each keeps the state
        that the batch begins with, to give it to one that is made anew meanwhile."""
        if self.has_replicas:
            await self._all("remember", what="a copy of what a batch begins with")
            self._between = True

    async def step(self) -> StepReport:
        """See `Trainer.step`."""
        every = dict.fromkeys(ranks_of(self._ranks), ())
        self._loads.forget()
        if self._layout.size > 1:
            await self._ranks.each("add_up", every, what="what all ranks have of an optimiser step")
        # For the rest no rank needs another: all that are left make the step. If one was lost before, none has.
        reports = await self._ranks.answered("step", every, what="an optimiser step")
        self._steps += 1
        report: StepReport = next(iter(reports.values()))
        return replace(
            report,
            read_bytes=sum(one.read_bytes for one in reports.values()),
            told_bytes=sum(one.told_bytes for one in reports.values()),
        )

    def busy_s(self) -> dict[str, float]:
        """See `Ranks.busy_s`."""
        return self._ranks.busy_s(self.name)

    async def rate(self) -> float:
        """See `Trainer.rate`: of all ranks together."""
        return sum((await self._all("rate", what="how fast its device is")).values())

    def settled(self) -> None:
        """A batch is trained and recorded: what the ranks have now may be committed."""
        self._settled = self._steps

    async def sleep(self) -> None:
        """See `Trainer.sleep`: all ranks that are left."""
        await self._ranks.each("sleep", dict.fromkeys(self._ranks.left, ()), what="memory to be given back")

    async def wake(self) -> None:
        """See `Trainer.wake`: all ranks that are left."""
        await self._ranks.each("wake", dict.fromkeys(self._ranks.left, ()), what="its memory")

    async def discard(self) -> None:
        """See `TrainerRank.discard`: of all that are left."""
        self._loads.forget()
        await self._ranks.each("discard", dict.fromkeys(self._ranks.left, ()), what="gradients to be forgotten")

    async def scores(self, column: str, rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
        """Of each row what writes the column, from one forward pass of each rank's micro-batches. Raises RefLost."""
        what = f"scores of {column}"
        if self._is_alone:
            found: Sequence[Sequence[Any]] = await self._of_rows(
                rows, self._call("scores", column, list(rows), what=what)
            )
            return found
        parts = self._passes.parts([len(row) for row in rows], self._loads.had(column))
        passes = [[(column, [rows[place] for place in places]) for places in part] for part in parts]
        asking = self._passes.made("scores", passes, (column, []), what, reads=True, left=self._free)
        answers = await self._of_rows(rows, asking)
        self._loads.add(column, parts, [len(row) for row in rows])
        return self._passes.in_order(parts, answers, len(rows))

    async def gap(self, rows: Sequence[PackRow], max_tokens: int) -> Gap | None:
        """See `measure`."""
        gap: Gap | None = await self._jointly("gap", list(rows), max_tokens, what="the gap sample")
        return gap

    async def snapshot(self, version: Version) -> None:
        """Copy the weights as they are. Raises WeightError."""
        self._came = 0, 0
        opened: Opened | None = await self._jointly("snapshot", version, what="a copy of the weights")
        if opened is not None:
            await self._written(opened, "seal")

    async def sees(self) -> Seen:
        """Where its weights leave from."""
        found: Seen = await self._call("sees", what="where it is")
        return found

    def goes_on(self, relays: Relays, moved: Callable[[], Awaitable[None]]) -> None:
        """From now on its versions leave over relays, too. `moved` is awaited when its first rank is made anew,
        perhaps on another machine."""
        self._relays, self._moved = relays, moved

    async def send(self) -> Departure:
        """Make the copy of `snapshot` the newest version that receivers find, and have relays carry it. The trainer may
        go on meanwhile. Raises WeightError."""
        came = self._came
        size, seconds = await self._call("send", what="weights on their way")
        if self._relays is not None:
            await self._relays.carry(self.plane()[1])
        return Departure("memory" if self._receiver is None else self._receiver[0], size, seconds, *came)

    async def newest(self) -> Version | None:
        """See `TrainerRank.newest`."""
        found: Version | None = await self._call("newest", what="the version that left last")
        return found

    async def publish(self, version: Version) -> None:
        """`snapshot`, and `send`. Raises WeightError."""
        await self.snapshot(version)
        await self.send()

    def receiver(self) -> WeightReceiver:
        """A new receiving end of its weights."""
        published = Following(self.plane)
        return published if self._relays is None else OverRelays(published, self._relays)

    def plane(self) -> tuple[str, str]:
        """Transport and address of its weights, as it is now."""
        assert self._receiver is not None, f"nobody receives the weights of the {self.name}"
        return self._receiver

    async def show_aside(self, version: Version) -> WeightReceiver:
        """The weights as they are, for one receiver alone, until `end_aside`."""
        shown = await self._jointly("show_aside", version, what="weights for one receiver")
        if isinstance(shown, Opened):
            shown = await self._written(shown, "seal_aside")
        return receiver_at(*shown)

    async def end_aside(self) -> None:
        """See `show_aside`."""
        await self._jointly("end_aside", what="the end of a publication")

    async def keep_reference(self) -> None:
        """See `PolicyTrainer.keep_reference`."""
        await self._all("keep_reference", what="a copy of the weights")

    async def take_state(self, *, copies: bool) -> None:
        """See `TrainerRank.take_state`; where each rank has all, the first that is left does. Raises WorkerLost."""
        self._takers = await take(self._ranks, "take_state", copies)

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """See `TrainerRank.write_state`: of files that one rank wrote what they hold. Raises OSError, CheckpointError,
        WorkerLost."""
        return await write(self._ranks, "write_state", self._takers, path)

    async def load(self, path: Path) -> None:
        """See `Trainer.load`. Raises CheckpointError."""
        await self._all("load", str(path), what="its part of a checkpoint")
        self._steps = self._settled = 0
        self._unhealed.clear()
        self._loads.forget()

    async def begin_from(self, path: Path, *, masters: bool, optimizer: bool) -> None:
        """See `Trainer.begin_from`. Raises CheckpointError."""
        await self._all("begin_from", str(path), masters, optimizer, what="another run's state")
        self._steps = self._settled = 0
        self._unhealed.clear()

    @property
    def kept_reference(self) -> KeptReference:
        """The copy that it keeps of its own weights, as part of a checkpoint."""
        return KeptReference(self._ranks)

    @property
    def leaves_from(self) -> str:
        """The worker whose versions receivers find, or the name that it would have."""
        return f"{self.name}/{self._first[0]}"

    @property
    def _first(self) -> Sequence[int]:
        """The ranks of the first replica that takes part: its weights leave."""
        return self._layout.members(self._ranks.present[0])

    @property
    def _layout(self) -> Layout:
        return self._ranks.layout

    @property
    def _is_alone(self) -> bool:
        return self._layout.size == 1

    def _by_rank(self, parts: Sequence[Sequence[Sequence[int]]]) -> dict[int, Sequence[Sequence[int]]]:
        """The micro-batches of each rank. Where passes are joint, all ranks of a replica make as many: those that have
        fewer end with empty ones."""
        if not self._layout.joint:
            return {rank: part for rank, part in enumerate(parts) if part}
        found: dict[int, Sequence[Sequence[int]]] = {}
        for replica in self._ranks.present:
            own = {rank: parts[self._layout.place(rank).dp] for rank in self._layout.members(replica)}
            most = max(map(len, own.values()))
            if most:
                found |= {rank: [*part, *([[]] * (most - len(part)))] for rank, part in own.items()}
        return found

    async def _of_rows(self, rows: Sequence[RowToTrain], asking: Awaitable[Any]) -> Any:
        refs = (ref for row in rows for ref in row.columns.values() if isinstance(ref, Ref))
        return await of_refs(lambda: next(refs, None), asking)

    def _free(self, answer: object) -> None:
        if self._refs is not None:
            for ref in refs_in(answer):
                self._refs.free(ref)

    async def _all(self, method: str, *args: Any, what: str) -> dict[int, Any]:
        return await self._ranks.each(method, dict.fromkeys(ranks_of(self._ranks), args), what=what)

    async def _jointly(self, method: str, *args: Any, what: str) -> Any:
        """Ask all ranks of the first replica, each of which has a part of the model. Returns the first one's answer."""
        first = self._first
        return (await self._ranks.each(method, dict.fromkeys(first, args), what=what))[first[0]]

    async def _written(self, opened: Opened, seal: str) -> Any:
        """Have each rank of the first replica write what it has, and then the first one `seal` it; returns what that
        answers. Raises WeightError."""
        own = dict.fromkeys(self._first, (opened,))
        written: dict[int, PartWritten] = await self._ranks.each("write_part", own, what="its part of the weights")
        self._came = sum(one.came for one in written.values()), sum(one.sent for one in written.values())
        return await self._call(seal, sum(one.size for one in written.values()), what="a copy of the weights")

    async def _call(self, method: str, *args: Any, what: str) -> Any:
        return await self._ranks.call(method, *args, what=what)
