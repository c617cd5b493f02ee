"""The loop of the offline trainers: batches of a fixed dataset, in a seeded order, one optimiser step each."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch

from headrace.config import ConfigError, RMConfig, config_sha256, dump_config
from headrace.config.track import sections
from headrace.config.values.paths import path_of
from headrace.controller.begin import Begin
from headrace.controller.building.threads import available_threads, check_threads
from headrace.controller.planning.given_inputs import check_inputs
from headrace.controller.planning.layouts import check_layout
from headrace.controller.planning.out_of_memory import told
from headrace.controller.planning.prompt_notes import unread_notes
from headrace.controller.planning.role_devices import role_device
from headrace.controller.stopping import StopFlag
from headrace.errors import HeadraceError
from headrace.experience.prompts.dataset import PromptOrder
from headrace.experience.text.chat_template import ChatTemplate
from headrace.models.loading import (
    check_model,
    load_tokenizer,
    read_generation_stops,
    read_model_config,
)
from headrace.models.rope_reach import LONG, positions_of, reach_of
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.observe.offline.summary import build_summary
from headrace.observe.trackers.packages import check_packages
from headrace.offline.checkpoint import read_checkpoint, write_checkpoint
from headrace.offline.model import with_reference
from headrace.offline.output import OutputFolder
from headrace.offline.progress import Made, Progress
from headrace.offline.ranks.placement import place_of, rank_teams
from headrace.offline.ranks.started import check_world, started
from headrace.offline.recorder import OfflineView, over, recording
from headrace.offline.trained.of_config import OfflineConfig
from headrace.offline.units import Unit, trained_units
from headrace.runtime.collection import rare_collections
from headrace.runtime.process.joined import Joined
from headrace.runtime.progress import Stuck
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import WorkerLost

logger = logging.getLogger(__name__)

_REPORTS = 20
STOPPING = "it stops behind the step at hand, with a checkpoint; a second signal ends all at once"
"""What is said of a signal to stop."""

Report = Callable[[int, float, float], None]
"""Steps done, loss of the last one, tokens/s since the report before."""


class RankLost(HeadraceError, RuntimeError):
    """One of the ranks that train together has ended, or has not answered in time. The message names it."""


@dataclass(frozen=True, slots=True)
class OfflineResult(Progress):
    model: Path = Path()
    """Folder that `transformers` loads; there once the run is finished."""
    status: Literal["finished", "stopped"] = "finished"


@dataclass(frozen=True, slots=True)
class Source:
    """The model that training begins from, looked at before it is loaded."""

    tokenizer: Any
    template: ChatTemplate
    end_token_id: int
    stop_token_ids: tuple[int, ...]
    """That end a response."""
    max_context: int | None


def look_at(config: OfflineConfig, output: OutputFolder | None) -> Source:
    """Raises ConfigError for a model that cannot be trained on responses, or that the output, if there is to be one,
    would overwrite."""
    source = path_of(config.model.path)
    if output is not None and source.exists() and source.resolve() == output.model.resolve():
        raise ConfigError(f"{output.model} is the model to begin from, and would be overwritten; give another --dir")
    joined = Joined.of()
    check_world(config, joined)
    check_threads(config.runtime.threads)
    check_inputs(config)
    check_packages(sections(config.track))
    device = role_device(config, "trainer")
    check_model(config.model.path)
    model = read_model_config(config.model.path)
    here, scores = place_of(config) is None and (joined is None or not joined.is_spread), isinstance(config, RMConfig)
    check_layout("trainer", config.trainer.layout, model, device, here=here, gives_values=scores)
    rank_teams(config)  # whose devices may not divide among them
    tokenizer = load_tokenizer(config.model.path)
    stops = read_generation_stops(config.model.path, tokenizer)
    if not stops:
        raise ConfigError(
            f"the tokenizer and the config of model {config.model.path!r} name no end-of-sequence token, so the model "
            "could not learn to stop; set eos_token in the tokenizer"
        )
    end = stops[0] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    context, reach = positions_of(model), reach_of(model)
    if reach is not None and reach.rope_type == LONG:
        logger.warning("samples have %d tokens at most: the model's %s", reach.positions, reach.words)
    template = ChatTemplate.of(config.data.template, tokenizer)
    for note in unread_notes(template):
        logger.warning("%s", note)
    return Source(tokenizer, template, end, tuple(dict.fromkeys((end, *stops))), context)


def run_offline(
    config: OfflineConfig,
    output: OutputFolder,
    units: Sequence[Unit],
    *,
    per_batch: int,
    held_out: Sequence[Unit] = (),
    to_start: bool = False,
    begin: Begin = "new",
    report: Report,
    now: Callable[[], float],
    view: OfflineView | None = None,
    stop: StopFlag | None = None,
    listeners: OfflineListeners = NOBODY,
) -> OfflineResult:
    """Train on `units`, `per_batch` of them a step; write `model`, `run.db` and `summary.json` into `output`. SIGINT,
    SIGTERM and `stop` end it after the step at hand, with a checkpoint; a second signal ends the process at once. A
    finished run that is resumed stays as it is.

    `held_out` is measured before and after training, and every `evaluation.every` steps. `to_start`: the loss compares
    log-probs to those under the weights that training begins with. `report` is called some twenty times. `now`:
    monotonic seconds. `view` shows the record while it grows, `listeners` are told of it.

    Raises ConfigError for a folder that cannot be written, and what `OutputFolder.claim` and `read_checkpoint` raise,
    before the model is loaded; DiskFull or another StoreError if the model or the record cannot be saved, OutOfMemory,
    RankLost, Stuck.
    """
    digest = config_sha256(config)
    if begin == "resume" and (ended := _ended(output, digest)) is not None:
        output.tidy_finished()
        return ended
    steps = steps_of(config, len(units), per_batch)
    with ExitStack() as stack:
        lock = stack.enter_context(output.claim(begin))
        made = Made(digest, dump_config(config), _data_sha256(units))
        progress = read_checkpoint(output.checkpoint, made) if begin == "resume" else Progress()
        torch.set_num_threads(available_threads(config.runtime.threads))
        with told(config), _lost_ranks(output):
            model = stack.enter_context(closing(started(config, steps, output.folder)))
            if to_start:
                units, held_out = with_reference(model, units), with_reference(model, held_out)
            if progress.steps:
                model.load(output.checkpoint)
        order = PromptOrder(len(units), config.seed, config.data.shuffle)
        batches = islice(_batches(units, order, size=per_batch, steps=steps), progress.steps, None)

        def save(progress: Progress) -> None:
            output.write_checkpoint(lambda folder: write_checkpoint(folder, model.save, progress, made))
            listeners.checkpoint(progress.steps, output.checkpoint)

        record = stack.enter_context(recording(config, lock, view, listeners, done=progress.steps))
        tell, start = _teller(report, steps, progress), now() - progress.wall_s

        def evaluate() -> float:
            """Seconds that it took, which are not of training."""
            if not held_out or record.is_evaluated(progress.steps):
                return 0.0
            began = now()
            found = over(model.measured(held_out))
            seconds = now() - began
            record.evaluation(progress.steps, len(held_out), found, seconds)
            return seconds

        record.started(steps, progress.steps)
        with told(config), _lost_ranks(output), rare_collections(), stop or StopFlag(STOPPING) as told_to_stop:
            if progress.steps == 0 or _is_due(progress.steps, config.evaluation.every):
                start += evaluate()
            for batch in batches:
                step = model.train(batch)
                progress = progress.after(step, now() - start)
                record.step(progress.steps, len(batch), step, progress.wall_s)
                tell(progress)
                if progress.steps < steps and (told_to_stop.requested or progress.steps % config.checkpoint.every == 0):
                    save(progress)
                if told_to_stop.requested:
                    break
                if progress.steps < steps and _is_due(progress.steps, config.evaluation.every):
                    start += evaluate()
            if progress.steps == steps:
                evaluate()
        status: Literal["finished", "stopped"] = "finished" if progress.steps == steps else "stopped"
        result = OfflineResult(**asdict(progress), model=output.model, status=status)
        if status == "finished":
            with _lost_ranks(output):
                output.replace_model(model.export)
            listeners.checkpoint(progress.steps, output.folder)
        output.write_summary(
            {
                **build_summary(record.read()),
                **asdict(result),
                "model": str(result.model),
                "seed": config.seed,
                "config_sha256": digest,
            }
        )
        record.end(status)
        if status == "finished":
            output.finish()
    return result


def steps_of(config: OfflineConfig, units: int, per_batch: int) -> int:
    """Of the whole run."""
    return config.trainer.steps or math.ceil(units / per_batch)


@contextmanager
def _lost_ranks(output: OutputFolder) -> Iterator[None]:
    """What a rank that is lost, stuck or does not answer raises within says how to go on."""
    try:
        yield
    except WorkerLost as error:
        raise RankLost(f"{error}; the other ranks have ended as well; {_mend(output)}") from error
    except WaitTimeout as error:
        raise RankLost(f"{error}; {_mend(output)}") from error
    except Stuck as error:
        raise Stuck(f"{error}; {_mend(output)}") from error


def _mend(output: OutputFolder) -> str:
    if output.checkpoint.exists():
        return f"go on with --resume: {output.checkpoint} is there"
    return "no checkpoint was made yet, so begin again with --fresh"


def _is_due(steps: int, every: int | None) -> bool:
    return every is not None and steps % every == 0


def _ended(output: OutputFolder, digest: str) -> OfflineResult | None:
    """The run in `output`, if it is finished and of this config."""
    summary = output.read_finished()
    if summary is None or summary.get("config_sha256") != digest:
        return None
    return OfflineResult(**{field.name: summary[field.name] for field in fields(Progress)}, model=output.model)


def _data_sha256(units: Sequence[Unit]) -> str:
    digest = hashlib.sha256()
    for unit in units:
        for row in unit:
            digest.update(len(row).to_bytes(8, "little"))
            digest.update(row.tokens.tobytes())
            digest.update(row.mask.tobytes())
    return digest.hexdigest()


def _batches(units: Sequence[Unit], order: PromptOrder, *, size: int, steps: int) -> Iterator[list[Unit]]:
    """`steps` batches of `size` units, pass after pass over the data; a single pass may end with a short batch."""
    total = trained_units(steps, size, len(units))
    for start in range(0, total, size):
        places = (divmod(place, len(units)) for place in range(start, min(start + size, total)))
        yield [units[order.row(epoch, position)] for epoch, position in places]


def _teller(report: Report, steps: int, begun: Progress) -> Callable[[Progress], None]:
    """Calls `report` some twenty times in all."""
    every, told = max(1, steps // _REPORTS), begun

    def tell(progress: Progress) -> None:
        nonlocal told
        if progress.steps % every == 0 or progress.steps == steps:
            seconds = max(progress.wall_s - told.wall_s, 1e-9)
            report(progress.steps, progress.last_loss, (progress.tokens - told.tokens) / seconds)
            told = progress

    return tell
