"""What a run is told: pydantic models, YAML files and dotted overrides. Imports neither torch nor any room.

What is named here is imported when it is first used: few processes of a run need the configs of all commands.
"""

from typing import TYPE_CHECKING

from headrace.lazy_names import lazy_names

if TYPE_CHECKING:
    from headrace.config.errors import ConfigError
    from headrace.config.model import EngineConfig
    from headrace.config.pairs import DPOConfig, RMConfig
    from headrace.config.reading.load import config_sha256, dump_config, load_config
    from headrace.config.sft import SFTConfig
    from headrace.config.train import TrainConfig

__all__ = [
    "ConfigError",
    "DPOConfig",
    "EngineConfig",
    "RMConfig",
    "SFTConfig",
    "TrainConfig",
    "config_sha256",
    "dump_config",
    "load_config",
]

__getattr__ = lazy_names(
    __name__,
    {
        "ConfigError": "headrace.config.errors",
        "DPOConfig": "headrace.config.pairs",
        "EngineConfig": "headrace.config.model",
        "RMConfig": "headrace.config.pairs",
        "SFTConfig": "headrace.config.sft",
        "TrainConfig": "headrace.config.train",
        "config_sha256": "headrace.config.reading.load",
        "dump_config": "headrace.config.reading.load",
        "load_config": "headrace.config.reading.load",
    },
)
