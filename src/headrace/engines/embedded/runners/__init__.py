"""How a model's forward pass is run: fused, as transformers has it, or as CUDA graphs."""
