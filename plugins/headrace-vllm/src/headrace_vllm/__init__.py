"""Weight transfer from Headrace into vLLM. Imports nothing of Headrace: what both know is the format of a publication
(`publication.py`) and the number below."""

WIRE = 7
"""Of what the two sides say to each other; Headrace refuses a server with another."""


def register() -> None:
    """vLLM calls it in each of its processes."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "headrace" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine("headrace", "headrace_vllm.transfer", "HeadraceTransfer")
