"""Everything that the quickstart trains on, made from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.cli.quickstart.configs import write_grpo_config, write_sft_config
from headrace.cli.quickstart.data import write_data
from headrace.cli.quickstart.model import make_model
from headrace.cli.quickstart.sizes import SMALL, Size


@dataclass(frozen=True, slots=True)
class QuickstartFiles:
    data: Path
    """Folder of train.jsonl, eval.jsonl and sft.jsonl."""
    model: Path
    """Hugging Face folder, with random weights."""
    sft_config: Path
    grpo_config: Path
    """Starts from the model that `headrace sft SFT_CONFIG --dir FOLDER/sft` leaves."""


def make_inputs(folder: Path, seed: int, size: Size = SMALL) -> QuickstartFiles:
    """Write them into `folder`. Equal seeds give equal files, but for the paths in the configs, which are absolute."""
    folder.mkdir(parents=True, exist_ok=True)
    files = QuickstartFiles(
        data=folder / "data",
        model=folder / "model",
        sft_config=folder / "sft.yaml",
        grpo_config=folder / "grpo.yaml",
    )
    write_data(files.data, seed, size)
    make_model(files.model, seed, size)
    write_sft_config(files.sft_config, folder.absolute(), seed, size)
    write_grpo_config(files.grpo_config, folder.absolute(), seed, size)
    return files
