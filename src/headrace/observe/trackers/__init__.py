"""Trackers: a run's record, carried on to TensorBoard, W&B, MLflow, Trackio or CSV files.

Each has a process of its own, which reads the record as any other reader does. So the record is its queue, and neither
a library that hangs nor one that crashes costs the run anything. Libraries are imported in that process alone.
"""
