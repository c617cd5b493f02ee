"""The weight plane: named versions of the policy, published by the trainer and received by engines."""
