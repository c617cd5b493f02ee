"""What a run shows of itself: batch records, waits, the summary, the live view."""
