"""Weight transfer from Headrace into vLLM. Imports nothing of Headrace: what both know is the format of a publication
(`publication.py`) and the number below."""

from contextlib import suppress

from headrace_vllm.kept_sets import tell_only_what_is_kept

WIRE = 8
"""Of what the two sides say to each other; Headrace refuses a server with another."""


def register() -> None:
    """vLLM calls it in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "headrace" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("headrace", "headrace_vllm.transfer", "HeadraceTransfer")

    with suppress(ImportError):  # another version has it elsewhere, and tells more than is needed
        from vllm.v1.engine.logprobs import LogprobsProcessor

        tell_only_what_is_kept(LogprobsProcessor)
