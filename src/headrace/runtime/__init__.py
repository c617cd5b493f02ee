"""Where roles run: the clock, the compute lanes and the tasks of a run."""
