"""Whole runs in virtual time: the controller as it is, between simulated parts, on a disk that may fail."""
