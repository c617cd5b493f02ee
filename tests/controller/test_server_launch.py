"""How the servers of a run are launched, and what is refused before anything starts."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, make_model

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.building.server_specs import server_spec
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import Plan, make_plan
from headrace.controller.planning.server_launch import server_launch
from headrace.controller.planning.servers import describe_servers
from headrace.controller.planning.tokens import reward_tokens
from headrace.engines.embedded.cache_plan import CachePlan
from headrace.engines.servers import sglang_command, vllm_command
from headrace.engines.servers.launch import ServerLaunch

CACHE = CachePlan(slots=8, max_context=96, bytes_wanted=(3 << 30) + 1)


def launch(
    tmp_path: Path,
    weights: str,
    kind: str = "vllm",
    swap: str = "recompute",
    overrides: tuple[str, ...] = (),
    **engine: Any,
) -> ServerLaunch:
    job = make_job(
        tmp_path, engine__kind=kind, async__swap=swap, **{f"engine__{name}": value for name, value in engine.items()}
    )
    config = load_config(TrainConfig, job, [*overrides])
    return server_launch(config, config.engine, weights, CACHE, rank=1)


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize(("seed", "own"), [(0, 1), (4_294_968, 705), (2**32 - 1, 4_294_966_297)])
def test_a_server_has_a_seed_that_numpy_takes(tmp_path: Path, seed: int, own: int) -> None:
    """Below 2**32: of the second of a run, 4,294,968,001 - 4,294,967,296 = 705, and -1,000 + 1 = -999."""
    assert launch(tmp_path, "m", overrides=(f"seed={seed}",)).seed == own


def test_a_folder_is_named_whole_and_a_model_of_the_hub_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("weights")
    assert launch(tmp_path / "job", "weights").weights == str(tmp_path / "weights")
    assert launch(tmp_path / "job", "Qwen/Qwen3-0.6B").weights == "Qwen/Qwen3-0.6B"


def test_the_command_has_loopback_the_plugin_and_the_users_own_options(tmp_path: Path) -> None:
    made = launch(
        tmp_path,
        "Qwen/Qwen3-0.6B",
        args={"enable_prefix_caching": False, "block-size": 16, "x": {"y": 1}, "watermark": 0.1},
    )
    command = vllm_command.command(made, port=7)
    assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "7")
    assert (option(command, "--max-num-seqs"), option(command, "--max-model-len")) == ("16", "96"), "8 for the check"
    assert option(command, "--weight-transfer-config") == '{"backend": "headrace"}'
    assert option(command, "--seed") == "1"
    assert "--no-enable-prefix-caching" in command
    assert (option(command, "--block-size"), option(command, "--x")) == ("16", '{"y": 1}')
    assert option(command, "--watermark") == "0.1", "of its KV cache"
    environment = vllm_command.environment(made, {"PATH": "/bin", "PYTHONPATH": "/mine"}, "/f")
    assert (environment["PATH"], environment.get("PYTHONPATH")) == ("/bin", None)
    if made.on_cpu:
        assert environment["VLLM_CPU_KVCACHE_SPACE"] == "4", "whole GiB, and no less than is wanted"


@pytest.mark.parametrize(
    ("kind", "short", "words"),
    [
        ("vllm", "hos", "hos is short for host, which is not to be given: a launched server listens on loop"),
        ("sglang", "api-k", "api_k is short for api_key"),
        ("vllm", "uds", "uds is not to be given: a launched server listens on loopback alone"),
        ("sglang", "config", "config is not to be given: options are in engine.args"),
    ],
)
def test_an_option_of_ours_is_not_given_by_a_shorter_name(tmp_path: Path, kind: str, short: str, words: str) -> None:
    """Which the server would take for it."""
    of = vllm_command if kind == "vllm" else sglang_command
    with pytest.raises(ConfigError, match=words):
        of.command(launch(tmp_path, "Qwen/Qwen3-0.6B", kind, args={short: "0.0.0.0"}), port=7)


def test_where_clients_sample_vllm_may_be_asked_for_as_many_ids_as_they_may_have_kept(tmp_path: Path) -> None:
    made = launch(tmp_path, "m", overrides=("gateway.sampling=client", "rollout.agent=a.py:f"))
    assert option(vllm_command.command(made, port=7), "--max-logprobs") == "528"


def test_a_list_is_several_words_for_vllm_but_where_it_reads_json(tmp_path: Path) -> None:
    """As its own parser has it: `nargs="+"` for all lists but those of CORS, and keys of an option are JSON."""
    args = {
        "cudagraph_capture_sizes": [1, 2, 4],
        "allowed-origins": ["*"],
        "compilation_config.custom_ops": ["none"],
        "kv-cache-dtype-skip-layers": ["0", "sliding_window"],
    }
    command = vllm_command.command(launch(tmp_path, "m", args=args), port=7)
    for words in (
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--allowed-origins", '["*"]'],
        ["--compilation-config.custom_ops", '["none"]'],
        ["--kv-cache-dtype-skip-layers", "0", "sliding_window"],
    ):
        assert command[command.index(words[0]) :][: len(words)] == words


def test_a_key_for_other_servers_is_not_that_of_a_vllm_that_is_launched(tmp_path: Path) -> None:
    """Its worker is the only client, and has none."""
    own = {"PATH": "/bin", "VLLM_API_KEY": "secret", "VLLM_PLUGINS": "mine"}
    environment = vllm_command.environment(launch(tmp_path, "m"), own, "/f")
    assert "VLLM_API_KEY" not in environment
    assert (environment["PATH"], environment["VLLM_PLUGINS"]) == ("/bin", "headrace,mine")


def test_the_command_of_sglang_has_loopback_ids_alone_and_the_users_own_options(tmp_path: Path) -> None:
    args = {
        "chunked-prefill-size": 64,
        "enable_metrics": True,
        "skip_server_warmup": False,
        "x": {"y": 1},
        "z": [1, 2],
    }
    made = launch(tmp_path, "Qwen/Qwen3-0.6B", "sglang", args=args)
    command = sglang_command.command(made, port=7)
    module = "headrace_sglang_cpu.server" if made.on_cpu else "sglang.launch_server"
    assert command[:3] == [sys.executable, "-m", module]
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "7")
    assert (option(command, "--max-running-requests"), option(command, "--random-seed")) == ("16", "1")
    assert option(command, "--context-length") == "102", "SGLang leaves 6 tokens of it free"
    assert {"--skip-tokenizer-init", "--incremental-streaming-output", "--enable-metrics"} < set(command)
    assert "--skip-server-warmup" not in command, "one of ours is taken back"
    assert (option(command, "--chunked-prefill-size"), option(command, "--x")) == ("64", '{"y": 1}')
    assert command[command.index("--z") + 1 :][:2] == ["1", "2"]
    environment = sglang_command.environment(made, {"PATH": "/bin", "PYTHONPATH": "/mine"}, "/f")
    assert (environment.get("PYTHONPATH"), environment["TMPDIR"]) == (None, "/f")
    assert environment["SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE"] == "file:///f/ranks", "nothing listens for its ranks"


def test_sglang_overlaps_no_steps_where_keys_and_values_are_kept(tmp_path: Path) -> None:
    for swap, overlaps in (("keep", False), ("recompute", True)):
        made = replace(launch(tmp_path / swap, "Qwen/Qwen3-0.6B", "sglang", swap), on_cpu=False)
        assert ("--disable-overlap-schedule" not in sglang_command.command(made, port=7)) is overlaps


def test_what_sglang_says_of_how_it_was_launched_is_told_with_its_version(tmp_path: Path) -> None:
    python = tmp_path / "bin/python"
    (tmp_path / "lib/python3.11/site-packages/sglang-0.5.23.dist-info").mkdir(parents=True)
    made = replace(launch(tmp_path / "job", "Qwen/Qwen3-0.6B", "sglang"), python=str(python))
    said = "sglang serve: error: unrecognized arguments: --no-such-option 3"
    told = "engine.args: SGLang 0.5.23 does not take them: unrecognized arguments: --no-such-option 3"
    assert sglang_command.refusal(made, said) == told
    absent = sglang_command.refusal(made, "ModuleNotFoundError: No module named 'headrace_sglang_cpu'")
    assert absent is not None
    assert absent.endswith(
        "in a checkout of Headrace, with the pip of SGLang's environment: pip install plugins/headrace-sglang-cpu"
    )
    assert sglang_command.refusal(made, "Killed") is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("api_server.py: error: ambiguous option: --w could match --worker-cls, --worker-extension-cls", "ambiguous"),
        (
            "(APIServer pid=7)   Value error, Unknown quantization method: foo. Must be one of ['awq']. "
            "[type=value_error, input_value=ArgsKwargs((), {'model': ...}), input_type=ArgsKwargs]",
            r"vLLM 0\.32\.0 refuses how it is launched, .*: Value error, Unknown quantization method: foo\. "
            r"Must be one of \['awq'\]\.$",
        ),
        ("  Value error, so it is", "vLLM 0.32.0 refuses how it is launched, .*: Value error, so it is$"),
        ("(APIServer pid=7) INFO a request had no Value error, as it seems", None),
        ("Killed", None),
    ],
)
def test_what_vllm_says_of_how_it_was_launched_is_told_with_its_version(
    tmp_path: Path, said: str, told: str | None
) -> None:
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0.dist-info").mkdir(parents=True)
    made = replace(launch(tmp_path / "job", "Qwen/Qwen3-0.6B"), python=str(tmp_path / "bin/python"))
    found = vllm_command.refusal(made, said)
    assert found is None if told is None else found is not None and re.search(told, found)


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            {"kind": "sglang", "args": {"context-length": 7}},
            "engine.args.context_length is set by engine.max_context; leave it out",
        ),
        ({"args": {"max-model-len": 7}}, "engine.args.max_model_len is set by engine.max_context; leave it out"),
        ({"args": {"host": "0.0.0.0"}}, "engine.args.host is not to be given: a launched server listens on loop"),
        ({"args": {"stream_interval": 20}}, "engine.args.stream_interval is not to be given: tokens come as they are"),
        ({"args": {"disable-log-stats": True}}, "engine.args.disable_log_stats is not to be given: tokens that were"),
        ({"args": {"load-format": "dummy"}}, "engine.args.load_format is not to be given: version 0 is what is loaded"),
        ({"args": {"quantization": "fp8"}}, "engine.args.quantization is not to be given: weights are rounded once"),
        (
            {"args": {"hf-overrides.rope_scaling": 2}},
            r"engine.args.hf_overrides.rope_scaling is not to be given: it wo",
        ),
        (
            {"args": {"enable_lora": True}},
            "engine.args.enable_lora is not to be given: all weights are trained, and no",
        ),
        ({"args": {"watermark-config": {"key": 7}}}, "watermark_config is not to be given: what is sampled would not"),
        ({"args": {"watermark_conf": {"key": 7}}}, "watermark_conf is short for watermark_config, which is not to be"),
        ({"kind": "sglang", "args": {"enable_watermark": True}}, "enable_watermark is not to be given: what is sampl"),
        ({"args": {"kv_transfer_config": {}}}, "engine.args.kv_transfer_config is not to be given: keys and values of"),
        (
            {"args": {"weight_transfer_config.backend": "nccl"}},
            "weight_transfer_config.backend is not to be given: wei",
        ),
        (
            {"kind": "sglang", "args": {"preferred_sampling_params": "{}"}},
            "engine.args.preferred_sampling_params is not to be given: what is sampled would not be the policy's own",
        ),
        (
            {"kind": "sglang", "args": {"hicache_storage_backend": "file"}},
            "engine.args.hicache_storage_backend is not to be given: keys and values of older weights may come back",
        ),
        ({"kind": "sglang", "args": {"pp-size": 2}}, "pp_size is not to be given: it would go on sampling while"),
        ({"kind": "sglang", "args": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size is not to be given: it wo"),
        ({"kind": "sglang", "args": {"enable_pdmux": True}}, "enable_pdmux is not to be given: it would go on sampl"),
        ({"args": {"no_such": None}}, "engine.args.no_such is null, which is no value of an option; give one, or"),
        ({"kind": "sglang", "args": {"no-such": None}}, "engine.args.no_such is null"),
        (
            {"kind": "sglang", "args": {"no-such": False}},
            r"engine.args.no_such is false, for which SGLang\S* has no word: .*leave it out, or give no_no_such: true",
        ),
        ({"python": "/no/such/python"}, "engine.python is '/no/such/python', and there is no interpreter at"),
    ],
)
def test_what_is_not_the_users_to_give_is_refused(tmp_path: Path, engine: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        launch(tmp_path, "Qwen/Qwen3-0.6B", **engine)


def test_a_token_that_is_not_set_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("T", raising=False)
    far = {"engine__kind": "vllm", "engine__url": "http://192.0.2.7:8000", "engine__token_env": "T"}
    far["weights__transport"] = "disk"
    with pytest.raises(ConfigError, match=r"^engine\.token_env names T, which is not set; export it"):
        make_plan(load_config(TrainConfig, make_job(tmp_path, **far)))
    monkeypatch.setenv("T", "abc\r")
    with pytest.raises(ConfigError, match=r"^engine\.token_env names T, which has white space at an end"):
        make_plan(load_config(TrainConfig, make_job(tmp_path, **far)))
    monkeypatch.setenv("T", "a token")
    both = far | {"engine__kind": "sglang", "engine__admin_token_env": "A"}
    monkeypatch.delenv("A", raising=False)
    with pytest.raises(ConfigError, match=r"^engine\.admin_token_env names A, which is not set; export it"):
        make_plan(load_config(TrainConfig, make_job(tmp_path / "both", **both)))
    monkeypatch.delenv("T")
    outside = {"outside": True, "token_env": "T"}
    with pytest.raises(ConfigError, match=r"^rollout\.agent\.token_env names T, which is not set"):
        make_plan(load_config(TrainConfig, make_job(tmp_path / "agents", rollout__agent=outside)))


def test_tokens_are_those_of_the_command_s_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker on a Ray cluster has that of its node."""
    monkeypatch.setenv("T", "swordfish")
    monkeypatch.setenv("A", "pike")
    keys = {"token_env": "T", "admin_token_env": "A"}
    job = make_job(tmp_path, engine={"kind": "sglang", "url": "http://127.0.0.1:1", **keys})
    plan = make_plan(load_config(TrainConfig, job))
    spec = server_spec(plan, plan.config.engine, 0, 0, tmp_path, False)
    monkeypatch.delenv("T")
    assert (spec.token, spec.admin_token) == ("swordfish", "pike")
    assert not [word for word in ("swordfish", "pike") if word in repr(spec)]


def test_tokens_of_reward_servers_are_read_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", "swordfish")
    remote = {"url": "http://127.0.0.1:1", "token_env": "T", "retries": 0}
    terms = [{"function": "remote", "remote": remote}, {"function": "exact"}]
    assert reward_tokens(load_config(TrainConfig, make_job(tmp_path, reward={"terms": terms}))) == {"T": "swordfish"}
    assert reward_tokens(load_config(TrainConfig, make_job(tmp_path / "none"))) == {}


def test_weights_are_sent_from_loopback_but_to_servers_beyond_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("T", "a token")
    urls = ["http://127.0.0.1:1", "http://192.0.2.7:8000"]
    beside = [{"kind": "sglang", "python": sys.executable}]
    for transport, sent_from in (("gloo", ["127.0.0.1", "192.0.2.1", "127.0.0.1"]), ("disk", ["", "", ""])):
        job = make_job(
            tmp_path / transport,
            weights__transport=transport,
            weights__host="192.0.2.1",
            engine__kind="vllm",
            engine__url=urls,
            engine__token_env="T",
            engine__beside=beside,
        )
        config = load_config(TrainConfig, job)
        plan = make_plan(config)
        places = [(section, place) for section in config.engine.sections for place in range(section.count)]
        specs = [server_spec(plan, section, place, 0, tmp_path, False) for section, place in places]
        assert [each.weights_from for each in specs] == sent_from
        words = describe_plan(plan)
        assert ("weights by shm, to servers by gloo" in words) is (transport == "gloo")
        assert ("weights leave 192.0.2.1 by gloo, unencrypted, and whoever reaches" in words) is (transport == "gloo")


def attached(folder: Path, kind: str, architecture: str = "qwen3", **changes: Any) -> list[str]:
    """What `check` says of servers."""
    job = make_job(folder, engine__kind=kind, engine__url="http://127.0.0.1:1", **changes)
    make_model(folder / "model", architecture)
    plan = make_plan(load_config(TrainConfig, job))
    lines = describe_plan(plan).splitlines()
    return [line.removeprefix("server").strip() for line in lines if line.startswith("server ")]


def said_of(plan: Plan, *overrides: str) -> list[str]:
    """By `check` of a plan with another config in these keys: where gross faults alone are found, and of kept sets."""
    config = load_config(TrainConfig, Path(plan.config.model.path).parent / "grpo.yaml", [*overrides])
    lines = describe_servers(replace(plan, config=config))
    told = [line.removeprefix("server").strip() for line in lines]
    return [line for line in told if "gross faults alone" in line or "kept sets" in line]


def plan_of(folder: Path, architecture: str = "qwen3") -> Plan:
    job = make_job(folder, engine__kind="vllm")
    make_model(folder / "model", architecture)
    return make_plan(load_config(TrainConfig, job))


def test_check_says_of_which_parameters_gross_faults_alone_are_found(tmp_path: Path) -> None:
    alone = "nothing is compared: there the swap check finds gross faults alone"
    sums = (
        "of the matrices of experts sums of bits are compared, which do not tell where an element lies: of what "
        "changed places the swap check finds gross faults alone"
    )
    two = "engine.args={tensor-parallel-size: 2}"
    shared = "engine.args={data_parallel_size: 3, enable_expert_parallel: true}"
    cut, out = (f"of the experts that its {ranks} ranks share out {alone}" for ranks in (2, 3))
    dense, experts = plan_of(tmp_path / "dense"), plan_of(tmp_path / "experts", "qwen3_moe")
    assert said_of(dense) == []
    assert said_of(dense, two) == said_of(dense, shared) == []
    assert said_of(experts) == [sums]
    assert said_of(experts, two) == [cut, sums]
    assert said_of(experts, shared) == [out, sums]
    told = said_of(experts, "engine.kind=sglang", "engine.args={tp_size: 2}")
    assert [each.startswith("its parameters are not compared with what was published") for each in told] == [True]


def test_check_says_how_kept_sets_are_told_and_what_fails(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    stream = "they come with the tokens, so a crash loses none that came"
    few = (
        "vLLM's kept sets are read from the log-probs of the 36 likeliest ids (20 of top_k and 16 more): a sample "
        f"fails where more than 16 others are as likely as the last of top_k; {stream}"
    )
    every = f"vLLM's kept sets are read from the log-probs of all {plan.vocab_size} ids; {stream}"
    assert said_of(plan, "rollout.sampling.top_k=20", "rollout.sampling.top_p=0.9") == [few]
    assert said_of(plan, "rollout.sampling.top_k=5000") == [every]
    for given, most in (
        ("engine.args={}", "4,096 ids"),
        ("engine.args={sampling-mask-max-tokens: 64}", "64 ids"),
        ("engine.url=http://127.0.0.1:1", "--sampling-mask-max-tokens ids (4,096 unless it was given)"),
    ):
        told = said_of(plan, "engine.kind=sglang", "rollout.sampling.top_p=0.9", given)
        words = (
            f"SGLang's kept sets have up to {most} a token: a sample fails where truncation keeps more of one; {stream}"
        )
        assert told[1:] == [words]


INSTALLED = {
    "vllm": (
        ".venv-vllm",
        "vllm/entrypoints",
        (
            "rl/online",
            "serve/dev/*",
            "serve/elastic_ep",
            "scale_out/token_in_token_out",
            "serve/tokenize",
            "serve/fault_tolerance",
        ),
    ),
    "sglang": (".venv-sglang", "sglang/srt", ("entrypoints",)),
}
GUARDED = {"vllm": ("/v1", "/v2", "/inference", "/cohere"), "sglang": ()}
"""How routes begin that ask for the server's key."""
ROUTES = {
    "vllm": r'(?:router\.(?:post|get)|add_api_route)\(\s*"(/[^"]+)"',
    "sglang": r'@(?:app|router)\.\w+\("(/[^"]+)"[^)]*\)\s*@auth_level\(AuthLevel\.ADMIN_OPTIONAL\)',
}


@pytest.mark.parametrize(
    ("kind", "words", "routes"),
    [
        (
            "vllm",
            (
                "two runs of one config differ: its noise is its own, and depends on what ran beside a request",
                "an update in mode recompute cuts requests off, which are asked for again with what they have",
                "after each update its parameters are compared with what was published, of matrices that a kernel has "
                "packed some columns; the swap check is at temperature 1",
                "attached: whoever reaches vLLM can do this, whatever key it has (--api-key is asked for below "
                "/v1, /v2, /inference and /cohere alone); keep its port to this run",
            ),
            ("exchange its weights: /init_weight_transfer_engine, /shut", "call what they have: /collective_rpc"),
        ),
        (
            "sglang",
            (
                "two runs of one config differ: its noise is its own, and depends on what ran beside a request",
                "its parameters are not compared with what was published: after each update the swap check, at "
                "temperature 1, finds gross faults alone",
                "an attached one that overlaps steps recomputes what is in flight, in mode keep as well; one that is "
                "launched for mode keep does not overlap them",
                "attached: whoever reaches SGLang can do this, where it was started with neither --api-key nor "
                "--admin-api-key; keep its port to this run",
            ),
            ("exchange its weights: /update_weights_from_disk, /update_weights_from_tensor,", "caches: /flush_cache"),
        ),
    ],
)
def test_check_says_what_a_server_does_not_keep_and_what_it_opens(
    tmp_path: Path, kind: str, words: tuple[str, ...], routes: tuple[str, ...]
) -> None:
    said = attached(tmp_path, kind)
    assert tuple(said[: len(words)]) == words
    opened = said[len(words) :]
    assert all(any(each in line for line in opened) for each in routes)
    assert opened[-1].startswith("sample: ")


def test_check_says_what_of_an_sglang_its_admin_key_does_not_close(tmp_path: Path) -> None:
    said = attached(tmp_path, "sglang")
    begins = said.index(
        "attached: whoever reaches SGLang can do this, and all that is not named here, where it was started without "
        "--api-key, whatever --admin-api-key it has, which /server_info tells; keep its port to this run"
    )
    assert said[begins + 1 :] == [
        "read of it: /server_info, /get_server_info, /model_info, /get_model_info",
        "open and close its sessions: /open_session, /close_session",
        "sample: /generate",
    ]
    assert not any("/generate," in line or "/server_info," in line for line in said[:begins])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"kv_cache_dtype": "auto"}, None),
        ({"kv-cache-dtype": "fp8_e4m3"}, "kv_cache_dtype fp8_e4m3: keys and values are rounded, which the swap check"),
        ({"speculative_config.method": "ngram"}, "speculative decoding is not tried here: a draft model keeps the wei"),
    ],
)
def test_check_says_what_follows_of_an_option_by_which_a_server_only_comes_near(
    tmp_path: Path, args: dict[str, str], words: str | None
) -> None:
    job = make_job(tmp_path, engine__kind="vllm", engine__args=args)
    lines = describe_plan(make_plan(load_config(TrainConfig, job))).splitlines()
    said = [line for line in lines if re.match(r"server +(kv_cache_dtype|speculative)", line)]
    assert len(said) == (words is not None)
    assert words is None or words in said[0]


@pytest.mark.parametrize("kind", INSTALLED)
def test_check_says_how_much_less_the_swap_check_finds_where_routers_choose_in_bfloat16(
    tmp_path: Path, kind: str
) -> None:
    bounds = "more than 0.1 in the mean, and not 0.03 as without, each times their standard deviation"
    words = f"gross to the swap check is what moves log-probs by {bounds}"

    def is_said(name: str, architecture: str, **changes: Any) -> bool:
        return any(words in line for line in attached(tmp_path / name, kind, architecture, **changes))

    assert is_said("experts", "qwen3_moe_wide", model__dtype="bfloat16")
    assert is_said("engine", "qwen3_moe_wide", engine__dtype="bfloat16")
    assert not is_said("float32", "qwen3_moe_wide")
    assert not is_said("dense", "qwen3_wide", model__dtype="bfloat16")


def installed_routes(kind: str) -> set[str]:
    """By which the server can be changed, as its source has them."""
    environment, package, rooms = INSTALLED[kind]
    folder = next((Path(__file__).parents[2] / environment).glob(f"lib/python3*/site-packages/{package}"), None)
    if folder is None:
        pytest.skip(f"make {kind}-env makes its environment")
    files = [file for room in rooms for file in folder.glob(f"{room}/*.py")]
    there = {route for file in files for route in re.findall(ROUTES[kind], file.read_text())}
    assert len(there) > 15
    return {route for route in there if not route.startswith(GUARDED[kind])}


def named_routes(lines: Iterable[str]) -> set[str]:
    return {route for line in lines for route in re.findall(r"(/[a-z_][^ ,;)]*)", line)}


@pytest.mark.parametrize("kind", INSTALLED)
def test_all_routes_by_which_the_installed_server_is_changed_are_named(tmp_path: Path, kind: str) -> None:
    there, named = installed_routes(kind), named_routes(attached(tmp_path, kind))
    assert there <= named, there - named


def test_the_admin_key_of_the_installed_sglang_closes_what_check_says(tmp_path: Path) -> None:
    """At a route that is not marked it asks for its --api-key alone."""
    said = attached(tmp_path, "sglang")
    closed, opened = (place for place, line in enumerate(said) if line.startswith("attached: "))
    assert named_routes(said[closed:opened]) == installed_routes("sglang")
