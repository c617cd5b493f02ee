"""What a run is given in Python: rows and callables."""
