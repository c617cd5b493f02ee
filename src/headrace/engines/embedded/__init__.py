"""The engine in this process: continuous batching over a Hugging Face causal language model.

`core` says what a step is: the scheduler decides, a runner computes, sequences take their tokens. `engine` is the
asyncio front. Nothing but the runners, the cache and the sampler touches tensors.
"""
