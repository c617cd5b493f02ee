"""A prompt and its responses as tokens, by hand, where tokenizers and chat templates have ways of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_tokenizers import prepending
from tokenizers import normalizers, pre_tokenizers

from headrace.config.pairs import PairDataConfig
from headrace.offline.demonstrations import read_pairs


def pairs_in(folder: Path, *rows: dict[str, Any], **changes: Any) -> PairDataConfig:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PairDataConfig(train=str(folder / "pairs.jsonl"), **changes)


@pytest.mark.parametrize(
    "how",
    [
        {"normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always")},
    ],
    ids=["normalizer", "first", "always"],
)
def test_a_response_gets_no_space_that_nobody_wrote(tmp_path: Path, how: dict[str, Any]) -> None:
    tokenizer = prepending(**how)
    row = {"prompt": "12", "chosen": "56", "rejected": "\n"}
    ((chosen, rejected),) = read_pairs(pairs_in(tmp_path, row), tokenizer, end_token_id=7, max_context=None)
    for side, text in ((chosen, "1256"), (rejected, "12\n")):
        assert side.tokens.tolist() == [*tokenizer(text)["input_ids"], 7]
        assert side.mask.tolist() == [False] * 3 + [True] * (len(side) - 3)
