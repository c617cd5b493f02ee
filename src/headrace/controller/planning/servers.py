"""What an inference server cannot keep of what the embedded engine does, and what it opens, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.config import TrainConfig
from headrace.config.model import EngineSection
from headrace.controller.planning.plan import Plan
from headrace.engines.servers.sglang_command import KEPT_AT_MOST
from headrace.engines.servers.vllm_command import TIES
from headrace.engines.servers.vllm_told import ids_asked_for
from headrace.models.experts import experts_per_token
from headrace.models.loading import read_model_config
from headrace.weights.swap_check import bound_in

_KEPT_BY = {
    "vllm": (
        "an update in mode recompute cuts requests off, which are asked for again with what they have",
        "after each update its parameters are compared with what was published, of matrices that a kernel has packed "
        "some columns; the swap check is at temperature 1",
    ),
    "sglang": (
        "its parameters are not compared with what was published: after each update the swap check, at temperature 1, "
        "finds gross faults alone",
        "an attached one that overlaps steps recomputes what is in flight, in mode keep as well; one that is launched "
        "for mode keep does not overlap them",
    ),
}
_OPENS: Mapping[str, Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "vllm": {
        "vLLM can do this, whatever key it has (--api-key is asked for below /v1, /v2, /inference and /cohere alone)": {
            "pause it and end what is asked of it": (
                "/pause",
                "/resume",
                "/abort_requests",
                "/sleep",
                "/wake_up",
                "/release_kv_cache_memory",
            ),
            "exchange its weights": (
                "/init_weight_transfer_engine",
                "/shutdown_weight_transfer_engine",
                "/start_weight_update",
                "/start_draft_weight_update",
                "/update_weights",
                "/finish_weight_update",
                "/update_weight_version",
            ),
            "have its workers call what they have": ("/collective_rpc",),
            "empty its caches": ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
            "change how it works": ("/scale_elastic_ep", "/fault_tolerance/apply"),
            "read of it": (
                "/tokenizer_info",
                "/fault_tolerance/status",
                "/server_info",
                "/weight_info",
                "/weight_checker",
                "/get_world_size",
                "/is_paused",
                "/is_sleeping",
                "/is_scaling_elastic_ep",
            ),
            "sample": ("/invocations", "/generative_scoring", "/tokenize", "/detokenize"),
        },
    },
    "sglang": {
        "SGLang can do this, where it was started with neither --api-key nor --admin-api-key": {
            "pause it and end what is asked of it": (
                "/pause_generation",
                "/continue_generation",
                "/abort_request",
                "/slow_down",
                "/release_memory_occupation",
                "/resume_memory_occupation",
            ),
            "exchange its weights": (
                "/update_weights_from_disk",
                "/update_weights_from_tensor",
                "/update_weights_from_distributed",
                "/update_weights_from_ipc",
                "/begin_weight_update",
                "/end_weight_update",
                "/init_weights_update_group",
                "/destroy_weights_update_group",
                "/update_weight_version",
                "/load_lora_adapter",
                "/load_lora_adapter_from_tensors",
                "/unload_lora_adapter",
            ),
            "have its weights sent": (
                "/get_weights_by_name",
                "/init_weights_send_group_for_remote_instance",
                "/send_weights_to_remote_instance",
                "/remote_instance_transfer_engine_info",
                "/get_remote_instance_transfer_engine_info",
            ),
            "change how it works": (
                "/set_internal_state",
                "/scale_elastic_ep",
                "/pd_role_switch",
                "/freeze_gc",
                "/hicache/storage-backend",
                "/add_external_corpus",
                "/remove_external_corpus",
            ),
            "have it write files": (
                "/configure_logging",
                "/set_trace_level",
                "/dumper/{method}",
                "/start_profile",
                "/stop_profile",
                "/start_expert_distribution_record",
                "/stop_expert_distribution_record",
                "/dump_expert_distribution_record",
            ),
            "empty its caches": ("/flush_cache", "/hicache/storage-backend/clear"),
            "read of it": ("/weights_checker", "/list_external_corpora", "/is_scaling_elastic_ep"),
        },
        "SGLang can do this, and all that is not named here, where it was started without --api-key, whatever "
        "--admin-api-key it has, which /server_info tells": {
            "read of it": ("/server_info", "/get_server_info", "/model_info", "/get_model_info"),
            "open and close its sessions": ("/open_session", "/close_session"),
            "sample": ("/generate",),
        },
    },
}
"""Routes, of the versions that are tried, by who reaches them, and by what such can do."""
_WHOLE = ("auto", "float32", "float16", "bfloat16", "bf16")
"""Types of a KV cache that hold what the model computes in, or a rounding of the same size."""
_DRAFTS = ("speculative_", "spec_")
"""How the names of options begin by which a server decodes speculatively."""


def describe_servers(plan: Plan) -> list[str]:
    """A line for each."""
    engine = plan.config.engine
    if not engine.has_server or plan.replay is not None:
        return []
    kinds = dict.fromkeys(section.kind for section in engine.sections if section.is_server)
    lines = [
        "two runs of one config differ: its noise is its own, and depends on what ran beside a request",
        *(line for kind in kinds for line in _KEPT_BY[kind]),
        *dict.fromkeys(line for section in engine.sections for line in _not_compared(section, plan.config)),
        *dict.fromkeys(line for section in engine.sections for line in _kept_sets(section, plan)),
        *_coarse_check(plan.config),
        *_approximate(engine.sections),
    ]
    attached = dict.fromkeys(section.kind for section in engine.sections if section.urls)
    for kind in attached:
        for who, opened in _OPENS[kind].items():
            lines.append(f"attached: whoever reaches {who}; keep its port to this run")
            lines += [f"  {what}: {', '.join(routes)}" for what, routes in opened.items()]
    if plan.config.sends_weights and plan.config.servers_beyond:
        lines.append(
            f"weights leave {plan.config.weights.host} by gloo, unencrypted, and whoever reaches its ports "
            "can take part: see the weights, or give a server others; keep them to a network of this run's machines"
        )
    return [f"server    {line}" for line in lines]


def _approximate(sections: Iterable[EngineSection]) -> list[str]:
    """What follows of options that a launched server is given."""
    lines = []
    for section in sections:
        given = {name.replace("-", "_").partition(".")[0]: value for name, value in section.args.items()}
        kept_in = given.get("kv_cache_dtype", "auto")
        if kept_in not in _WHOLE:
            lines.append(
                f"kv_cache_dtype {kept_in}: keys and values are rounded, which the swap check may not see; log-probs "
                "are of what was sampled with these, further from the trainer's, and importance weights correct for it"
            )
        if any(name.startswith(_DRAFTS) for name in given):
            lines.append(
                "speculative decoding is not tried here: a draft model keeps the weights that it was started with, so "
                "fewer of its tokens are taken as the policy moves away from them"
            )
    return [*dict.fromkeys(lines)]


def _not_compared(section: EngineSection, config: TrainConfig) -> list[str]:
    """Of what a vLLM holds, where only gross faults are found. What SGLang holds is not compared at all."""
    if section.kind != "vllm" or not experts_per_token(read_model_config(config.model.path)):
        return []
    lines = []
    ranks, replicas = _number(section, "tensor_parallel_size", 1), _number(section, "data_parallel_size", 1)
    alone = "nothing is compared: there the swap check finds gross faults alone"
    shared = ranks if ranks > 1 else replicas if _option(section, "enable_expert_parallel") else 1
    if section.urls:
        lines.append(f"of experts that several ranks of an attached one share out {alone}")
    elif shared > 1:
        lines.append(f"of the experts that its {shared} ranks share out {alone}")
    lines.append(
        "of the matrices of experts sums of bits are compared, which do not tell where an element lies: of what "
        "changed places the swap check finds gross faults alone"
    )
    return lines


def _kept_sets(section: EngineSection, plan: Plan) -> list[str]:
    """How it tells which ids truncation keeps of a token, and what fails where they are too many."""
    config = plan.config
    if not (section.is_server and config.truncates):
        return []
    stream = "they come with the tokens, so a crash loses none that came"
    if section.kind == "sglang":
        own = max(KEPT_AT_MOST, config.most_kept)
        most = f"{_number(section, 'sampling_mask_max_tokens', own):,} ids"
        if section.urls:
            most = f"--sampling-mask-max-tokens ids ({KEPT_AT_MOST:,} unless it was given)"
        return [
            f"SGLang's kept sets have up to {most} a token: a sample fails where truncation keeps more of one; {stream}"
        ]
    asked = ids_asked_for(config.most_kept, plan.vocab_size)
    if asked == plan.vocab_size:
        return [f"vLLM's kept sets are read from the log-probs of all {asked:,} ids; {stream}"]
    return [
        f"vLLM's kept sets are read from the log-probs of the {asked:,} likeliest ids ({config.most_kept:,} of top_k "
        f"and {TIES} more): a sample fails where more than {TIES} others are as likely as the last of top_k; {stream}"
    ]


def _option(section: EngineSection, name: str) -> object:
    """Of a launched server; None where it is not given."""
    return {key.replace("-", "_"): value for key, value in section.args.items()}.get(name)


def _number(section: EngineSection, name: str, default: int) -> int:
    given = str(_option(section, name))
    return int(given) if given.isdecimal() else default


def _coarse_check(config: TrainConfig) -> list[str]:
    """Where routers choose by roundings, how gross the faults are that the swap check finds."""
    dtypes = (config.model.dtype, config.engine.dtype or config.model.dtype)
    if not experts_per_token(read_model_config(config.model.path)):
        return []
    bound, dense = (bound_in(dtypes, routers_choose=choose) for choose in (True, False))
    if bound == dense:
        return []
    return [
        "the model has routers, which choose other experts by a rounding of bfloat16: gross to the swap check is what "
        f"moves log-probs by more than {bound:g} in the mean, and not {dense:g} as without, each times their standard "
        "deviation where that is above 1 nat"
    ]
