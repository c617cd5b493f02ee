"""What a run records of itself: batches, waits, metrics, the summary, the trace; and its trackers."""
