"""TRL's GRPOTrainer on the shared job: prints one JSON line with the seconds of each timed step.

Run by `benchmarks.end_to_end` with the interpreter of an environment that has TRL.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path


def main(job: dict[str, object]) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(job["threads"]))  # type: ignore[call-overload]
    rows = [json.loads(line) for line in Path(str(job["prompts"])).read_text().splitlines()]
    lengths: list[int] = []

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths.extend(len(ids) for ids in completion_ids)
        return [(sum(map(ord, text)) % 101) / 101 for text in completions]

    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            ends.append(time.perf_counter())

    bf16 = job["dtype"] == "bfloat16"
    whole = int(job["prompts_per_batch"]) * int(job["samples_per_prompt"])  # type: ignore[call-overload]
    at_once = int(job.get("at_once", whole))  # type: ignore[call-overload]
    config = GRPOConfig(
        output_dir=str(job["output"]),
        use_cpu=job.get("device", "cpu") == "cpu",
        bf16=bf16,
        gradient_checkpointing=False,
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=whole // at_once,
        num_generations=int(job["samples_per_prompt"]),  # type: ignore[call-overload]
        max_completion_length=int(job["max_new_tokens"]),  # type: ignore[call-overload]
        max_steps=int(job["warm_up"]) + int(job["steps"]),  # type: ignore[call-overload]
        num_iterations=1,
        beta=0.0,
        learning_rate=float(job["lr"]),  # type: ignore[arg-type]
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        temperature=1.0,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        logging_steps=1_000_000,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=int(job["seed"]),  # type: ignore[call-overload]
    )
    model = AutoModelForCausalLM.from_pretrained(str(job["model"]), dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(str(job["model"])),
        callbacks=[Clock()],
    )
    trainer.train()
    warm = int(job["warm_up"])  # type: ignore[call-overload]
    seconds = [later - earlier for earlier, later in itertools.pairwise(ends)][warm - 1 :]
    print(json.dumps({"seconds": seconds, "mean_length": sum(lengths) / len(lengths), "longest": max(lengths)}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
