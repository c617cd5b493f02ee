"""Where prompts come from: a reader for each format, behind one protocol. Nothing holds a whole source as objects."""
