"""Sampling by kernels of our own on a CUDA device, where they agree with torch's (`sampler.py`)."""
