"""Workers of this process: made, asked, awaited, and where their columns are."""
