"""What `headrace` names, for editors and type checkers: `__init__.py` imports it when it is first used."""

from headrace.algorithms.pieces import (
    PieceError as PieceError,
)
from headrace.api.callbacks import (
    Checkpoint as Checkpoint,
)
from headrace.api.evaluation import (
    aevaluate as aevaluate,
)
from headrace.api.evaluation import (
    evaluate as evaluate,
)
from headrace.api.interrupted import (
    Interrupted as Interrupted,
)
from headrace.api.offline import (
    OfflineRun as OfflineRun,
)
from headrace.api.offline import (
    adpo as adpo,
)
from headrace.api.offline import (
    arm as arm,
)
from headrace.api.offline import (
    asft as asft,
)
from headrace.api.offline import (
    dpo as dpo,
)
from headrace.api.offline import (
    rm as rm,
)
from headrace.api.offline import (
    sft as sft,
)
from headrace.api.run import (
    Run as Run,
)
from headrace.api.serving import (
    Server as Server,
)
from headrace.api.serving import (
    aserve as aserve,
)
from headrace.api.serving import (
    serve as serve,
)
from headrace.api.training import (
    atrain as atrain,
)
from headrace.api.training import (
    train as train,
)
from headrace.config import (
    DPOConfig as DPOConfig,
)
from headrace.config import (
    RMConfig as RMConfig,
)
from headrace.config import (
    SFTConfig as SFTConfig,
)
from headrace.config import (
    TrainConfig as TrainConfig,
)
from headrace.config.errors import (
    ConfigError as ConfigError,
)
from headrace.controller.divergence import (
    TrainingDiverged as TrainingDiverged,
)
from headrace.controller.planning.out_of_memory import (
    OutOfMemory as OutOfMemory,
)
from headrace.engines.protocol import (
    EngineError as EngineError,
)
from headrace.errors import (
    HeadraceError as HeadraceError,
)
from headrace.experience.drops import (
    NothingToTrain as NothingToTrain,
)
from headrace.experience.prompts.dataset import (
    Prompt as Prompt,
)
from headrace.experience.sample import (
    Group as Group,
)
from headrace.observe.offline.record import (
    HeldOutRows as HeldOutRows,
)
from headrace.observe.offline.record import (
    OfflineStep as OfflineStep,
)
from headrace.observe.record import (
    BatchRecord as BatchRecord,
)
from headrace.observe.run_record import (
    Evaluation as Evaluation,
)
from headrace.rollout.environment import (
    StepResult as StepResult,
)
from headrace.rollout.policy import (
    Policy as Policy,
)
from headrace.rollout.trajectory import (
    Trajectory as Trajectory,
)
from headrace.runtime.protocol import (
    WaitTimeout as WaitTimeout,
)
from headrace.store import (
    ConfigMismatch as ConfigMismatch,
)
from headrace.store import (
    RunExists as RunExists,
)
from headrace.store import (
    RunInUse as RunInUse,
)
from headrace.store import (
    RunMissing as RunMissing,
)
from headrace.store import (
    StoreError as StoreError,
)

__version__: str
