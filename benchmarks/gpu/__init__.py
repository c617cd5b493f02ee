"""The engine and the trainer on one CUDA device. See `__main__.py`."""
