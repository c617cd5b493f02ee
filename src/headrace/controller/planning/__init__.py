"""What a run will need, read, checked and reckoned before anything expensive starts."""
