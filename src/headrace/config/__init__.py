"""What a run is told: pydantic models, YAML files and dotted overrides. Imports neither torch nor any room."""

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
