"""What the policy experienced: samples, prompts, the schedule that bounds their staleness, and the table.

The bytes of a run's experience live here until the trainer has learnt from them.
"""
