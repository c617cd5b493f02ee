"""`headrace.train`, and what is awaited of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.api import background
from headrace.api.arguments import check_resume, folder_of
from headrace.api.callbacks import Callbacks
from headrace.api.given.inputs import Inputs
from headrace.api.given.objects_in_config import named, several
from headrace.api.interrupted import Interrupted
from headrace.api.run import Run
from headrace.api.view import caller_view, note, notes
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.reading.unused_keys import ineffective
from headrace.store import RunExists, RunMissing, RunStore

if TYPE_CHECKING:
    from headrace.controller.stopping import StopRequest

Config = str | Path | Mapping[str, Any] | TrainConfig

_STOPPING = "the batch at hand is given up"


def train(
    config: Config,
    *,
    data: Any = None,
    eval_data: Any = None,
    reward: Any = None,
    workflow: Any = None,
    environment: Any = None,
    filters: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> Run:
    """Train a policy as `headrace train` does, and return the run once it has ended.

    `config`: the path of a YAML file, a dict of what would stand in one, or a `TrainConfig`. `overrides` are its keys,
    with two underscores for a dot (`trainer__optimizer__lr=1e-6`, `async__mode="sync"`), or as they are in
    `**{"trainer.optimizer.lr": 1e-6}`; a dict is merged into its section.

    `data`, `eval_data`: rows as dicts, a `datasets.Dataset`, a pandas frame, any iterable of dicts, or the path of a
    JSONL file; `eval_data` may be a mapping of these by the name of their set, too. `reward`: a function as
    `docs/workflows.md` has it, or several, whose rewards are added, or what stands under `reward` in the config;
    `workflow`: a class or an object; `environment`: a class, or a function that makes one; `filters`: functions, or
    entries of `rollout.filters`; each may be text as in the config, too. `dir`: the run's folder;
    `runs/NAME-OF-CONFIG` unless given, and for a config that is no file the first of `runs/train`, `runs/train-2`, ...
    that is free. `resume`: go on with the run in `dir`. `callbacks`: objects with any of `on_batch`, `on_evaluation`,
    `on_checkpoint` and `on_rollout`, each called with one argument in the run's event loop.

    Works where an event loop runs, as in a notebook. Raises ConfigError for what was given wrong, before anything
    starts; RunExists, RunInUse, RunMissing and ConfigMismatch for the folder; Interrupted, a KeyboardInterrupt, once
    the run has stopped for SIGINT or SIGTERM, ready to be resumed; another StoreError, WaitTimeout, EngineError,
    NothingToTrain, OutOfMemory, PieceError or TrainingDiverged for what ended the run.
    """
    job = _Job(config, data, eval_data, reward, workflow, environment, filters, dir, resume, callbacks, overrides)
    stop = background.stop_request(_STOPPING)
    ended, signalled = background.wait(lambda: job.run(stop), stop)
    if signalled and ended.status == "stopped":
        raise Interrupted(Run(ended.folder), signalled, resumable=ended.resumable)
    return Run(ended.folder)


async def atrain(
    config: Config,
    *,
    data: Any = None,
    eval_data: Any = None,
    reward: Any = None,
    workflow: Any = None,
    environment: Any = None,
    filters: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> Run:
    """As `train`, while the caller's event loop goes on. Cancelled, it stops the run first, which can be resumed."""
    job = _Job(config, data, eval_data, reward, workflow, environment, filters, dir, resume, callbacks, overrides)
    stop = background.stop_request(_STOPPING)
    return Run((await background.wait_async(lambda: job.run(stop), stop)).folder)


class _Ended(NamedTuple):
    status: str
    folder: Path
    resumable: bool


@dataclass(frozen=True, slots=True)
class _Job:
    """What `train` was given."""

    config: Config
    data: Any
    eval_data: Any
    reward: Any
    workflow: Any
    environment: Any
    filters: Any
    dir: str | Path | None
    resume: bool
    callbacks: Iterable[Any]
    overrides: Mapping[str, Any]

    def run(self, stop: StopRequest) -> _Ended:
        """Takes a thread for as long. Where no run begins, nothing that was written for it stays."""
        folder = folder_for(self.config, self.dir, resume=self.resume)
        callbacks, inputs = Callbacks(self.callbacks), Inputs(folder, resume=self.resume)
        try:
            config = load_config(TrainConfig, named(self.config, inputs), named(self._values(inputs), inputs))
            notes(ineffective(config))
            status = self._train(config, folder, inputs, callbacks, stop)
        except BaseException as error:
            inputs.rename(error)
            if self.resume or not RunStore.exists(folder):
                inputs.tidy()
            raise
        finally:
            callbacks.close()
        return _Ended(status, folder, resumable=not inputs.only_here)

    def _values(self, inputs: Inputs) -> dict[str, Any]:
        """By the keys of the config."""
        return {
            **dotted(self.overrides),
            **inputs.data(self.data, "data", "data.train", "train"),
            **several(self.eval_data, inputs),
            **inputs.environment(self.environment),
            **inputs.workflow(self.workflow),
            **inputs.reward(self.reward),
            **inputs.filters(self.filters),
        }

    def _train(self, config: TrainConfig, folder: Path, inputs: Inputs, callbacks: Callbacks, stop: StopRequest) -> str:
        from headrace.controller.planning.origin import resumed_config
        from headrace.controller.planning.plan import make_plan
        from headrace.controller.train import Begin, train
        from headrace.runtime.event_loop import run_to_end

        begin: Begin = "resume" if self.resume else "new"
        resumed = resumed_config(config, folder) if self.resume else config
        plan = make_plan(resumed, folder if self.resume else None, inputs.objects)
        notes(plan.notes)
        view, listeners, owners = caller_view(), callbacks.listeners(), callbacks.files
        ended = run_to_end(
            lambda: train(plan, folder, begin, view, note, stop=stop, listeners=listeners, owners=owners),
            "headrace.train",
        )
        return ended.status


def dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments by the keys of the config that they are for."""
    return {name.replace("__", "."): value for name, value in overrides.items()}


def folder_for(config: object, dir: str | Path | None, *, resume: bool) -> Path:
    """The run's folder, absolute, so that what is written into it is found from anywhere.

    Raises RunExists or RunMissing before anything is written; ConfigError.
    """
    check_resume(resume)
    given = folder_of(dir)
    if given is not None:
        folder = given
    elif isinstance(config, str | Path):
        folder = Path("runs") / Path(config).stem
    elif resume:
        raise ConfigError("resume=True needs dir, the folder of the run to go on with")
    else:
        names = (Path("runs") / (f"train-{number}" if number > 1 else "train") for number in count(1))
        folder = next(path for path in names if not path.exists())
    folder = folder.absolute()
    if resume and not RunStore.exists(folder):
        raise RunMissing(f"{folder} holds no run to go on with; check dir, or leave out resume=True")
    if not resume and RunStore.exists(folder):
        raise RunExists(f"{folder} already holds a run: go on with it by resume=True, or give another dir")
    return folder
