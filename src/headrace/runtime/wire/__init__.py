"""How plain data crosses between processes."""
