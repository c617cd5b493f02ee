"""Shows what a run recorded. It reads the record alone, never a live part: it works while a run goes, and after."""
