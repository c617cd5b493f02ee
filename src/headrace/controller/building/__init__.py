"""The parts of a run, built from its plan."""
