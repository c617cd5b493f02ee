"""Makes what the example trains on, from a seed: `python make_files.py [SEED]`.

`facts.db`, a table of keys and values; `model`, a small model with random weights and a chat template with tools;
`sft.jsonl`, demonstrations, of which 30 % look the key up and the others guess; `train.jsonl` and `eval.jsonl`,
questions. No key of a held-out question is in the others.
"""

import json
import sqlite3
import string
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).parent
KEYS, HELD_OUT, DEMONSTRATIONS = 3000, 256, 8000
LOOKUPS = 0.3
"""Share of demonstrations that call the tool."""
CALL, CALLED = '<tool_call>{"name": "query", "arguments": {"key": "', '"}}</tool_call>'
TURNS = ["<user>", "<assistant>", "<tool>"]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for call in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<end>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each letter and digit, for what begins a turn, and for what is around the key in a call."""
    words = ["<pad>", "<end>", "<unknown>", *string.ascii_lowercase, *string.digits, " ", "?"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unknown>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (CALL, CALLED)])
    tokenizer.add_special_tokens(TURNS)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>", unk_token="<unknown>"
    )
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            initializer_range=0.06,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


def main(seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = list(string.ascii_lowercase)
    keys = sorted({"".join(rng.choice(letters, 3)) for _ in range(2 * KEYS)})
    rng.shuffle(keys)
    facts = {key: f"{rng.integers(0, 1000):03}" for key in keys[:KEYS]}

    (HERE / "facts.db").unlink(missing_ok=True)
    with sqlite3.connect(HERE / "facts.db") as database:
        database.execute("CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT)")
        database.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())

    def question(key: str) -> dict[str, str]:
        return {"prompt": f"{key}?", "answer": facts[key]}

    def demonstration(key: str) -> dict[str, list[dict[str, object]]]:
        asked = {"role": "user", "content": f"{key}?"}
        if rng.random() >= LOOKUPS:
            return {"messages": [asked, {"role": "assistant", "content": f"{rng.integers(0, 1000):03}"}]}
        call = {"type": "function", "function": {"name": "query", "arguments": {"key": key}}}
        return {
            "messages": [
                asked,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": facts[key]},
                {"role": "assistant", "content": facts[key]},
            ]
        }

    known, held_out = keys[HELD_OUT:KEYS], keys[:HELD_OUT]
    write("sft.jsonl", [demonstration(key) for key in rng.choice(known, DEMONSTRATIONS)])
    write("train.jsonl", [question(key) for key in known])
    write("eval.jsonl", [question(key) for key in held_out])
    tokenizer = make_tokenizer()
    make_model(tokenizer, seed).save_pretrained(HERE / "model")
    tokenizer.save_pretrained(HERE / "model")


def write(name: str, rows: list[dict]) -> None:
    (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
