"""vLLM offline on the shared prompts: for each line on stdin, generates once and prints one JSON line.

Run by `benchmarks.engine` with the interpreter of an environment that has vLLM's CPU build.
"""

from __future__ import annotations

import json
import sys
import time


def main(job: dict[str, object]) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(job["model"]),
        dtype=str(job["dtype"]),
        max_model_len=int(job["context"]),  # type: ignore[call-overload]
        max_num_seqs=int(job["concurrent"]),  # type: ignore[call-overload]
        enforce_eager=True,
        disable_log_stats=True,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
    )
    sampling = SamplingParams(
        max_tokens=int(job["max_new_tokens"]),  # type: ignore[call-overload]
        temperature=1.0,
        logprobs=0,
        detokenize=False,
        ignore_eos=True,
        stop_token_ids=job["stops"],
    )
    prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]  # type: ignore[attr-defined]
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - begin
        print(json.dumps([sum(len(o.outputs[0].token_ids) for o in outputs), seconds]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
