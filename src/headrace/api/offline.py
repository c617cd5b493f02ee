"""`headrace.sft`, `headrace.rm` and `headrace.dpo`, and what is awaited of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headrace.api import background
from headrace.api.arguments import check_resume, folder_of
from headrace.api.callbacks import OFFLINE, Callbacks
from headrace.api.given.inputs import Inputs
from headrace.api.given.objects_in_config import named
from headrace.api.interrupted import Interrupted
from headrace.api.metrics import Metrics
from headrace.api.picture import Picture, picture_for_caller
from headrace.api.training import dotted
from headrace.api.view import notes, offline_view
from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig, load_config
from headrace.config.reading.unused_keys import ineffective
from headrace.observe.offline.record import HeldOutRows, OfflineStep
from headrace.observe.offline.run_record import OfflineRun as OfflineRecord
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.store import RunExists, RunReader, RunStore
from headrace.viewer.plot.curves import Axis

if TYPE_CHECKING:
    from headrace.controller.stopping import StopFlag
    from headrace.offline.loop import OfflineResult

C = TypeVar("C", SFTConfig, RMConfig, DPOConfig)
Kind = Literal["sft", "rm", "dpo"]


class OfflineRun:
    """What an offline trainer left in a folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<headrace run {self.path}: {self.status}>"

    @property
    def record(self) -> OfflineRecord:
        """All that is recorded, at this moment: its `steps`, its `evaluations`. Raises RunMissing."""
        with RunReader(self.path) as reader:
            try:
                return OfflineWatcher(reader).read()
            except KeyError:
                raise ConfigError(f"{self.path} is of headrace train; it is a headrace.Run") from None

    @property
    def metrics(self) -> Metrics[OfflineStep]:
        """What was recorded of each optimiser step."""
        return Metrics(self.record.steps, index="step", called="steps")

    @property
    def evaluations(self) -> tuple[HeldOutRows, ...]:
        """Of the held-out rows, in order: before, between and after."""
        return self.record.evaluations

    @property
    def summary(self) -> dict[str, Any]:
        """As in `summary.json`; empty before the run has ended."""
        try:
            found = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def status(self) -> str:
        """running, finished, stopped, failed, or killed."""
        return self.record.status

    @property
    def model(self) -> Path | None:
        """Folder that `transformers` loads; None before the run is finished."""
        folder = self.path / "model"
        return folder if folder.is_dir() else None

    def plot(
        self, path: str | Path | None = None, *, by: Axis = "batch", smooth: int = 1, compare: Sequence[OfflineRun] = ()
    ) -> Picture:
        """See `Run.plot`."""
        beside = [run.path for run in compare]
        return picture_for_caller(self.path, path, by=by, smooth=smooth, beside=beside)


def sft(
    config: str | Path | Mapping[str, Any] | SFTConfig,
    *,
    data: Any = None,
    eval_data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> OfflineRun:
    """Fine-tune on demonstrations as `headrace sft` does; arguments and errors as of `headrace.train`. `eval_data`:
    held-out rows, with the same columns. `dir` is the folder for the model; `runs/NAME-OF-CONFIG` unless given.
    `callbacks`: objects with any of `on_batch` (an optimiser step), `on_evaluation` and `on_checkpoint`, each called
    with one argument on the run's thread."""
    return _wait(_Job("sft", SFTConfig, config, data, eval_data, dir, resume, callbacks, overrides))


def rm(
    config: str | Path | Mapping[str, Any] | RMConfig,
    *,
    data: Any = None,
    eval_data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> OfflineRun:
    """Train a reward model on pairs as `headrace rm` does; see `sft`."""
    return _wait(_Job("rm", RMConfig, config, data, eval_data, dir, resume, callbacks, overrides))


def dpo(
    config: str | Path | Mapping[str, Any] | DPOConfig,
    *,
    data: Any = None,
    eval_data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> OfflineRun:
    """Train a policy on pairs as `headrace dpo` does; see `sft`."""
    return _wait(_Job("dpo", DPOConfig, config, data, eval_data, dir, resume, callbacks, overrides))


async def asft(config: str | Path | Mapping[str, Any] | SFTConfig, **arguments: Any) -> OfflineRun:
    """As `sft`, while the caller's event loop goes on. Cancelled, it stops after the step at hand."""
    return await _wait_async(_job("sft", SFTConfig, config, **arguments))


async def arm(config: str | Path | Mapping[str, Any] | RMConfig, **arguments: Any) -> OfflineRun:
    """As `rm`; see `asft`."""
    return await _wait_async(_job("rm", RMConfig, config, **arguments))


async def adpo(config: str | Path | Mapping[str, Any] | DPOConfig, **arguments: Any) -> OfflineRun:
    """As `dpo`; see `asft`."""
    return await _wait_async(_job("dpo", DPOConfig, config, **arguments))


@dataclass(frozen=True, slots=True)
class _Job:
    name: Kind
    kind: type[Any]
    config: Any
    data: Any
    eval_data: Any
    dir: str | Path | None
    resume: bool
    callbacks: Iterable[Any]
    overrides: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        check_resume(self.resume)
        given = folder_of(self.dir)
        stem = Path(self.config).stem if isinstance(self.config, str | Path) else self.name
        return (Path("runs") / stem if given is None else given).absolute()

    def run(self, stop: StopFlag) -> OfflineResult:
        from headrace.offline.pairs import run_dpo, run_rm
        from headrace.offline.sft import run_sft

        view, report = offline_view(self.name)
        runs: dict[Kind, Callable[..., OfflineResult]] = {"sft": run_sft, "rm": run_rm, "dpo": run_dpo}
        folder, callbacks = self.folder, Callbacks(self.callbacks, OFFLINE)
        inputs = Inputs(folder, resume=self.resume)
        try:
            values = {
                **dotted(self.overrides),
                **inputs.data(self.data, "data", "data.train", "train"),
                **inputs.data(self.eval_data, "eval_data", "data.eval", "eval"),
            }
            config = load_config(self.kind, named(self.config, inputs), named(values, inputs))
            notes(ineffective(config))
            return runs[self.name](
                config,
                folder,
                begin="resume" if self.resume else "new",
                report=report,
                now=time.monotonic,
                view=view,
                stop=stop,
                listeners=callbacks.offline_listeners(),
            )
        except BaseException as error:
            inputs.rename(error)
            if not RunStore.exists(folder) or isinstance(error, RunExists):
                inputs.tidy()
            raise
        finally:
            callbacks.close()


def _job(
    name: Kind,
    kind: type[Any],
    config: Any,
    *,
    data: Any = None,
    eval_data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    callbacks: Iterable[Any] = (),
    **overrides: Any,
) -> _Job:
    return _Job(name, kind, config, data, eval_data, dir, resume, callbacks, overrides)


def _stop() -> StopFlag:
    from headrace.controller.stopping import StopFlag

    return StopFlag()


def _wait(job: _Job) -> OfflineRun:
    stop = _stop()
    result, signalled = background.wait(lambda: job.run(stop), stop)
    run = OfflineRun(job.folder)
    if signalled and result.status == "stopped":
        raise Interrupted(run, signalled, resumable=True)
    return run


async def _wait_async(job: _Job) -> OfflineRun:
    stop = _stop()
    await background.wait_async(lambda: job.run(stop), stop)
    return OfflineRun(job.folder)
