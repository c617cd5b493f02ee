"""`headrace.sft`, `headrace.rm` and `headrace.dpo`, and what is awaited of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from headrace.api import background
from headrace.api.inputs import Inputs
from headrace.api.interrupted import Interrupted
from headrace.api.training import dotted
from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig, load_config
from headrace.observe.glyphs import near_zero

if TYPE_CHECKING:
    from headrace.controller.offline import OfflineResult
    from headrace.controller.stopping import StopFlag

C = TypeVar("C", SFTConfig, RMConfig, DPOConfig)
Kind = Literal["sft", "rm", "dpo"]


class OfflineRun:
    """What an offline trainer left in a folder."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"<headrace run {self.path}: {self.status}>"

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
        """finished, stopped, or running: it has not said how it ended."""
        return str(self.summary.get("status", "running"))

    @property
    def model(self) -> Path | None:
        """Folder that `transformers` loads; None before the run is finished."""
        folder = self.path / "model"
        return folder if folder.is_dir() else None


def sft(
    config: str | Path | Mapping[str, Any] | SFTConfig,
    *,
    data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    **overrides: Any,
) -> OfflineRun:
    """Fine-tune on demonstrations as `headrace sft` does; arguments and errors as of `headrace.train`. `dir` is the
    folder for the model; `runs/NAME-OF-CONFIG` unless given."""
    return _wait(_Job("sft", SFTConfig, config, data, dir, resume, overrides))


def rm(
    config: str | Path | Mapping[str, Any] | RMConfig,
    *,
    data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    **overrides: Any,
) -> OfflineRun:
    """Train a reward model on pairs as `headrace rm` does; see `sft`."""
    return _wait(_Job("rm", RMConfig, config, data, dir, resume, overrides))


def dpo(
    config: str | Path | Mapping[str, Any] | DPOConfig,
    *,
    data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    **overrides: Any,
) -> OfflineRun:
    """Train a policy on pairs as `headrace dpo` does; see `sft`."""
    return _wait(_Job("dpo", DPOConfig, config, data, dir, resume, overrides))


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
    dir: str | Path | None
    resume: bool
    overrides: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        if self.dir is not None and not str(self.dir):
            raise ConfigError("dir is empty; give a folder")
        stem = Path(self.config).stem if isinstance(self.config, str | Path) else self.name
        return (Path("runs") / stem if self.dir is None else Path(self.dir).expanduser()).absolute()

    def run(self, stop: StopFlag) -> OfflineResult:
        from headrace.controller.pairs import run_dpo, run_rm
        from headrace.controller.sft import run_sft

        runs: dict[Kind, Callable[..., OfflineResult]] = {"sft": run_sft, "rm": run_rm, "dpo": run_dpo}
        folder, inputs = self.folder, Inputs(self.folder, resume=self.resume)
        try:
            values = {**dotted(self.overrides), **inputs.data(self.data, "data", "data.train", "train")}
            config = load_config(self.kind, self.config, values)
            return runs[self.name](
                config,
                folder,
                begin="resume" if self.resume else "new",
                report=self._report,
                now=time.monotonic,
                stop=stop,
            )
        except BaseException as error:
            inputs.rename(error)
            if not any((folder / name).exists() for name in ("model", "checkpoint")):
                inputs.tidy()
            raise

    def _report(self, step: int, loss: float, tokens_per_s: float) -> None:
        background.tell(f"{self.name} step {step}: loss {near_zero(loss, 4)}, {tokens_per_s:,.0f} tokens/s")


def _job(
    name: Kind,
    kind: type[Any],
    config: Any,
    *,
    data: Any = None,
    dir: str | Path | None = None,
    resume: bool = False,
    **overrides: Any,
) -> _Job:
    return _Job(name, kind, config, data, dir, resume, overrides)


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
