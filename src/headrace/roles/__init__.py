"""The services of a run: one loop each, which meet in the experience table and the weight plane only."""
