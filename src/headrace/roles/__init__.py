"""The services of a run. Each has one `run()` loop; they meet in the experience table and the weight plane only."""
