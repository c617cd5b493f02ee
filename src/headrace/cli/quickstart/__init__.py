"""The whole way on one page: real input, a warm-up on demonstrations, asynchronous RL, and what came of it."""
